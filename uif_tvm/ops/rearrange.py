"""Operators that repeat, rotate, surround or regroup elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from uif_tvm.ops import infer
from uif_tvm.ops.movement import box, view
from uif_tvm.ops.spec import Array, Attribute, Attrs, Case, Operand, ShapeError, TensorType, Types

if TYPE_CHECKING:
    from uif_tvm.ops.build import Builder

Result = tuple[TensorType, ...]


def broadcast_to(x: Array, shape: Sequence[int]) -> Array:
    """Repeated along axes of extent 1, by NumPy's rule."""
    return np.broadcast_to(x, tuple(shape))


def tile(x: Array, repeats: Sequence[int]) -> Array:
    """Side by side with itself along each axis, new leading axes included."""
    return np.tile(x, tuple(repeats))


def repeat(x: Array, repeats: int, axis: int) -> Array:
    """Each position of an axis several times in a row."""
    return np.repeat(x, repeats, axis)


def roll(x: Array, shift: Sequence[int], axis: Sequence[int]) -> Array:
    """Rotated along axes: what leaves at the end comes back at the start."""
    return np.roll(x, tuple(shift), tuple(axis))


def _broadcast(types: Types, attrs: Attrs) -> Result:
    shape = tuple(attrs["shape"])
    if len(infer.broadcast(types[0].shape, shape)) != len(shape):
        raise ShapeError(f"rank {types[0].rank} does not broadcast to {list(shape)}")
    return (TensorType(shape, types[0].dtype),)


def _tiled(types: Types, attrs: Attrs) -> Result:
    repeats = tuple(attrs["repeats"])
    rank = max(len(repeats), types[0].rank)
    shape = (1,) * (rank - types[0].rank) + tuple(types[0].shape)
    times = (1,) * (rank - len(repeats)) + repeats
    return (TensorType(tuple(n * t for n, t in zip(shape, times, strict=True)), types[0].dtype),)


def _repeated(types: Types, attrs: Attrs) -> Result:
    axis = infer.axis_of(attrs["axis"], types[0].rank)
    shape = list(types[0].shape)
    shape[axis] = shape[axis] * attrs["repeats"]
    return (TensorType(tuple(shape), types[0].dtype),)


def _rolled(types: Types, attrs: Attrs) -> Result:
    infer.axes_of(attrs["axis"], types[0].rank)
    if len(attrs["axis"]) != len(attrs["shift"]):
        raise ShapeError(f"{len(attrs['shift'])} shifts for {len(attrs['axis'])} axes")
    return (types[0],)


# -- borders -----------------------------------------------------------------------------------


def pad(
    x: Array, value: Array | None, before: Sequence[int], after: Sequence[int], mode: str
) -> Array:
    """Elements around a tensor, or fewer where an amount is negative.

    ``constant``: one value (0 unless given); ``edge``: the nearest element; ``reflect``: the
    elements mirrored at the outermost one; ``wrap``: those from the other side.
    """
    cut = tuple(
        slice(max(-low, 0), n - max(-high, 0))
        for n, low, high in zip(x.shape, before, after, strict=True)
    )
    widths = [(max(low, 0), max(high, 0)) for low, high in zip(before, after, strict=True)]
    if mode == "constant":
        fill = 0 if value is None else value.reshape(())
        return np.pad(x[cut], widths, constant_values=fill)
    return np.pad(x[cut], widths, mode=mode)  # type: ignore[call-overload,no-any-return]


def trilu(x: Array, k: int, upper: bool) -> Array:
    """The upper or lower triangle of matrices, from diagonal ``k`` on; zero elsewhere."""
    return np.triu(x, k) if upper else np.tril(x, k)


def _padded(types: Types, attrs: Attrs) -> Result:
    amounts = zip(types[0].shape, attrs["before"], attrs["after"], strict=False)
    if not len(attrs["before"]) == len(attrs["after"]) == types[0].rank:
        raise ShapeError(f"pads {attrs['before']} and {attrs['after']} at rank {types[0].rank}")
    shape = []
    for n, low, high in amounts:
        shape.append(n + low + high)
        if isinstance(shape[-1], int) and shape[-1] < 0:
            raise ShapeError(f"pads {low} and {high} leave less than nothing of {n}")
        if attrs["mode"] == "reflect" and isinstance(n, int) and max(low, high) > 0 and n < 2:
            raise ShapeError(f"an extent of {n} has nothing to reflect")
    return (TensorType(tuple(shape), types[0].dtype),)


def _matrices(types: Types, attrs: Attrs) -> Result:
    if types[0].rank < 2:
        raise ShapeError(f"rank {types[0].rank} has no matrices")
    return (types[0],)


# -- blocks of pixels --------------------------------------------------------------------------


def depth_to_space(x: Array, blocksize: int, mode: str) -> Array:
    """Channels become blocks of pixels: ``[n, c b b, h, w] -> [n, c, h b, w b]``.

    ``DCR``: the block's position is the slower part of a channel's number; ``CRD``: the faster.
    """
    n, c, h, w = x.shape
    depth, b = c // (blocksize * blocksize), blocksize
    if mode == "DCR":
        moved = x.reshape(n, b, b, depth, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        moved = x.reshape(n, depth, b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
    return moved.reshape(n, depth, h * b, w * b)


def space_to_depth(x: Array, blocksize: int, mode: str) -> Array:
    """Blocks of pixels become channels: ``[n, c, h b, w b] -> [n, c b b, h, w]``."""
    n, c, h, w = x.shape
    b = blocksize
    parts = x.reshape(n, c, h // b, b, w // b, b)
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return parts.transpose(order).reshape(n, c * b * b, h // b, w // b)


def _to_space(types: Types, attrs: Attrs) -> Result:
    n, c, h, w = _image(types)
    b = attrs["blocksize"]
    if isinstance(c, int) and c % (b * b):
        raise ShapeError(f"{c} channels are no multiple of {b * b}")
    return (TensorType((n, c // (b * b), h * b, w * b), types[0].dtype),)


def _to_depth(types: Types, attrs: Attrs) -> Result:
    n, c, h, w = _image(types)
    b = attrs["blocksize"]
    if any(isinstance(side, int) and side % b for side in (h, w)):
        raise ShapeError(f"sides {h} and {w} are no multiples of {b}")
    return (TensorType((n, c * b * b, h // b, w // b), types[0].dtype),)


def _image(types: Types) -> tuple[Any, ...]:
    if types[0].rank != 4:
        raise ShapeError(f"rank 4 is needed, got {types[0].rank}")
    return types[0].shape


def _regroup(b: Builder, x: Any, parts: Sequence[Any], order: Sequence[int], shape: Any) -> Any:
    split = b.op("reshape", x, shape=tuple(parts))
    return b.op("reshape", b.op("permute_dims", split, axes=tuple(order)), shape=tuple(shape))


def _depth_to_space(b: Builder, operands: Sequence[Any], attrs: Attrs) -> Any:
    n, c, h, w = b.shape(operands[0])
    size = attrs["blocksize"]
    depth = c // (size * size)
    first = attrs["mode"] == "DCR"
    parts = (n, size, size, depth, h, w) if first else (n, depth, size, size, h, w)
    order = (0, 3, 4, 1, 5, 2) if first else (0, 1, 4, 2, 5, 3)
    return _regroup(b, operands[0], parts, order, (n, depth, h * size, w * size))


def _space_to_depth(b: Builder, operands: Sequence[Any], attrs: Attrs) -> Any:
    n, c, h, w = b.shape(operands[0])
    size = attrs["blocksize"]
    order = (0, 3, 5, 1, 2, 4) if attrs["mode"] == "DCR" else (0, 1, 3, 5, 2, 4)
    parts = (n, c, h // size, size, w // size, size)
    return _regroup(b, operands[0], parts, order, (n, c * size * size, h // size, w // size))


_BLOCKS = (Attribute("blocksize"), Attribute("mode", "DCR", ("DCR", "CRD")))

SPECS = (
    view(
        "broadcast_to",
        broadcast_to,
        _broadcast,
        [
            Case("middle", (box(2, 1, 3),), {"shape": (2, 4, 3)}),
            Case("new-axes", (box(3),), {"shape": (2, 2, 3)}),
            Case("scalar", (box(),), {"shape": (2, 2)}),
            Case("zero-size", (box(1, 3),), {"shape": (0, 3)}),
        ],
        attributes=(Attribute("shape"),),
    ),
    view(
        "tile",
        tile,
        _tiled,
        [
            Case("both-axes", (box(2, 3),), {"repeats": (3, 2)}),
            Case("new-axis", (box(3),), {"repeats": (2, 2)}),
            Case("never", (box(2, 3),), {"repeats": (0, 1)}),
        ],
        attributes=(Attribute("repeats"),),
        relax=None,
    ),
    view(
        "repeat",
        repeat,
        _repeated,
        [
            Case("rows", (box(2, 3),), {"repeats": 3, "axis": 0}),
            Case("negative-axis", (box(2, 3),), {"repeats": 2, "axis": -1}),
        ],
        attributes=(Attribute("repeats"), Attribute("axis", 0)),
        relax=None,
    ),
    view(
        "roll",
        roll,
        _rolled,
        [
            Case("both-axes", (box(3, 4),), {"shift": (1, -2), "axis": (0, 1)}),
            Case("more-than-all", (box(5),), {"shift": (12,), "axis": (-1,)}),
            Case("zero-size", (box(0, 2),), {"shift": (1,), "axis": (0,)}),
        ],
        attributes=(Attribute("shift"), Attribute("axis")),
        relax=None,
    ),
    view(
        "pad",
        pad,
        _padded,
        [
            Case("constant", (box(2, 3), np.float32(7)), {"before": (1, 0), "after": (0, 2)}),
            Case("zero", (box(2, 3), None), {"before": (0, 1), "after": (2, 0)}),
            Case("negative", (box(4, 5), None), {"before": (-1, 2), "after": (1, -2)}),
            Case("zero-size", (box(0, 2), None), {"before": (1, 0), "after": (1, 0)}),
            *(
                Case(mode, (box(3, 4), None), {"before": (2, 1), "after": (1, 3), "mode": mode})
                for mode in ("edge", "reflect", "wrap")
            ),
            Case(
                "far-reflection",
                (box(3), None),
                {"before": (7,), "after": (9,), "mode": "reflect"},
            ),
            Case("negative-edge", (box(5), None), {"before": (-2,), "after": (2,), "mode": "edge"}),
        ],
        operands=(Operand("x"), Operand("value", optional=True)),
        attributes=(
            Attribute("before"),
            Attribute("after"),
            Attribute("mode", "constant", ("constant", "edge", "reflect", "wrap")),
        ),
        relax=None,
        source="ONNX Pad-19",
    ),
    view(
        "trilu",
        trilu,
        _matrices,
        [
            Case("upper", (box(3, 4) + 1,)),
            Case("lower", (box(2, 3, 3) + 1,), {"upper": False, "k": -1}),
            Case("all", (box(3, 3) + 1,), {"k": -9}),
            Case("nothing", (box(3, 3) + 1,), {"k": 9}),
            Case("zero-size", (box(0, 3),)),
        ],
        attributes=(Attribute("k", 0), Attribute("upper", True)),
        relax=None,
        source="ONNX Trilu-14",
    ),
    view(
        "depth_to_space",
        depth_to_space,
        _to_space,
        [
            Case("depth-first", (box(1, 8, 2, 3),), {"blocksize": 2}),
            Case("channel-first", (box(2, 8, 2, 3),), {"blocksize": 2, "mode": "CRD"}),
            Case("size-1", (box(1, 3, 2, 2),), {"blocksize": 1}),
        ],
        attributes=_BLOCKS,
        relax=None,
        decompose=_depth_to_space,
        source="ONNX DepthToSpace-13",
    ),
    view(
        "space_to_depth",
        space_to_depth,
        _to_depth,
        [
            Case("depth-first", (box(1, 2, 4, 6),), {"blocksize": 2}),
            Case("channel-first", (box(2, 2, 4, 6),), {"blocksize": 2, "mode": "CRD"}),
        ],
        attributes=_BLOCKS,
        relax=None,
        decompose=_space_to_depth,
        source="ONNX SpaceToDepth-13",
    ),
)
