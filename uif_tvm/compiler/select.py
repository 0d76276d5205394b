"""Schedule selection: per kernel, the first rule of the target that applies wins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from uif_tvm.errors import CompileError
from uif_tvm.target.schedule import Scheduled

if TYPE_CHECKING:
    import tvm

    from uif_tvm.target.schedule import ScheduleRule
    from uif_tvm.target.spec import TargetSpec


@dataclass(frozen=True)
class Selection:
    """The scheduled kernel, the rule that made it, and what earlier rules said.

    ``crashed`` holds the errors of rules that failed instead of declining: faults of ours that
    cost speed, not the export, and that reports show.
    """

    scheduled: Scheduled
    rule: ScheduleRule
    declined: tuple[str, ...]
    crashed: tuple[str, ...]


def select(func: tvm.tirx.PrimFunc, name: str, target: TargetSpec) -> Selection:
    """Schedule ``func`` with the first rule of ``target`` that applies.

    Raises:
        CompileError: no rule applied.
    """
    declined: list[str] = []
    crashed: list[str] = []
    for rule in target.schedules:
        try:
            result = rule.apply(func, target)
        except Exception as error:
            # Schedule primitives raise bare errors; the next rule still makes a right kernel.
            crashed.append(f"{rule.name}: {type(error).__name__}: {error}")
            continue
        if isinstance(result, Scheduled):
            return Selection(result, rule, tuple(declined), tuple(crashed))
        declined.append(f"{rule.name}: {result}")
    raise CompileError(
        f"no schedule rule takes kernel {name}: {'; '.join(declined + crashed)}",
        code="UIF-COMPILE-SCHEDULE",
        op=name,
        target=target.id,
        hint="end the target's schedules with a generic rule that takes everything",
    )
