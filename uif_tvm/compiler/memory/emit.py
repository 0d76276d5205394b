"""The memory plan in the code: every allocation of ``main`` becomes a tensor at a fixed place.

    main(x, ws) { a = alloc_tensor(...); k(x, a); y = alloc_tensor(...); k2(a, y); return (y,) }
    ->  main(x, ws, memory, y) { a = memory[0]; k(x, a); k2(a, y); return () }

``memory`` is a tuple of tensors over the engine's arenas (see ``uif_tvm.artifact.memory_plan``).
A result whose memory is one allocation of known size is written where the caller wants it; what is
an input, a weight or part of another result is returned, and the engine copies it.

Tensors of open extents get the bytes that they need at the upper ends of their ranges, and are
made in a run over those bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax, sym, tirx
from tvm.ir import Range

from uif_tvm.artifact.memory_plan import (
    ELEMENT_BYTES,
    Arena,
    ArenaTensor,
    MemoryPlan,
)
from uif_tvm.compiler.memory.calling import (
    direct_results,
    fetched,
    kept_fields,
    result_params,
    result_tensors,
    shaped,
    unique_names,
)
from uif_tvm.compiler.memory.checker import check
from uif_tvm.compiler.memory.liveness import GETTER, Allocation, Liveness, analyse
from uif_tvm.compiler.memory.planner import plan
from uif_tvm.compiler.memory.problem import Buffer, Plan
from uif_tvm.compiler.memory.workspace import WORKSPACE

#: A tensor that is larger than this at the upper ends of the ranges has no place: sizes such as
#: min(n, 10^9) have an upper end that no run comes near.
LARGEST_OPEN = 1 << 32

_VIEW = "runtime.TVMTensorCreateView"
#: Functions that hand out tensors over memory that is there already.
FETCHERS = frozenset({GETTER, _VIEW})


@dataclass
class Planned:
    """A planned ``main``.

    Args:
        mod: the module, rewritten.
        plan: for the artifact.
        report: ``memory_plan`` of the compile report.
        left: names of the allocations that are still made in a run.
        open_places: whether places are kept for tensors of open extents.
        refused_bytes: the largest such tensor, where it is too large to keep a place for.
    """

    mod: tvm.IRModule
    plan: MemoryPlan
    report: dict[str, Any]
    left: list[str] = field(default_factory=list)
    open_places: bool = False
    refused_bytes: int = 0


def plan_memory(mod: tvm.IRModule, tier: str, time_limit_s: float, exact: bool) -> Planned:
    """Plan the memory of ``main``, after ``CallTIRRewrite`` and with workspaces as arguments.

    Args:
        tier: name of the tier that holds the arena.
        time_limit_s, exact: see :func:`planner.plan`.

    Raises:
        CompileError: the plan is wrong: a fault of the planner.
    """
    main = mod["main"]
    live = analyse(main)
    results = direct_results(main, live)
    sizes = _sizes(main, live, results)
    largest = max((size for item, size in sizes.items() if not item.is_static), default=0)
    if largest > LARGEST_OPEN:
        sizes = {item: size for item, size in sizes.items() if item.is_static}
    places = {item: index for index, item in enumerate(sizes)}
    names = unique_names(places)
    buffers = [Buffer(names[item], item.first, item.end, max(1, sizes[item])) for item in places]
    found = plan(buffers, time_limit_s=time_limit_s, exact=exact)
    check(buffers, found)
    left = [item for item in live.allocations if item not in places and item not in results]
    tensors = tuple(_tensor(item, sizes[item], found.offsets[names[item]]) for item in places)
    written = MemoryPlan(
        arenas=(Arena(tier, found.arena_bytes),) if tensors else (),
        tensors=tensors,
        results=tuple(result_tensors(main, results, len(live.outputs))),
    )
    rewritten = _Rewrite(main, places, results).function()
    mod = tvm.IRModule(dict(mod.functions), attrs=mod.attrs)
    mod["main"] = rewritten
    report = _report(tier, live, names, buffers, found)
    return Planned(
        mod,
        written,
        report,
        left=[item.source for item in left],
        open_places=not all(item.is_static for item in places),
        refused_bytes=largest if largest > LARGEST_OPEN else 0,
    )


def _sizes(
    main: relax.Function, live: Liveness, results: dict[Allocation, int]
) -> dict[Allocation, int]:
    """Allocations that get a place, with their bytes, at the most where extents are open."""
    if live.functions:
        return {}
    # What is returned as it is must be memory of its own when its size is settled in a run.
    returned: set[Allocation] = set()
    for index, origin in enumerate(live.outputs):
        if origin.exact not in results or results[origin.exact] != index:
            returned |= origin.touches
    bound = _upper_bound(main)
    sizes = {}
    for item in live.allocations:
        if item in results or item.dtype not in ELEMENT_BYTES:
            continue
        if item.is_static:
            sizes[item] = math.prod(item.shape) * ELEMENT_BYTES[item.dtype]
        elif item not in returned:
            most = bound(item.shape)
            if most is not None:
                sizes[item] = most * ELEMENT_BYTES[item.dtype]
    return sizes


def _upper_bound(main: relax.Function) -> Callable[[Sequence[Any]], int | None]:
    """Most elements of a shape over the ranges of ``main``'s symbolic sizes; None: no limit."""
    attrs = main.attrs or {}
    limits = attrs.get("tir_var_upper_bound", {})
    least = attrs.get("tir_var_lower_bound", {})
    analyzer, limited = sym.Analyzer(), set()
    for param in main.params:
        for var in relax.analysis.definable_tir_vars_in_type(param.ty):
            if var.name in limits and var not in limited:
                low, high = int(least.get(var.name, 0)), int(limits[var.name])
                analyzer.bind(var, Range(low, high + 1))
                limited.add(var)

    def bound(shape: Sequence[Any]) -> int | None:
        total = 1
        for extent in shape:
            if isinstance(extent, int):
                total *= extent
                continue
            if set(tirx.analysis.undefined_vars(extent)) - limited:
                return None
            most = int(analyzer.const_int_bound(extent).max_value)
            if most >= sym.ConstIntBound.POS_INF:
                return None
            total *= max(most, 0)
        return total

    return bound


def _tensor(item: Allocation, size: int, offset: int) -> ArenaTensor:
    if item.is_static:
        return ArenaTensor(0, offset, item.shape, item.dtype)
    return ArenaTensor(0, offset, (size,), "uint8")


class _Rewrite:
    """Rebuilds ``main`` over the plan; see the module text."""

    def __init__(
        self,
        main: relax.Function,
        places: dict[Allocation, int],
        results: dict[Allocation, int],
    ) -> None:
        self._main = main
        self._memory = relax.Var("memory", relax.AnyType())
        self._places = {item.var: (item, index) for item, index in places.items()}
        self._params = result_params(main, results)
        self._written = set(results.values())

    def function(self) -> relax.Function:
        """``main`` with two more kinds of parameters, and fewer results."""
        main = self._main
        seq = main.body
        kept = kept_fields(main, self._written)
        if kept is None:
            body = self._sequence(seq, seq.body, None)
            returned = main.ret_ty
        else:
            fields, returned = kept
            dropped = seq.body if isinstance(seq.body, relax.Var) else None
            body = self._sequence(seq, relax.Tuple(fields), dropped)
        params = [*main.params, self._memory, *self._params.values()]
        return relax.Function(params, body, returned, main.is_pure, main.attrs)

    def _sequence(self, seq: Any, body: Any, dropped: Any) -> Any:
        """``seq`` with ``body`` as its value, without the binding of ``dropped``."""
        blocks = []
        for block in seq.blocks:
            bindings: list[Any] = []
            for binding in block.bindings:
                if dropped is not None and binding.var.same_as(dropped):
                    continue
                bindings += self._binding(binding)
            blocks.append(relax.BindingBlock(bindings))
        new = relax.SeqExpr(blocks, body)
        relax.expr._update_type(new, body.ty)
        return new

    def _binding(self, binding: Any) -> list[Any]:
        value, var = binding.value, binding.var
        if isinstance(value, relax.If):
            branches = [
                self._sequence(branch, branch.body, None)
                for branch in (value.true_branch, value.false_branch)
            ]
            branched = relax.If(value.cond, *branches)
            relax.expr._update_type(branched, value.ty)
            return [relax.VarBinding(var, branched)]
        if var in self._params:
            return [relax.VarBinding(var, shaped(self._params[var], var.ty))]
        if var not in self._places:
            return [binding]
        item, index = self._places[var]
        if item.is_static:
            return [relax.VarBinding(var, fetched(self._memory, index, var.ty))]
        raw = relax.Var(f"{var.name}_bytes", relax.TensorType(dtype="uint8", ndim=1))
        view = relax.Call(
            relax.ExternFunc(_VIEW),
            [raw, value.args[0], value.args[1], relax.prim_value(0)],
            None,
            [var.ty],
        )
        relax.expr._update_type(view, var.ty)
        return [
            relax.VarBinding(raw, fetched(self._memory, index, raw.ty)),
            relax.VarBinding(var, view),
        ]


def _report(
    tier: str,
    live: Liveness,
    names: dict[Allocation, str],
    buffers: Sequence[Buffer],
    found: Plan,
) -> dict[str, Any]:
    """``memory_plan`` of the compile report."""
    rows = [
        {
            "name": buffer.name,
            "source": item.source,
            "kind": "workspace" if item.source == WORKSPACE else "activation",
            "first": buffer.first,
            "end": buffer.end,
            "size": buffer.size,
            "offset": found.offsets[buffer.name],
        }
        for item, buffer in zip(names, buffers, strict=True)
    ]
    return {
        "tiers": [
            {
                "tier": tier,
                "arena_bytes": found.arena_bytes,
                "bound_bytes": found.bound_bytes,
                "method": found.method,
                "buffers": rows,
            }
        ],
        "steps": list(live.steps),
        "aliases": [
            {"name": name, "of": names.get(item, item.source), "why": "reshaped, not copied"}
            for name, item in live.views
        ],
    }
