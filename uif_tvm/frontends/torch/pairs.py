"""Complex tensors as real ones: the IR has no complex dtype.

A complex tensor of shape ``[a, b]`` is a real tensor of shape ``[a, b, 2]`` whose last axis holds
the real and the imaginary part, as ``torch.view_as_real`` lays it out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from tvm import relax

#: PyTorch's complex dtypes -> (name, dtype of the parts).
COMPLEX: dict[torch.dtype, tuple[str, str]] = {
    torch.complex64: ("complex64", "float32"),
    torch.complex128: ("complex128", "float64"),
}
#: Name -> dtype of the parts.
PARTS = dict(COMPLEX.values())


@dataclass(frozen=True)
class Pair:
    """A complex tensor.

    Args:
        expr: the real tensor with a trailing axis of two.
        dtype: ``complex64`` or ``complex128``.
    """

    expr: relax.Expr
    dtype: str


def is_complex(meta: Any) -> bool:
    """Whether a fake tensor is complex, of a width that pairs can stand for."""
    return isinstance(meta, torch.Tensor) and meta.dtype in COMPLEX
