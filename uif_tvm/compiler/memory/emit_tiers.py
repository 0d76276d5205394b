"""Several memories in the code: an arena for each tier, and copies between them.

    a = memory[0]; k(w, a); k2(a, b)
    ->  transfer_host_to_device(weights[3], memory[1]); k(memory[1], memory[0]);
        transfer_device_to_on_chip(memory[0], memory[2]); k2(memory[2], memory[4])

Every argument of a kernel becomes a tensor over the place where its value is at that step (see
``tiers.Tiering``); reshaped values get tensors of their own over the same bytes. Weights in a tier
that kernels cannot address stay where the file is mapped, and are copied from there. Weights that
live in another tier are copied into its arena when the arena is made.

Only straight code with known sizes is spread over tiers: a value that moves must be known under
every name it has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Call

from uif_tvm.artifact.memory_plan import (
    ELEMENT_BYTES,
    Arena,
    ArenaTensor,
    MemoryPlan,
    ResidentWeight,
)
from uif_tvm.compiler.memory.calling import (
    direct_results,
    fetched,
    kept_fields,
    result_params,
    result_tensors,
    shaped,
    static_shape_of,
    unique_names,
)
from uif_tvm.compiler.memory.checker import check
from uif_tvm.compiler.memory.copies import CopyKernels
from uif_tvm.compiler.memory.emit import Planned
from uif_tvm.compiler.memory.liveness import Allocation, Liveness, analyse, is_step
from uif_tvm.compiler.memory.problem import Buffer
from uif_tvm.compiler.memory.tiers import Stay, Tiering, Transfer, Value, reachable
from uif_tvm.compiler.memory.workspace import WORKSPACE
from uif_tvm.errors import CompileError
from uif_tvm.target.spec import MemoryTier

Assign = Callable[[Sequence[Value], int, Sequence[MemoryTier]], Tiering]


def plan_tiers(
    mod: tvm.IRModule,
    tiers: Sequence[MemoryTier],
    assign: Assign,
    copies: CopyKernels,
) -> Planned | str:
    """Plan the memory of ``main`` over ``tiers``, after ``CallTIRRewrite``.

    Args:
        assign: decides where every value is at every step.
        copies: makes the kernels that transfers call.

    Returns:
        The plan, or why this module's values cannot move between tiers.

    Raises:
        CompileError: the plan of a tier is wrong.
    """
    main = mod["main"]
    live = analyse(main)
    results = direct_results(main, live)
    reason = _obstacle(main, live, results)
    if reason:
        return reason
    items = [item for item in live.allocations if item not in results]
    items += live.weights.values()
    # What is only returned, by the step after the last, is not moved for that.
    uses = {item: tuple(use for use in item.uses if use < len(live.steps)) for item in items}
    items = [item for item in items if uses[item]]
    names = unique_names(items)
    values = [Value(names[item], _kind(item), max(1, _nbytes(item)), uses[item]) for item in items]
    tiering = assign(values, len(live.steps), tiers)
    for tier, found in tiering.plans.items():
        stays = [stay for stay in tiering.stays if stay.tier == tier]
        sizes = {value.name: value for value in values}
        check(
            [
                Buffer(s.name, s.first, s.end, sizes[s.value].size, sizes[s.value].alignment)
                for s in stays
            ],
            found,
        )
    emitter = _Emitter(main, live, results, names, tiering, tiers, copies)
    function = emitter.function()
    copies.record()
    new = tvm.IRModule({**dict(mod.functions), **copies.functions}, attrs=mod.attrs)
    new["main"] = function
    plan = MemoryPlan(
        arenas=tuple(Arena(tier, tiering.plans[tier].arena_bytes) for tier in emitter.arenas),
        tensors=tuple(emitter.tensors),
        results=tuple(result_tensors(main, results, len(live.outputs))),
        resident=tuple(emitter.resident),
    )
    return Planned(new, plan, _report(live, names, values, tiering))


def _obstacle(main: relax.Function, live: Liveness, results: dict[Allocation, int]) -> str:
    """Why values of ``main`` cannot move; empty when they can."""
    for block in main.body.blocks:
        for binding in block.bindings:
            if isinstance(binding.value, relax.If):
                return "branches"
    if live.functions:
        return "functions that are values"
    for item in (*live.allocations, *live.weights.values()):
        if not item.is_static or item.dtype not in ELEMENT_BYTES:
            return f"the size of {item.source} is known in a run only"
    for var, origin in live.origins.items():
        loose = origin.exact is None and origin.touches
        if loose and not var.same_as(main.body.body):
            return f"what {var.name} shares memory with is not known"
    for origin in live.outputs:
        made = origin.exact
        if made is None and origin.touches:
            return "a result may share memory with several values"
        if made is not None and made.weight is None and made not in results:
            return f"result {made.source} cannot be written directly"
    return ""


def _kind(item: Allocation) -> str:
    if item.weight is not None:
        return "weights"
    return "workspace" if item.source == WORKSPACE else "activations"


def _nbytes(item: Allocation) -> int:
    size: int = math.prod(item.shape) * ELEMENT_BYTES[item.dtype]
    return size


class _Emitter:
    """Rebuilds ``main`` along the schedule of a tiering."""

    def __init__(
        self,
        main: relax.Function,
        live: Liveness,
        results: dict[Allocation, int],
        names: Mapping[Allocation, str],
        tiering: Tiering,
        tiers: Sequence[MemoryTier],
        copies: CopyKernels,
    ) -> None:
        self._main, self._live, self._results, self._names = main, live, results, names
        self._tiering, self._copies = tiering, copies
        self._tiers = {tier.name: tier for tier in tiers}
        self._items = {name: item for item, name in names.items()}
        self._stays = {stay.name: stay for stay in tiering.stays}
        self._arrived = {transfer.destination for _, transfer in tiering.transfers}
        self._memory = relax.Var("memory", relax.AnyType())
        self._params = result_params(main, results)
        self._position = 0
        self._bindings: list[Any] = []
        self._fetched: dict[tuple[str, tuple[int, ...]], Any] = {}
        #: Names of the tiers that have an arena, in order.
        self.arenas: list[str] = []
        self.tensors: list[ArenaTensor] = []
        self.resident: list[ResidentWeight] = []

    def function(self) -> relax.Function:
        """The new ``main``."""
        main = self._main
        kept = kept_fields(main, set(self._results.values()))
        for block in main.body.blocks:
            for binding in block.bindings:
                if kept is None or not binding.var.same_as(main.body.body):
                    self._binding(binding)
        self._transfers()
        if kept is None:
            body, returned = main.body.body, main.ret_ty
        else:
            fields, returned = kept
            body = relax.Tuple([self._placed(field) for field in fields])
        seq = relax.SeqExpr([relax.BindingBlock(self._bindings)], body)
        relax.expr._update_type(seq, returned)
        params = [*main.params, self._memory, *self._params.values()]
        return relax.Function(params, seq, returned, main.is_pure, main.attrs)

    def _binding(self, binding: Any) -> None:
        """Values with a place need no binding: each use names the place."""
        value, var = binding.value, binding.var
        origin = self._live.origins.get(var)
        if origin is not None and origin.exact is not None:
            return
        if isinstance(value, Call):
            if is_step(value):
                self._transfers()
                placed = [self._placed(arg) for arg in value.args]
                self._position += 1
            else:
                placed = [self._placed(arg) for arg in value.args]
            call = Call(value.op, placed, value.attrs, value.ty_args)
            relax.expr._update_type(call, value.ty)
            binding = relax.VarBinding(var, call)
        self._bindings.append(binding)

    def _transfers(self) -> None:
        """The transfers that the schedule has next."""
        schedule = self._tiering.schedule
        while self._position < len(schedule):
            item = schedule[self._position]
            if not isinstance(item, Transfer):
                return
            self._transfer(item)
            self._position += 1

    def _transfer(self, transfer: Transfer) -> None:
        item = self._items[transfer.value]
        source = self._at(self._stays[transfer.source], item.var.ty)
        destination = self._at(self._stays[transfer.destination], item.var.ty)
        name = f"transfer_{transfer.source_tier}_to_{transfer.destination_tier}"
        kernel = self._copies.kernel(name, transfer.value, item.shape, item.dtype)
        call = Call(kernel, [source, destination])
        void = relax.TupleType([])
        relax.expr._update_type(call, void)
        self._bindings.append(relax.VarBinding(relax.Var("_", void), call))

    def _placed(self, expr: Any) -> Any:
        """An argument as a tensor over the place where its value is now."""
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self._placed(field) for field in expr.fields])
        origin = self._live.origins.get(expr) if isinstance(expr, relax.Var) else None
        item = origin.exact if origin is not None else None
        if item is None:
            return expr
        if item in self._results:
            return self._bound(expr.name, shaped(self._params[item.var], expr.ty))
        if item.weight is not None and self._position >= len(self._tiering.schedule):
            return self._weight(item.weight, item, expr.ty)  # returned as it is
        stay = self._tiering.stay_at(self._names[item], self._position, self._tiers)
        return self._at(stay, expr.ty)

    def _at(self, stay: Stay, ty: Any) -> Any:
        """A tensor of type ``ty`` over the bytes of ``stay``."""
        item = self._items[stay.value]
        if item.weight is not None and not reachable(self._tiers[stay.tier]):
            return self._weight(item.weight, item, ty)
        shape = static_shape_of(ty)
        if shape is None:
            raise CompileError(f"value {stay.value} has no fixed shape", code="UIF-COMPILE-MEMORY")
        key = (stay.name, shape)
        if key not in self._fetched:
            index = self._tensor(stay, shape, item.dtype)
            if item.weight is not None and stay.name not in self._arrived:
                self._stay_for_good(stay, item)
            self._fetched[key] = self._bound(stay.value, fetched(self._memory, index, ty))
        return self._fetched[key]

    def _tensor(self, stay: Stay, shape: tuple[int, ...], dtype: str) -> int:
        if stay.tier not in self.arenas:
            self.arenas.append(stay.tier)
        offset = self._tiering.plans[stay.tier].offsets[stay.name]
        self.tensors.append(ArenaTensor(self.arenas.index(stay.tier), offset, shape, dtype))
        return len(self.tensors) - 1

    def _stay_for_good(self, stay: Stay, item: Allocation) -> None:
        """A weight that no transfer brings is copied to its place when the arena is made."""
        if item.weight is not None and item.weight not in {each.weight for each in self.resident}:
            index = self._tensor(stay, item.shape, item.dtype)
            self.resident.append(ResidentWeight(item.weight, index))

    def _weight(self, index: int, item: Allocation, ty: Any) -> Any:
        """A weight where the file is mapped."""
        whole = self._bound(item.var.name, fetched(self._main.params[-1], index, item.var.ty))
        return whole if static_shape_of(ty) == item.shape else self._bound("", shaped(whole, ty))

    def _bound(self, name: str, value: Any) -> Any:
        if isinstance(value, relax.Var):
            return value
        var = relax.Var(name or "view", value.ty)
        self._bindings.append(relax.VarBinding(var, value))
        return var


def _report(
    live: Liveness, names: Mapping[Allocation, str], values: Sequence[Value], tiering: Tiering
) -> dict[str, Any]:
    """``memory_plan`` of the compile report."""
    sizes = {value.name: value for value in values}
    sources = {name: item.source for item, name in names.items()}
    arrived = {transfer.destination for _, transfer in tiering.transfers}
    kinds = {"weights": "constant", "activations": "activation", "workspace": "workspace"}

    def row(stay: Stay, offset: int) -> dict[str, Any]:
        return {
            "name": stay.name,
            "source": sources[stay.value],
            "kind": "transfer" if stay.name in arrived else kinds[sizes[stay.value].kind],
            "first": stay.first,
            "end": stay.end,
            "size": sizes[stay.value].size,
            "offset": offset,
            "reason": stay.reason,
        }

    report: dict[str, Any] = {
        "tiers": [
            {
                "tier": tier,
                "arena_bytes": found.arena_bytes,
                "bound_bytes": found.bound_bytes,
                "method": found.method,
                "buffers": [
                    row(stay, found.offsets[stay.name])
                    for stay in tiering.stays
                    if stay.tier == tier
                ],
            }
            for tier, found in tiering.plans.items()
        ],
        "steps": [
            f"transfer_{item.source_tier}_to_{item.destination_tier}"
            if isinstance(item, Transfer)
            else live.steps[item]
            for item in tiering.schedule
        ],
        "aliases": [
            {"name": name, "of": names.get(item, item.source), "why": "reshaped, not copied"}
            for name, item in live.views
        ],
        "transfers": [
            {
                "step": position,
                "value": item.value,
                "from": item.source_tier,
                "to": item.destination_tier,
                "bytes": item.bytes,
                "us": item.us,
            }
            for position, item in tiering.transfers
        ],
        "saved_us": tiering.saved_us,
    }
    if tiering.notes:
        report["note"] = "; ".join(tiering.notes)
    return report
