"""Placement: for each operator of the model, whether the target runs it, and if not, why.

``native``: a kernel on the target. ``host``: the operator is called back on the host at run time.
An operator that the target's capability predicate refuses, and that no other way can run, fails
the export; all such operators are named at once.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from uif_tvm.compiler.report import Placement
from uif_tvm.errors import TargetError, UnsupportedError, UnsupportedOp
from uif_tvm.relax_util import STRUCTURAL, attributes, calls, host_op, op_name
from uif_tvm.target.spec import Refusal

if TYPE_CHECKING:
    from uif_tvm.compiler.context import CompileContext
    from uif_tvm.frontends.imported import ImportedModel

_KERNEL_CALL, _HOST_CALL = "relax.call_tir", "relax.call_dps_packed"


def place(imported: ImportedModel, ctx: CompileContext) -> None:
    """Record where every operator of ``imported`` runs.

    Raises:
        UnsupportedError: operators that the target refuses, or that would run on the host while
            ``ctx.fallback_mode`` is ``"error"``.
    """
    counts: dict[tuple[str, str, str], int] = defaultdict(int)
    refused: dict[tuple[str, str], list[str]] = defaultdict(list)
    host_only = False
    for var, call in calls(imported.mod):
        name = op_name(call)
        if name is None or not name.startswith("relax."):
            continue
        if name in STRUCTURAL and name not in (_KERNEL_CALL, _HOST_CALL):
            continue
        op = _subject(name, call)
        if name == _HOST_CALL:
            counts[op, "host", "no-kernel"] += 1
            if ctx.fallback_mode != "host":
                host_only = True
                refused[op, "runs on the host only"].append(var.name)
            continue
        counts[op, "native", ""] += 1
        refusal = _ask(op, call, ctx)
        if refusal is not None:
            refused[op, str(refusal)].append(var.name)
    if refused:
        raise UnsupportedError(
            [UnsupportedOp(op, len(at), reason, tuple(at)) for (op, reason), at in refused.items()],
            stage="place",
            code="UIF-PLACE-REFUSED",
            target=ctx.target.id,
            hint="choose a target that has these operators"
            + (", or allow fallback_mode='host'" if host_only else ""),
        )
    ctx.report.placements.extend(
        Placement(op, where, count, reason)
        for (op, where, reason), count in sorted(counts.items(), key=lambda item: -item[1])
    )


def _ask(op: str, call: Any, ctx: CompileContext) -> Refusal | None:
    """What the target says to one operator instance.

    Raises:
        TargetError: the predicate failed, or answered with something else than a reason.
    """
    try:
        answer = ctx.target.capability(op, attributes(call), _dtypes(call))
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
    if name == _HOST_CALL:
        return host_op(call)
    return name.removeprefix("relax.")


def _dtypes(call: Any) -> tuple[str, ...]:
    """Element types of the tensor operands, those of a kernel's argument tuple included."""
    from tvm import relax

    operands: list[Any] = []
    for arg in call.args:
        operands += list(arg.fields) if isinstance(arg, relax.Tuple) else [arg]
    types = [getattr(operand, "ty", None) for operand in operands]
    return tuple(str(ty.dtype) for ty in types if isinstance(ty, relax.TensorType) and ty.dtype)
