"""Reduction: the smallest model that still shows a fault.

Polygraphy's ``debug reduce`` (0.53.6) was tried first. It bisects over one contiguous piece only
(asked to keep a Softmax, it ended with a lone Reshape), and feeds cut edges with random values,
which many faults do not show on. Here parts are any subset, on the values of a real run; ONNX's own
inliner expands functions, and its shape inference types what nobody can compute.
"""

from __future__ import annotations

from uif_tvm.selection.reduction.checks import BUILT_IN
from uif_tvm.selection.reduction.run import TIME_LIMIT, reduce
from uif_tvm.selection.reduction.search import ReduceResult, Step

__all__ = ["BUILT_IN", "TIME_LIMIT", "ReduceResult", "Step", "reduce"]
