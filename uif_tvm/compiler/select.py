"""Schedule selection: per kernel, the first rule of the target that applies and builds wins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from uif_tvm.errors import CompileError, UifError
from uif_tvm.target.schedule import OTHER_FAMILY, Scheduled
from uif_tvm.target.spec import Refusal

if TYPE_CHECKING:
    import tvm

    from uif_tvm.target.schedule import ScheduleRule
    from uif_tvm.target.spec import TargetSpec


@dataclass(frozen=True)
class Selection:
    """The kernel that won, and what earlier rules said.

    Args:
        scheduled: the scheduled kernel.
        code: its object code.
        rule: the rule that made it.
        declined: rules that refused though the kernel is of their family, each with its reason.
        crashed: rules that failed instead of refusing, or whose kernel could not be built: faults
            of ours that cost speed, not the export, and that reports show.
    """

    scheduled: Scheduled
    code: bytes
    rule: ScheduleRule
    declined: tuple[str, ...]
    crashed: tuple[str, ...]


def select(
    func: tvm.tirx.PrimFunc,
    name: str,
    target: TargetSpec,
    build: Callable[[tvm.tirx.PrimFunc], bytes],
) -> Selection:
    """Schedule and build ``func`` with the first rule of ``target`` that can do it.

    Args:
        name: the kernel's name, for messages.
        build: makes object code of a scheduled kernel; may raise anything.

    Raises:
        CompileError: no rule applied, or no kernel could be built.
    """
    declined: list[str] = []
    telling: list[str] = []
    crashed: list[str] = []
    for rule in target.schedules:
        try:
            result = rule.apply(func, target)
            if isinstance(result, Scheduled):
                code = build(result.func)
                return Selection(result, code, rule, tuple(telling), tuple(crashed))
            if not isinstance(result, Refusal):
                raise TypeError(f"returned {type(result).__name__}, not Scheduled or Refusal")
        except UifError:
            raise
        except Exception as error:
            # Schedule primitives and code generation raise bare errors; the next rule still
            # makes a right kernel.
            crashed.append(f"{rule.name}: {type(error).__name__}: {error}")
        else:
            declined.append(f"{rule.name}: {result}")
            if result.code != OTHER_FAMILY:
                telling.append(declined[-1])
    reasons = "".join(f"\n  - {reason}" for reason in declined + crashed)
    raise CompileError(
        f"no schedule rule makes kernel {name}:{reasons}",
        code="UIF-COMPILE-SCHEDULE",
        op=name,
        target=target.id,
        hint="report this with the model; a target's last rule must take every kernel",
    )
