"""What fusion needs to know about one kernel: its kind, its schedule's family, how it reads.

The kind is Relax's ``op_pattern``: set by whoever made the kernel, else found by TVM's analysis of
the loops. One case is added to that analysis: a kernel all of whose blocks store one element at
their own point, from wherever they read it (a gather), makes each element of its result by itself
and so is injective as far as fusion goes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx

from uif_tvm.target.schedule import FAMILY_ATTR

ELEMENTWISE, BROADCAST, INJECTIVE, REDUCTION, OUT_FUSABLE, OPAQUE = 0, 1, 2, 3, 4, 8
#: Family of kernels whose schedule walks rows, one after the other, through all of their stages.
ROW = "row"
#: What a call of a mathematical function costs beside an addition.
_CALL_OPERATIONS = 8
_KINDS = {
    ELEMENTWISE: "element-wise",
    BROADCAST: "a broadcast",
    INJECTIVE: "injective",
    REDUCTION: "a reduction",
    OUT_FUSABLE: "a convolution, product or normalisation",
    OPAQUE: "opaque",
}
_ARITHMETIC = (
    tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod, tirx.Min,
    tirx.Max, tirx.Select, tirx.Cast,
)  # fmt: skip


@dataclass(frozen=True)
class Reading:
    """How a kernel reads one operand.

    Args:
        same_point: every element is read where the result of the same index is written.
        repeats: how often each element is read, on average; 1 where extents are not known, and at
            least 1 unless the operand is gathered from.
        gathered: which elements are read depends on the values of another operand.
    """

    same_point: bool
    repeats: float
    gathered: bool = False


@dataclass(frozen=True)
class KernelFacts:
    """One kernel.

    Args:
        name: its name in the module.
        func: the kernel.
        pattern: ``op_pattern``, see the module text.
        family: annotation of the first block that has one: which schedule it is written for.
    """

    name: str
    func: tirx.PrimFunc
    pattern: int
    family: str | None

    @property
    def kind(self) -> str:
        """The pattern in words."""
        return _KINDS.get(self.pattern, "opaque")

    @property
    def fusable(self) -> bool:
        """Whether the kernel can be put together with others at all."""
        return isinstance(self.func.body, s_tir.SBlockRealize) and self.pattern != OPAQUE

    @cached_property
    def static(self) -> bool:
        """Whether the kernel's code tells all extents."""
        return is_static(self.func)

    @cached_property
    def is_reshape(self) -> bool:
        """Whether it only copies in another shape, which alone would be a view."""
        return self.pattern == INJECTIVE and copies_in_another_shape(self.func)

    @cached_property
    def _blocks(self) -> tuple[_Block, ...]:
        return tuple(_leaf_blocks(self.func))

    @cached_property
    def operations(self) -> float:
        """Arithmetic per element of the first result; calls of functions count as several."""
        extent = _elements(self._results[0]) if self._results else 1
        return sum(block.operations * block.iterations for block in self._blocks) / max(1, extent)

    @cached_property
    def formula(self) -> tuple[float, tuple[float, ...]]:
        """Operations of an element's formula written out, and how often each operand stands in it.

        Reductions are stored, so what is computed from them reads one value.
        """
        written: dict[Any, tuple[float, dict[Any, float]]] = {}
        for block in self._blocks:
            length, counts = block.operations + 1.0, dict[Any, float]()
            for source, _ in block.loads:
                inner, inside = written.get(source, (0.0, {source: 1.0}))
                length += inner
                for operand, count in inside.items():
                    counts[operand] = counts.get(operand, 0.0) + count
            written[block.target] = (length, counts) if block.parallel else (1.0, counts)
        results = [written[target] for target in self._results]
        total = sum(length for length, _ in results)
        operands = self.func.params
        return total, tuple(
            sum(counts.get(operand, 0.0) for _, counts in results) for operand in operands
        )

    @cached_property
    def keeps_last_axis(self) -> bool:
        """Whether elements along the last axis of the result come from such of the operands."""
        return all(
            _along(indices, block.indices[-1])
            for block in self._blocks
            if block.indices
            for _, indices in block.loads
        )

    @cached_property
    def _results(self) -> list[Any]:
        written = {block.target for block in self._blocks}
        return [param for param in self.func.params if param in written]

    def reading(self, operand: int) -> Reading:
        """How parameter number ``operand`` is read."""
        if operand not in self._readings:
            self._readings[operand] = self._read(self.func.params[operand])
        return self._readings[operand]

    @cached_property
    def _readings(self) -> dict[int, Reading]:
        return {}

    def _read(self, param: Any) -> Reading:
        same, reads, gathered = True, 0.0, False
        for block in self._blocks:
            for source, indices in block.loads:
                if not source.same_as(param):
                    continue
                reads += block.iterations
                gathered |= any(map(_loads, indices))
                same &= block.target in self._results and _same_point(
                    indices, block.indices, param.shape, block.target.shape
                )
        repeats = reads / max(1, _elements(param))
        return Reading(same, repeats if gathered else max(1.0, repeats), gathered)


@dataclass(frozen=True)
class _Block:
    """A block without others inside: its store, its loads, how often it runs."""

    target: Any
    indices: tuple[Any, ...]
    loads: tuple[tuple[Any, tuple[Any, ...]], ...]
    operations: int
    iterations: int
    parallel: bool


def kernel_facts(mod: tvm.IRModule) -> dict[str, KernelFacts]:
    """The facts of every kernel of ``mod`` by name."""
    annotated = relax.transform.AnnotateTIROpPattern()(mod)
    facts = {}
    for var, func in mod.functions.items():
        if not isinstance(func, tirx.PrimFunc):
            continue
        name = var.name_hint
        pattern = int(annotated[name].attrs["op_pattern"])
        made_opaque = func.attrs and "op_pattern" in func.attrs
        # Not over open extents: schedules of reshapes and gathers there are not simplified enough.
        if pattern == OPAQUE and not made_opaque and is_static(func) and _pointwise(func):
            pattern = INJECTIVE
        facts[name] = KernelFacts(name, func, pattern, _family(func))
    return facts


def is_static(func: tirx.PrimFunc) -> bool:
    """Whether a kernel's parameters are tensors of known extents, all of them."""
    return all(
        isinstance(param.ty, tirx.buffer.BufferType)
        and all(isinstance(extent, tirx.IntImm) for extent in param.shape)
        for param in func.params
    )


def copies_in_another_shape(func: tirx.PrimFunc) -> bool:
    """Whether a kernel of known extents copies its operand and does no more.

    Kernels of open extents are not asked: TVM's analysis fails on some of them.
    """
    return is_static(func) and bool(relax.analysis.has_reshape_pattern(func))


def _pointwise(func: tirx.PrimFunc) -> bool:
    """Whether every block stores one element at its own point: gathers and the like."""
    if not isinstance(func.body, s_tir.SBlockRealize):
        return False
    blocks = list(_leaf_blocks(func))
    return bool(blocks) and all(block.parallel for block in blocks)


def _family(func: tirx.PrimFunc) -> str | None:
    found: list[str] = []

    def visit(block: Any) -> None:
        if FAMILY_ATTR in block.annotations:
            found.append(str(block.annotations[FAMILY_ATTR]))

    tvm_ffi.structural_walk(func.body, [(s_tir.SBlock, visit)], order="pre")
    return found[0] if found else None


def _leaf_blocks(func: tirx.PrimFunc) -> list[_Block]:
    found: list[_Block] = []

    def visit(block: Any) -> None:
        if block.iter_vars or isinstance(block.body, tirx.BufferStore):
            found.append(_block(block))

    tvm_ffi.structural_walk(func.body, [(s_tir.SBlock, visit)], order="pre")
    return found


def _block(block: Any) -> _Block:
    loads: list[tuple[Any, tuple[Any, ...]]] = []
    operations = [0]

    def load(node: Any) -> None:
        loads.append((node.source, tuple(node.indices)))

    def call(_: Any) -> None:
        operations[0] += _CALL_OPERATIONS

    def other(_: Any) -> None:
        operations[0] += 1

    store = block.body
    plain = isinstance(store, tirx.BufferStore)
    tvm_ffi.structural_walk(
        store.value if plain else store,
        [(tvm.ir.TensorLoad, load), (tvm.ir.Call, call), *((kind, other) for kind in _ARITHMETIC)],
    )
    variables = [item.var for item in block.iter_vars]
    indices = tuple(store.indices) if plain else ()
    data_parallel = all(item.iter_type == tirx.IterVar.DataPar for item in block.iter_vars)
    own_point = plain and _same_point(tuple(variables), indices, store.buffer.shape, None)
    written = block.writes[0].source if len(block.writes) else None
    return _Block(
        target=store.buffer if plain else written,
        indices=indices,
        loads=tuple(loads),
        operations=operations[0],
        iterations=prod(_extent(item.dom.extent) for item in block.iter_vars),
        parallel=data_parallel and own_point and block.init is None,
    )


def _same_point(read: Any, written: Any, shape: Any, other: Any) -> bool:
    """Whether two lists of indices are the same, and the shapes too where both are given."""
    if len(read) != len(written):
        return False
    if other is not None and not all(map(_equal, shape, other)):
        return False
    return all(
        index.same_as(store) or (isinstance(extent, tirx.IntImm) and int(extent.value) == 1)
        for index, store, extent in zip(read, written, shape, strict=True)
    )


def _along(indices: tuple[Any, ...], last: Any) -> bool:
    """Whether a load moves with ``last`` along its last axis alone, or not at all."""
    moving = [at for at, index in enumerate(indices) if _uses(index, last)]
    return not moving or (moving == [len(indices) - 1] and bool(indices[-1].same_as(last)))


def _loads(index: Any) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(index, [(tvm.ir.TensorLoad, found.append)])
    return bool(found)


def _uses(index: Any, variable: Any) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(index, [(tirx.Var, lambda var: found.append(var))])
    return any(var.same_as(variable) for var in found)


def _equal(a: Any, b: Any) -> bool:
    return bool(tvm_ffi.structural_equal(a, b))


def _extent(extent: Any) -> int:
    return int(extent.value) if isinstance(extent, tirx.IntImm) else 1


def _elements(buffer: Any) -> int:
    return prod(_extent(extent) for extent in buffer.shape)
