"""Reduction: the smallest model that still shows a fault."""

from __future__ import annotations

from uif_tvm.selection.reduction.checks import BUILT_IN
from uif_tvm.selection.reduction.run import TIME_LIMIT, reduce
from uif_tvm.selection.reduction.search import ReduceResult, Step

__all__ = ["BUILT_IN", "TIME_LIMIT", "ReduceResult", "Step", "reduce"]
