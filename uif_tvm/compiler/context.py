"""CompileContext: resolved once per export, frozen, passed to everything downstream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uif_tvm.errors import UsageError

if TYPE_CHECKING:
    from uif_tvm.compiler.gain import KernelTimes
    from uif_tvm.compiler.report import ReportBuilder
    from uif_tvm.target.spec import TargetSpec

FALLBACK_MODES = ("error", "compose", "host")


@dataclass(frozen=True)
class CompileContext:
    """What one compilation is asked to do.

    Args:
        target: the resolved target.
        level: optimisation level 0-3 (see ``pipeline.py``).
        fallback_mode: what to do with ops the target lacks.
        fallback_budget: most of the estimated time that may fall back to the host, in percent.
        disabled_passes: names of passes not to run.
        disabled_fusion: patterns of operators, kernels or source names never to fuse.
        verify: compare results with level 0's at export.
        cache_dir: folder of the kernel cache; ``None`` switches it off.
        save_temps: folder for IR dumps between passes; ``None`` writes none.
        report: collects decisions, choices and timings.
        kernel_times: measured times of kernels on the target, where any are on record.
        operators: source name -> names of the operator that computes it in the imported model;
            filled where ``disabled_fusion`` is given.
        options: further options of targets and passes.
    """

    target: TargetSpec
    level: int
    report: ReportBuilder
    fallback_mode: str = "host"
    fallback_budget: float | None = None
    disabled_passes: frozenset[str] = frozenset()
    disabled_fusion: tuple[str, ...] = ()
    verify: bool = False
    cache_dir: Path | None = None
    save_temps: Path | None = None
    kernel_times: KernelTimes | None = None
    operators: Mapping[str, frozenset[str]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if type(self.level) is not int or self.level not in (0, 1, 2, 3):
            raise UsageError(
                f"optimize_level must be 0, 1, 2 or 3, got {self.level!r}",
                code="UIF-USAGE-LEVEL",
                hint="0: no graph optimisation, 1: folding, 2: fusion (default), 3: layout",
            )
        if self.fallback_mode not in FALLBACK_MODES:
            raise UsageError(
                f"fallback_mode must be one of {', '.join(FALLBACK_MODES)}, "
                f"got {self.fallback_mode!r}",
                code="UIF-USAGE-FALLBACK",
                hint="error: refuse, compose: build from smaller operators, host: call back",
            )
        budget = self.fallback_budget
        if budget is not None and not (
            isinstance(budget, (int, float)) and not isinstance(budget, bool) and 0 <= budget <= 100
        ):
            raise UsageError(
                f"fallback_budget must be a percentage from 0 to 100, got {budget!r}",
                code="UIF-USAGE-FALLBACK",
                hint="leave it out for no limit; 0 allows no time on the host",
            )
