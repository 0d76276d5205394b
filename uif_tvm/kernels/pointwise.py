"""Kernels that apply a formula to each element of broadcast operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvm import te


def pointwise(formula: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The kernel that applies ``formula(*elements, **attrs)`` to broadcast operands."""

    def kernel(*tensors: te.Tensor, **attrs: Any) -> te.Tensor:
        from tvm import te

        shape = broadcast_extents([tensor.shape for tensor in tensors])
        return te.compute(
            shape, lambda *i: formula(*(element(t, i, shape) for t in tensors), **attrs), name=name
        )

    return kernel


def element(tensor: te.Tensor, at: Sequence[Any], shape: Sequence[Any]) -> Any:
    """Element of ``tensor`` seen at position ``at`` of the larger ``shape`` (NumPy broadcasting).

    An axis of extent 1 keeps its index where the shape has 1 too: a kernel that reads just its own
    position is element-wise to TVM, and only such ones fuse into convolutions and products.
    """
    first = len(at) - len(tensor.shape)
    picked = [
        0 if is_one(d) and not is_one(whole) else i
        for i, d, whole in zip(at[first:], tensor.shape, shape[first:], strict=True)
    ]
    value = tensor(*picked)
    return value.asobject() if hasattr(value, "asobject") else value


def broadcast_extents(shapes: Sequence[Sequence[Any]]) -> list[Any]:
    """Extents that ``shapes``, known to fit, broadcast to."""
    rank = max(len(shape) for shape in shapes)
    result: list[Any] = [1] * rank
    for shape in shapes:
        for axis, extent in enumerate(shape, start=rank - len(shape)):
            if is_one(result[axis]):
                result[axis] = extent
    return result


def is_one(extent: Any) -> bool:
    """Whether an extent is known to be 1."""
    from tvm import tirx

    return (isinstance(extent, int) and extent == 1) or (
        isinstance(extent, tirx.IntImm) and int(extent) == 1
    )
