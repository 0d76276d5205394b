"""Whether the target has a schedule for a merged kernel, asked of its own rules.

Kernels of a family have hand-written schedules, which take some epilogues and not others. Merging
must not cost a kernel its schedule: when a hand-written rule takes the anchor alone, but none the
merged kernel, the merge is declined with what the rule said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tvm_ffi

from uif_tvm.target.schedule import OTHER_FAMILY
from uif_tvm.target.spec import Refusal

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from uif_tvm.target.schedule import ScheduleRule
    from uif_tvm.target.spec import TargetSpec

_HAND_WRITTEN = "hand-written"


class Trials:
    """Answers of one target's hand-written rules; asked once per kernel structure."""

    def __init__(self, target: TargetSpec) -> None:
        self._target = target
        self._rules = [rule for rule in target.schedules if rule.kind == _HAND_WRITTEN]
        self._known: dict[int, list[tuple[PrimFunc, str]]] = {}

    def refusal(self, merged: PrimFunc, anchor: PrimFunc) -> str:
        """Why ``merged`` would lose the schedule that ``anchor`` alone has; empty if it would not.

        A target without a hand-written schedule for the anchor loses nothing.
        """
        said = self._refused(merged)
        return said if said and not self._refused(anchor) else ""

    def _refused(self, func: PrimFunc) -> str:
        """Empty when a hand-written rule takes ``func``, else what the nearest rule said."""
        same = self._known.setdefault(tvm_ffi.structural_hash(func), [])
        for known, said in same:
            if tvm_ffi.structural_equal(known, func):
                return said
        same.append((func, self._ask(func)))
        return same[-1][1]

    def _ask(self, func: PrimFunc) -> str:
        said = "no hand-written schedule is made for it"
        for rule in self._rules:
            answer = _answer(rule, func, self._target)
            if answer is None:
                return ""
            if answer.code != OTHER_FAMILY:
                said = f"schedule {rule.name} declines: {answer}"
        return said


def _answer(rule: ScheduleRule, func: PrimFunc, target: TargetSpec) -> Refusal | None:
    """The rule's refusal, ``None`` when it takes the kernel."""
    try:
        result = getattr(rule, "plan", rule.apply)(func, target)
    except Exception as error:  # rules meet kernels they were not written for: a refusal too
        return Refusal("failed", f"{type(error).__name__}: {str(error).strip()[:160]}")
    return result if isinstance(result, Refusal) else None
