"""Placement: for each operator of the model, whether the target runs it, and if not, why.

``native``: a kernel on the target. ``host``: the operator is called back on the host at run time.
An operator that the target's capability predicate refuses, and that no other way can run, fails
the export; all such operators are named at once.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from uif_tvm.compiler.relax_util import STRUCTURAL, calls, op_name
from uif_tvm.compiler.report import Placement
from uif_tvm.errors import UnsupportedError, UnsupportedOp
from uif_tvm.target.spec import Refusal

if TYPE_CHECKING:
    from uif_tvm.compiler.context import CompileContext
    from uif_tvm.frontends.imported import ImportedModel

_HOST_CALL = "relax.call_dps_packed"


def place(imported: ImportedModel, ctx: CompileContext) -> None:
    """Record where every operator of ``imported`` runs.

    Raises:
        UnsupportedError: operators that the target refuses, or that would run on the host while
            ``ctx.fallback_mode`` is ``"error"``.
    """
    counts: dict[tuple[str, str, str], int] = defaultdict(int)
    refused: dict[str, list[str]] = defaultdict(list)
    for var, call in calls(imported.mod):
        name = op_name(call)
        if name is None or not name.startswith("relax."):
            continue
        if name in STRUCTURAL and name not in ("relax.call_tir", _HOST_CALL):
            continue
        op = _subject(name, call)
        if name == _HOST_CALL:
            if ctx.fallback_mode != "host":
                refused[f"{op}: runs on the host only"].append(var.name)
            counts[op, "host", "no-kernel"] += 1
            continue
        refusal = ctx.target.capability(name.removeprefix("relax."), call.attrs or {}, _dtypes(call))
        if isinstance(refusal, Refusal):
            refused[f"{op}: {refusal}"].append(var.name)
        counts[op, "native", ""] += 1
    if refused:
        raise UnsupportedError(
            [
                UnsupportedOp(key.split(": ", 1)[0], len(at), key.split(": ", 1)[1], tuple(at))
                for key, at in refused.items()
            ],
            stage="place",
            code="UIF-PLACE-REFUSED",
            target=ctx.target.id,
            hint="allow fallback_mode='host', or choose a target that has these operators",
        )
    ctx.report.placements.extend(
        Placement(op, where, count, reason)
        for (op, where, reason), count in sorted(counts.items(), key=lambda item: -item[1])
    )


def _subject(name: str, call: Any) -> str:
    """The operator, or the kernel's name where a frontend wrote the kernel itself."""
    if name == "relax.call_tir":
        return str(call.args[0].name_hint)
    if name == _HOST_CALL:
        return str(getattr(call.args[0], "global_symbol", call.args[0]))
    return name.removeprefix("relax.")


def _dtypes(call: Any) -> tuple[str, ...]:
    found = []
    for arg in call.args:
        dtype = getattr(getattr(arg, "ty", None), "dtype", None)
        if dtype is not None:
            found.append(str(getattr(dtype, "dtype", dtype)))
    return tuple(found)
