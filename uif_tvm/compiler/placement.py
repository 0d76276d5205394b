"""Placement: for each operator of the model, how the target runs it, and why not otherwise.

``native``: a kernel on the target. ``composed``: from simpler operators, by its OpSpec's
decomposition or by the function that its standard defines it by. ``host``: evaluated on the host
at run time. They are tried in this order, as far as ``fallback_mode`` allows; an operator that no
way can run fails the export, and all such operators are named at once.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from uif_tvm import ops
from uif_tvm.compiler.estimate import microseconds
from uif_tvm.compiler.fallback import COMPOSED, HOST, NATIVE, composable, host_fault, rewrite
from uif_tvm.compiler.report import Placement
from uif_tvm.errors import TargetError, UifError, UnsupportedError, UnsupportedOp
from uif_tvm.kernels.legalize import LEGALIZE
from uif_tvm.relax_util import (
    STANDARD,
    STRUCTURAL,
    attributes,
    calls,
    host_function,
    host_op,
    op_name,
)
from uif_tvm.relay_passes import expand_attention
from uif_tvm.standard_ops import read, type_of
from uif_tvm.target.spec import Refusal

if TYPE_CHECKING:
    from uif_tvm.compiler.context import CompileContext
    from uif_tvm.frontends.imported import ImportedModel

_KERNEL_CALL = "relax.call_tir"


@dataclass
class _Tally:
    """What was decided so far: rows of the report, rewrites to do, and what nothing can run."""

    counts: dict[tuple[str, str, str], int] = field(default_factory=lambda: defaultdict(int))
    micros: dict[tuple[str, str, str], float] = field(default_factory=lambda: defaultdict(float))
    ways: dict[Any, str] = field(default_factory=dict)
    refused: dict[tuple[str, str, str], list[str]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def add(self, op: str, where: str, reason: str, micros: float, count: int = 1) -> None:
        self.counts[op, where, reason] += count
        self.micros[op, where, reason] += micros


def place(imported: ImportedModel, ctx: CompileContext) -> ImportedModel:
    """Decide where every operator of ``imported`` runs, and rewrite those that are not native.

    Raises:
        UnsupportedError: operators that no way allowed by ``ctx.fallback_mode`` runs, all at once,
            or more estimated time on the host than ``ctx.fallback_budget`` allows.
    """
    tally = _Tally()
    for op, count in imported.composed.items():
        tally.add(op, COMPOSED, "function-body", 0.0, count)
    for var, call in calls(imported.mod):
        _decide(var, call, imported, ctx, tally)
    if tally.refused:
        _raise_refused(tally, ctx)
    _check_budget(tally, ctx)
    ctx.report.placements.extend(
        Placement(op, where, count, reason, round(tally.micros[op, where, reason], 3))
        for (op, where, reason), count in sorted(tally.counts.items(), key=lambda item: -item[1])
    )
    if not tally.ways:
        return imported
    return replace(
        imported, mod=rewrite(imported.mod, tally.ways, lambda *about: _ask(*about, ctx=ctx))
    )


def _decide(
    var: Any, call: Any, imported: ImportedModel, ctx: CompileContext, tally: _Tally
) -> None:
    name = op_name(call)
    if name is None or not name.startswith(("relax.", STANDARD)):
        return
    if host_function(call) is not None:
        op = host_op(call)
        reason = imported.host_reasons.get(op, "no-kernel")
        tally.add(op, HOST, reason, microseconds(call, ctx.target, on_host=True))
        if ctx.fallback_mode != HOST:
            hint = "allow fallback_mode='host', or build it from operators that have kernels"
            tally.refused[op, f"runs on the host only ({reason})", hint].append(var.name)
        return
    if name in STRUCTURAL and name != _KERNEL_CALL:
        return
    op = _subject(name, call)
    refusal = _no_kernel(call, ctx) or _ask(op, _attributes(call), _dtypes(call), ctx=ctx)
    if refusal is None:
        tally.add(op, NATIVE, "", microseconds(call, ctx.target))
        return
    way, hint = _other_way(call, ctx)
    if way is None:
        tally.refused[op, str(refusal), hint].append(var.name)
        return
    tally.ways[var] = way
    tally.add(op, way, refusal.code, microseconds(call, ctx.target, on_host=way == HOST))


def _other_way(call: Any, ctx: CompileContext) -> tuple[str | None, str]:
    """(way, ""), or (None, what would help) where the operator cannot be run."""
    if ctx.fallback_mode == "error":
        return None, "allow fallback_mode='compose' or 'host', or choose another target"
    found = _standard(call)
    if found is not None:
        spec, operands, attrs = found
        types = [None if operand is None else type_of(operand) for operand in operands]
        if composable(spec, types, attrs, lambda *about: _ask(*about, ctx=ctx)):
            return COMPOSED, ""
    fault = host_fault(call)
    if ctx.fallback_mode == HOST and fault is None:
        return HOST, ""
    if fault is None:
        return None, "allow fallback_mode='host', or choose a target that has this operator"
    return None, f"choose a target that has this operator (not on the host: {fault})"


def _standard(call: Any) -> Any:
    """What :func:`standard_ops.read` says, ``None`` where the call does not fit its spec."""
    try:
        return read(call)
    except UifError:
        return None


def _raise_refused(tally: _Tally, ctx: CompileContext) -> None:
    listed = [
        UnsupportedOp(op, len(at), reason, tuple(at), hint)
        for (op, reason, hint), at in tally.refused.items()
    ]
    hints = list(dict.fromkeys(hint for _, _, hint in tally.refused))
    raise UnsupportedError(
        listed,
        stage="place",
        code="UIF-PLACE-REFUSED",
        target=ctx.target.id,
        hint="; ".join(hints),
    )


def _check_budget(tally: _Tally, ctx: CompileContext) -> None:
    """Refuse more time on the host than the export allows.

    Raises:
        UnsupportedError: naming every operator on the host with its share.
    """
    if ctx.fallback_budget is None:
        return
    total = sum(tally.micros.values())
    hosted = {key: value for key, value in tally.micros.items() if key[1] == HOST}
    share = 100.0 * sum(hosted.values()) / total if total else 0.0
    if share <= ctx.fallback_budget:
        return
    raise UnsupportedError(
        [
            UnsupportedOp(
                op,
                tally.counts[op, where, reason],
                f"on the host ({reason}), {100.0 * micros / total:.1f}% of the estimated time",
            )
            for (op, where, reason), micros in sorted(hosted.items(), key=lambda row: -row[1])
        ],
        fault=f"over the budget of {ctx.fallback_budget:g}% of the estimated time on the host",
        stage="place",
        code="UIF-PLACE-BUDGET",
        target=ctx.target.id,
        hint=f"allow at least fallback_budget={math.ceil(share)}, or choose a target that has "
        "these operators",
    )


def _no_kernel(call: Any, ctx: CompileContext) -> Refusal | None:
    """Why a standard operator has no kernel anywhere."""
    name = op_name(call) or ""
    if not name.startswith(STANDARD) or name in LEGALIZE:
        return None
    if name == expand_attention.ATTENTION:
        # A pass makes it one kernel, or composes it where that is faster.
        refusal = expand_attention.offered(call, ctx)
        return Refusal("no-kernel", str(refusal)) if isinstance(refusal, Refusal) else None
    return Refusal("no-kernel", f"no kernel is registered for {name}")


def _ask(
    op: str, attrs: Mapping[str, Any], dtypes: tuple[str, ...], *, ctx: CompileContext
) -> Refusal | None:
    """What the target says to one operator instance.

    Raises:
        TargetError: the predicate failed, or answered with something else than a reason.
    """
    try:
        answer = ctx.target.capability(op, attrs, dtypes)
    except Exception as error:
        raise _broken(op, ctx, f"failed: {type(error).__name__}: {error}") from error
    if answer is not None and not isinstance(answer, Refusal):
        raise _broken(op, ctx, f"answered {answer!r}, neither None nor a Refusal")
    return answer


def _broken(op: str, ctx: CompileContext, what: str) -> TargetError:
    return TargetError(
        f"the target's capability predicate {what}",
        code="UIF-TARGET-BROKEN",
        op=op,
        target=ctx.target.id,
        hint="mend the predicate in the target's target.py",
    )


def _subject(name: str, call: Any) -> str:
    """The operator, or the kernel's name where a frontend wrote the kernel itself."""
    if name == _KERNEL_CALL:
        return str(call.args[0].name_hint)
    spec = ops.find_graph_op(name)
    return spec.name if spec else name.removeprefix("relax.").removeprefix("nn.")


def _attributes(call: Any) -> Mapping[str, Any]:
    """The attributes by standard names where a spec describes the operator."""
    found = _standard(call)
    return found[2] if found is not None else attributes(call)


def _dtypes(call: Any) -> tuple[str, ...]:
    """Element types of the tensor operands, those of a kernel's argument tuple included."""
    from tvm import relax

    operands: list[Any] = []
    for arg in call.args:
        operands += list(arg.fields) if isinstance(arg, relax.Tuple) else [arg]
    types = [getattr(operand, "ty", None) for operand in operands]
    return tuple(str(ty.dtype) for ty in types if isinstance(ty, relax.TensorType) and ty.dtype)
