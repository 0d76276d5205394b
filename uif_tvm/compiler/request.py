"""Checks of what was asked for, before any work is done on it."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from uif_tvm.compiler.pipeline import passes_for, phases
from uif_tvm.errors import EnvironmentFault, TargetError, UsageError
from uif_tvm.runtime.host import host

if TYPE_CHECKING:
    from uif_tvm.compiler.context import CompileContext


def check_request(ctx: CompileContext) -> None:
    """Refuse names that mean nothing: a misspelt pass would otherwise run unnoticed.

    Raises:
        EnvironmentFault: verification is asked for, and this machine cannot run the target's code.
        UsageError: ``ctx.disabled_passes`` names no pass, or one that cannot be left out.
        TargetError: the target adds passes to a phase that does not exist.
    """
    lacks = host().missing(ctx.target.requirement) if ctx.verify else []
    if lacks:
        raise EnvironmentFault(
            f"verify=True runs the model, and this machine lacks {'; '.join(lacks)}",
            stage="compile",
            code="UIF-ENV-VERIFY",
            target=ctx.target.id,
            hint="leave verify=True out, or export on a machine that the target fits",
        )
    stages = phases()
    known = {stage.name for stage in stages}
    odd = sorted(set(ctx.target.phase_overrides) - known)
    if odd:
        raise TargetError(
            f"target {ctx.target.id!r} adds passes to unknown phases {', '.join(odd)}",
            code="UIF-TARGET-BROKEN",
            target=ctx.target.id,
            hint=f"phases are {', '.join(stage.name for stage in stages)}",
        )
    optional = {
        graph_pass.name: graph_pass.optional
        for stage in stages
        for graph_pass in (*(item for _, item in stage.passes), *passes_for(stage, ctx))
    }
    for name in sorted(ctx.disabled_passes):
        if optional.get(name):
            continue
        if name in optional:
            raise UsageError(
                f"pass {name!r} cannot be disabled: nothing can be compiled without it",
                code="UIF-USAGE-PASS",
            )
        near = difflib.get_close_matches(name, optional, n=1)
        free = ", ".join(sorted(key for key, value in optional.items() if value))
        raise UsageError(
            f"there is no pass {name!r} to disable",
            code="UIF-USAGE-PASS",
            hint=f"did you mean {near[0]!r}?" if near else f"these can be disabled: {free}",
        )
