"""Coverage: what of a model runs on a target, found out by compiling and running it."""

from __future__ import annotations

from uif_tvm.selection.coverage.report import CoverageReport, ModelCoverage, Result
from uif_tvm.selection.coverage.run import PEERS, REPRODUCERS, TIME_LIMIT, coverage

__all__ = [
    "PEERS",
    "REPRODUCERS",
    "TIME_LIMIT",
    "CoverageReport",
    "ModelCoverage",
    "Result",
    "coverage",
]
