"""When an answer counts as right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

RTOL = 1e-3
ATOL = 1e-5
ATOL_OF_LARGEST = 1e-4

#: Quantised models may flip single roundings, which later layers carry on.
QUANTISED_L2 = 0.10
QUANTISED_ARGMAX = 0.98


def faults(
    outputs: Sequence[NDArray[Any]],
    references: Sequence[NDArray[Any]],
    *,
    noise: float = 0.0,
    quantised: bool = False,
) -> list[str]:
    """What is wrong with ``outputs``, nothing when they are right.

    Shapes and dtypes must be equal, and so must integers and booleans. Floats must lie within
    RTOL and the largest of ATOL, ATOL_OF_LARGEST of the largest reference value, and twice
    ``noise``: how far the reference engine's own runs lie apart. Floats of quantised models must
    have a relative L2 distance under QUANTISED_L2 and the same argmax almost everywhere.
    """
    if len(outputs) != len(references):
        return [f"{len(outputs)} outputs, expected {len(references)}"]
    found = []
    for index, (ours, theirs) in enumerate(zip(outputs, references, strict=True)):
        fault = _fault(np.asarray(ours), np.asarray(theirs), noise, quantised)
        if fault:
            found.append(f"output {index}: {fault}")
    return found


def _largest(values: NDArray[Any]) -> float:
    """Largest finite magnitude; an infinity must not make every difference tolerable."""
    finite = np.abs(values[np.isfinite(values)])
    return float(finite.max()) if finite.size else 0.0


def _fault(ours: NDArray[Any], theirs: NDArray[Any], noise: float, quantised: bool) -> str | None:
    if ours.shape != theirs.shape:
        return f"shape {list(ours.shape)}, expected {list(theirs.shape)}"
    if ours.dtype != theirs.dtype:
        return f"dtype {ours.dtype}, expected {theirs.dtype}"
    if theirs.dtype.kind not in "fc":
        wrong = int(np.count_nonzero(ours != theirs))
        return f"{wrong} of {theirs.size} elements differ" if wrong else None
    if theirs.size == 0:
        return None
    if quantised:
        return _quantised_fault(ours, theirs)
    atol = max(ATOL, ATOL_OF_LARGEST * _largest(theirs), 2 * noise)
    if np.allclose(ours, theirs, rtol=RTOL, atol=atol, equal_nan=True):
        return None
    worst = float(np.nanmax(np.abs(ours - theirs))) if np.isfinite(ours).any() else float("nan")
    return f"off by up to {worst:.3g}, allowed {RTOL:g} relative plus {atol:.3g}"


def _quantised_fault(ours: NDArray[Any], theirs: NDArray[Any]) -> str | None:
    scale = float(np.linalg.norm(theirs.ravel())) or 1.0
    distance = float(np.linalg.norm((ours - theirs).ravel())) / scale
    if not distance < QUANTISED_L2:  # also catches NaN
        return f"relative L2 distance {distance:.3g}, allowed {QUANTISED_L2:g}"
    if theirs.ndim and theirs.shape[-1] > 1:
        same = float(np.mean(ours.argmax(-1) == theirs.argmax(-1)))
        if same < QUANTISED_ARGMAX:
            return f"argmax agrees in {same:.1%} of positions, wanted {QUANTISED_ARGMAX:.0%}"
    return None
