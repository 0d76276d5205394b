"""Reads a fused kernel: its anchor block, and everything after it as one expression.

FuseTIR leaves ``anchor -> element-wise block -> ... -> result`` with intermediate buffers. The
schedules here emit their own loop nests, so they need the chain as a function
``result[i] = f(anchor[i], other parameters, i)``; :class:`FusedKernel` is that function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uif_tvm.target.schedule import FAMILY_ATTR, OTHER_FAMILY
from uif_tvm.target.spec import Refusal

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

Load = Callable[[Any, list[Any]], Any]


@dataclass(frozen=True)
class FusedKernel:
    """An anchor block and its element-wise followers.

    Args:
        func: the fused function.
        anchor: the block that carries the family annotation.
        family: value of that annotation.
        inputs: parameters that the anchor reads, in order of first use.
        result: the parameter that the function writes.
        chain: intermediate buffer -> (index variables, value).
    """

    func: PrimFunc
    anchor: Any
    family: str
    inputs: tuple[Any, ...]
    result: Any
    chain: dict[Any, tuple[list[Any], Any]]

    @property
    def raw(self) -> Any:
        """The buffer that the anchor writes."""
        return self.anchor.writes[0].source

    @property
    def fused_blocks(self) -> int:
        """Element-wise blocks around the anchor."""
        return len(self.chain)

    def full_operands(self) -> list[Any]:
        """Parameters of the result's shape that the epilogue reads, residuals mostly."""
        skip = (*self.inputs, self.result)
        return [
            param
            for param in self.func.params
            if not any(_same(param, buffer) for buffer in skip)
            and shape_of(param) == shape_of(self.raw)
        ]

    def epilogue(self, indices: list[Any], anchor_value: Any) -> tuple[list[Any], Any]:
        """The result at ``indices``, given the anchor's value there.

        Returns:
            statements that bind intermediate values, and the result as an expression over them.
        """
        from tvm import tirx

        values = {self.raw: anchor_value}
        statements = []

        def load(source: Any, at: list[Any]) -> Any:
            if source in values:
                return values[source]
            value = self.expand(source, at, load)
            return tirx.BufferLoad(source, at) if value is None else value

        for buffer in self.chain:
            if shape_of(buffer) != shape_of(self.raw):
                continue
            value = self.expand(buffer, indices, load)
            values[buffer] = tirx.Var(str(buffer.name), str(buffer.dtype))
            statements.append(tirx.Bind(values[buffer], value))
        return statements, values[self.result]

    def expand(self, buffer: Any, at: list[Any], load: Load) -> Any:
        """An intermediate's value at ``at`` with its reads made by ``load``; ``None`` if none."""
        if buffer not in self.chain:
            return None
        variables, value = self.chain[buffer]
        return rebuild(value, dict(zip(variables, at, strict=True)), load)


class UnreadableError(Exception):
    """The function is no anchor followed by an element-wise chain; carries the reason."""


def shape_of(buffer: Any) -> tuple[int, ...]:
    """Static shape of a buffer."""
    return tuple(int(extent) for extent in buffer.shape)


def shape_of_or_none(buffer: Any) -> tuple[int, ...] | None:
    """Shape of a buffer when it is static."""
    from tvm import tirx

    if any(not isinstance(extent, tirx.IntImm) for extent in buffer.shape):
        return None
    return shape_of(buffer)


def read_fused(
    func: PrimFunc, families: tuple[str, ...], stage: str | None = None
) -> FusedKernel | Refusal:
    """``func`` as a :class:`FusedKernel` whose anchor's family is one of ``families``.

    Blocks of family ``stage`` compute what the anchor reads, and count as parts of it.
    """
    from tvm import s_tir

    if not isinstance(func.body, s_tir.SBlockRealize):
        return Refusal("fused-shape", "no root block")
    try:
        anchor, family, chain, stages = None, "", {}, []
        leaves = list(_leaf_blocks(func.body.block.body))
        labels = {str(block.annotations.get(FAMILY_ATTR)) for block in leaves}
        if not labels & set(families):
            return Refusal(OTHER_FAMILY, f"no block of family {' or '.join(families)}")
        for block in leaves:
            if shape_of_or_none(block.writes[0].source) is None:
                raise UnreadableError(f"extents of {block.name_hint} are known at run time only")
            label = block.annotations.get(FAMILY_ATTR)
            if label is not None and str(label) in families:
                if anchor is not None:
                    raise UnreadableError("two anchor blocks")
                anchor, family = block, str(label)
            elif stage is not None and str(label) == stage:
                stages.append(block)
            else:
                written = block.writes[0].source
                # A scalar's block has a variable that always is 0; nothing indexes by it.
                scalar = not shape_of(written)
                variables = [] if scalar else [item.var for item in block.iter_vars]
                chain[written] = (variables, _elementwise_value(block))
        if anchor is None:
            raise UnreadableError("no anchor block")
        inputs, result = _inputs([*stages, anchor]), _result(func, anchor, chain)
        if not inputs:
            raise UnreadableError("it reads nothing: every window lies in the padding")
        kernel = FusedKernel(func, anchor, family, inputs, result, chain)
        _check(kernel)
    except UnreadableError as reason:
        return Refusal("fused-shape", str(reason))
    return kernel


def _leaf_blocks(stmt: Any) -> list[Any]:
    """The blocks of a sequence of plain loop nests, in order."""
    from tvm import s_tir, tirx

    found = []
    for nest in stmt.seq if isinstance(stmt, tirx.SeqStmt) else [stmt]:
        loops = []
        while isinstance(nest, tirx.For):
            loops.append(nest.loop_var)
            nest = nest.body
        if not isinstance(nest, s_tir.SBlockRealize):
            raise UnreadableError(f"a {type(nest).__name__} where a block was expected")
        moving = [value for value in nest.iter_values if not _is_zero(value)]
        if len(moving) != len(loops) or not all(map(_same, moving, loops)):
            raise UnreadableError(f"block {nest.block.name_hint} is not a plain loop nest")
        found.append(nest.block)
    return found


def _elementwise_value(block: Any) -> Any:
    """The value that an element-wise block stores at its own iteration point."""
    from tvm import tirx

    body, variables = block.body, [item.var for item in block.iter_vars]
    if block.init is not None or not isinstance(body, tirx.BufferStore):
        raise UnreadableError(f"block {block.name_hint} is not element-wise")
    if not _identity(body.indices, variables, shape_of(body.buffer)):
        raise UnreadableError(f"block {block.name_hint} does not store at its own indices")
    return body.value


def _same(a: Any, b: Any) -> bool:
    return bool(a.same_as(b))


def _is_zero(index: Any) -> bool:
    from tvm import tirx

    return isinstance(index, tirx.IntImm) and int(index.value) == 0


def _identity(indices: Any, variables: list[Any], shape: tuple[int, ...]) -> bool:
    """Whether ``indices`` are the variables themselves (or 0 along an axis of extent 1)."""
    if not shape:
        return not indices
    return len(indices) == len(variables) and all(
        _same(index, var) or (extent == 1 and _is_zero(index))
        for index, var, extent in zip(indices, variables, shape, strict=True)
    )


def _inputs(parts: list[Any]) -> tuple[Any, ...]:
    """What the anchor and its stages read and do not write, in order of first use."""
    written = [block.writes[0].source for block in parts]
    found: list[Any] = []
    for region in (region for block in parts for region in block.reads):
        if not any(_same(region.source, known) for known in (*written, *found)):
            found.append(region.source)
    return tuple(found)


def _result(func: PrimFunc, anchor: Any, chain: dict[Any, Any]) -> Any:
    buffers = (anchor.writes[0].source, *chain)
    written = [b for b in buffers if any(_same(b, param) for param in func.params)]
    if len(written) != 1:
        raise UnreadableError(f"{len(written)} parameters are written, expected one")
    return written[0]


def _check(kernel: FusedKernel) -> None:
    """Shapes are static, and full-size intermediates are read at the point being computed."""
    from tvm import tirx

    params, shape = kernel.func.params, shape_of_or_none(kernel.raw)
    if shape is None or any(shape_of_or_none(param) is None for param in params):
        raise UnreadableError("a shape is not static")
    if any(not any(_same(b, param) for param in params) for b in kernel.inputs):
        raise UnreadableError("the anchor reads an intermediate buffer")
    if shape_of(kernel.raw) != shape_of(kernel.result):
        raise UnreadableError("the result's shape differs from the anchor's")
    point = [tirx.Var(f"i{axis}", "int64") for axis in range(len(shape))]
    elsewhere = []  # exceptions do not pass through TVM's mapper

    def load(source: Any, at: list[Any]) -> Any:
        full = _same(source, kernel.raw) or (source in kernel.chain and shape_of(source) == shape)
        if full and not _identity(at, point, shape):
            elsewhere.append(str(source.name))
        value = None if full else kernel.expand(source, at, load)
        return tirx.BufferLoad(source, at) if value is None else value

    for buffer in kernel.chain:
        if shape_of(buffer) == shape:
            kernel.expand(buffer, point, load)
    if elsewhere:
        raise UnreadableError(f"{elsewhere[0]} is read at another point than it is written")


def rebuild(expr: Any, bound: dict[Any, Any], load: Load) -> Any:
    """``expr`` with variables replaced through ``bound`` and buffer reads made by ``load``."""
    import tvm
    import tvm_ffi
    from tvm import tirx

    return tvm_ffi.structural_map(
        expr,
        [
            (tirx.Var, lambda var: bound.get(var, var)),
            (tvm.ir.TensorLoad, lambda node: load(node.source, list(node.indices))),
        ],
    )
