"""Shape rules shared by many operators. Extents may be symbolic; arithmetic works on both."""

from __future__ import annotations

from collections.abc import Sequence

from uif_tvm.ops.spec import Attrs, Dim, ShapeError, TensorType, Types


def same(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    """One result like the first operand."""
    return (types[0],)


def boolean(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    """One boolean result of the first operand's shape."""
    return (TensorType(types[0].shape, "bool"),)


def broadcasting(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    """One result of the first operand's dtype and the broadcast shape of all."""
    shape = broadcast(*(item.shape for item in types if item is not None))
    return (TensorType(shape, types[0].dtype),)


def comparing(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    """One boolean result of the broadcast shape."""
    return (TensorType(broadcast(*(item.shape for item in types)), "bool"),)


def broadcast(*shapes: Sequence[Dim]) -> tuple[Dim, ...]:
    """NumPy's broadcast of ``shapes``.

    Raises:
        ShapeError: two extents differ and neither is 1.
    """
    rank = max((len(shape) for shape in shapes), default=0)
    result: list[Dim] = []
    for axis in range(-rank, 0):
        extent: Dim = 1
        for shape in shapes:
            if -axis > len(shape) or is_one(shape[axis]) or equal(shape[axis], extent):
                continue
            if not is_one(extent):
                raise ShapeError(f"extents {extent} and {shape[axis]} of axis {axis} differ")
            extent = shape[axis]
        result.append(extent)
    return tuple(result)


def is_one(extent: Dim) -> bool:
    """Whether an extent is the integer 1."""
    return isinstance(extent, int) and extent == 1


def equal(left: Dim, right: Dim) -> bool:
    """Whether two extents are known to be equal (symbolic ones: written alike)."""
    if isinstance(left, int) or isinstance(right, int):
        return isinstance(left, int) and isinstance(right, int) and left == right
    return left is right or str(left) == str(right)


def axis_of(axis: int, rank: int, what: str = "axis") -> int:
    """A non-negative axis.

    Raises:
        ShapeError: out of range.
    """
    if not -rank <= axis < max(rank, 1):
        raise ShapeError(f"{what} {axis} does not exist at rank {rank}")
    return axis % rank if rank else 0


def axes_of(axes: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Sorted non-negative axes; all of them for ``None``.

    Raises:
        ShapeError: one is out of range or repeated.
    """
    if axes is None:
        return tuple(range(rank))
    listed = [axes] if isinstance(axes, int) else [int(axis) for axis in axes]
    found = sorted(axis_of(axis, rank) for axis in listed)
    if len(set(found)) != len(found):
        raise ShapeError(f"axes {listed} repeat one")
    return tuple(found)


def reduced(shape: Sequence[Dim], axes: Sequence[int], keepdims: bool) -> tuple[Dim, ...]:
    """``shape`` without ``axes`` (non-negative), or with 1 in their place."""
    if keepdims:
        return tuple(1 if axis in axes else extent for axis, extent in enumerate(shape))
    return tuple(extent for axis, extent in enumerate(shape) if axis not in axes)


def window(extent: Dim, kernel: int, stride: int, before: int, after: int, dilation: int) -> Dim:
    """Positions of a sliding window, rounded down."""
    return (extent + before + after - dilation * (kernel - 1) - 1) // stride + 1
