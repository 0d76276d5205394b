"""Steps that add movements of data: reshapes, transposes, slices, concatenations, gathers."""

from __future__ import annotations

import numpy as np

from tests.fuzz.graphs.evaluate import Refused
from tests.fuzz.graphs.maker import Maker, Value


def _any(maker: Maker, least: int = 1) -> Value:
    return maker.pick(lambda v: v.rank >= least and v.dtype != "bool")


def reshape(maker: Maker) -> None:
    """Another shape of as many elements, with 0 and -1 at times."""
    value = _any(maker, 0)
    size, shape = int(value.array.size), []
    if size == 0:
        raise Refused("empty")
    for _ in range(maker.rng.randrange(0, 4)):
        divisors = [d for d in range(1, size + 1) if size % d == 0]
        shape.append(maker.rng.choice(divisors))
        size //= shape[-1]
    shape.insert(maker.rng.randrange(len(shape) + 1), size)
    wanted = list(shape)
    if maker.chance(0.4):
        wanted[maker.rng.randrange(len(wanted))] = -1
    for axis in range(min(len(wanted), value.rank)):
        if wanted[axis] == value.shape[axis] and maker.chance(0.5):
            wanted[axis] = 0
    maker.node("Reshape", [value, maker.ints(*wanted)], value.dtype)


def merge_axes(maker: Maker) -> None:
    """Two neighbouring axes made one, or one made two: what attention and channels use."""
    value = _any(maker, 1)
    axis = maker.rng.randrange(value.rank)
    extent = value.shape[axis]
    shape = [0] * axis
    if axis + 1 < value.rank and maker.chance(0.5):
        shape += [extent * value.shape[axis + 1], *value.shape[axis + 2 :]]
    else:
        factors = [d for d in range(1, extent + 1) if extent % d == 0] or [1]
        first = maker.rng.choice(factors)
        shape += [first, extent // first, *value.shape[axis + 1 :]]
    maker.node("Reshape", [value, maker.ints(*shape)], value.dtype)


def transpose(maker: Maker) -> None:
    """Axes in another order; often two transposes in a row."""
    value = _any(maker, 2)
    for _ in range(1 + maker.chance(0.3)):
        order = list(range(value.rank))
        if maker.chance(0.5):
            maker.rng.shuffle(order)
        else:
            order[-1], order[-2] = order[-2], order[-1]
        value = maker.node("Transpose", [value], value.dtype, perm=order)


def flatten(maker: Maker) -> None:
    """Flatten, Squeeze or Unsqueeze."""
    kind = maker.rng.choice(("Flatten", "Squeeze", "Unsqueeze"))
    if kind == "Flatten":
        value = _any(maker, 1)
        maker.node("Flatten", [value], value.dtype, axis=maker.rng.randrange(value.rank + 1))
    elif kind == "Squeeze":
        value = maker.pick(lambda v: 1 in v.shape and v.dtype != "bool")
        axis = maker.rng.choice([i for i, extent in enumerate(value.shape) if extent == 1])
        maker.node("Squeeze", [value, maker.ints(axis)], value.dtype)
    else:
        value = _any(maker, 0)
        axis = maker.rng.randrange(-value.rank - 1, value.rank + 1)
        maker.node("Unsqueeze", [value, maker.ints(axis)], value.dtype)


def slices(maker: Maker) -> None:
    """A slice with steps, negative ones too."""
    value = maker.pick(lambda v: v.rank >= 1 and v.array.size > 0 and v.dtype != "bool")
    axis = maker.rng.randrange(value.rank)
    extent = value.shape[axis]
    step = maker.rng.choice((1, 1, 1, 2, -1, -2))
    first = maker.rng.randrange(extent)
    last = maker.rng.randrange(first, extent) + 1
    if step < 0:
        begin, end = last - 1, first - 1 if first else -extent - 1
    else:
        begin, end = first, last
        if maker.chance(0.3):
            begin -= extent
        if last == extent and maker.chance(0.5):
            end = 1 << 40
    sign = axis - value.rank if maker.chance(0.5) else axis
    maker.node(
        "Slice",
        [value, maker.ints(begin), maker.ints(end), maker.ints(sign), maker.ints(step)],
        value.dtype,
    )


def concat(maker: Maker) -> None:
    """Two or three tensors of one type, at times the same one twice."""
    value = _any(maker, 1)
    axis = maker.rng.randrange(value.rank)

    def fits(other: Value) -> bool:
        return (
            other.dtype == value.dtype
            and other.rank == value.rank
            and all(
                a == b or i == axis
                for i, (a, b) in enumerate(zip(value.shape, other.shape, strict=True))
            )
        )

    parts = [value, maker.pick(fits)]
    if maker.chance(0.3):
        parts.append(maker.pick(fits))
    if maker.chance(0.2) and value.is_float:
        parts.insert(0, maker.random(value.shape, value.dtype))
    if value.is_float and not all(part.is_float for part in parts):
        raise Refused("mixed")
    maker.node("Concat", parts, value.dtype, axis=axis)


def split(maker: Maker) -> None:
    """Two or three parts, of which some may stay unused."""
    value = maker.pick(lambda v: v.rank >= 1 and max(v.shape) >= 2 and v.dtype != "bool")
    axis = maker.rng.choice([i for i, extent in enumerate(value.shape) if extent >= 2])
    cut = maker.rng.randrange(1, value.shape[axis])
    sizes = [cut, value.shape[axis] - cut]
    maker.node("Split", [value, maker.ints(*sizes)], value.dtype, outputs=len(sizes), axis=axis)


def pad(maker: Maker) -> None:
    """Constant, reflect or edge padding; cropping at times."""
    value = maker.pick_float(lambda v: 1 <= v.rank <= 5 and v.array.size > 0)
    mode = maker.rng.choice(("constant", "constant", "reflect", "edge"))
    before, after = [], []
    for extent in value.shape:
        most = 2 if mode == "constant" else min(2, extent - 1)
        some = maker.chance(0.5)
        before.append(maker.rng.randrange(most + 1) if some else 0)
        after.append(maker.rng.randrange(most + 1) if some else 0)
    operands: list[Value | None] = [value, maker.ints(*before, *after)]
    if mode == "constant" and maker.chance(0.5):
        operands.append(maker.weight(maker.rng.choice((0.0, 1.5, -2.0)), value.dtype))
    maker.node("Pad", operands, value.dtype, mode=mode)


def gather(maker: Maker) -> None:
    """Rows by constant indices, negative ones too, or by computed ones."""
    value = maker.pick(lambda v: v.rank >= 1 and v.array.size > 0 and v.dtype != "bool")
    axis = maker.rng.randrange(value.rank)
    extent = value.shape[axis]
    if maker.chance(0.3):
        index = maker.pick(
            lambda v: v.dtype in ("int64", "int32") and v.low >= -extent and v.high < extent
        )
    else:
        shape = maker.rng.choice(((), (1,), (3,), (2, 2)))
        picked = np.array(
            [maker.rng.randrange(-extent, extent) for _ in range(int(np.prod(shape)))], np.int64
        ).reshape(shape)
        index = maker.weight(picked, "int64")
    maker.node("Gather", [value, index], value.dtype, axis=axis)


def gather_elements(maker: Maker) -> None:
    """One element per position along an axis."""
    value = maker.pick(lambda v: v.rank >= 1 and v.array.size > 0 and v.dtype != "bool")
    axis = maker.rng.randrange(value.rank)
    shape = list(value.shape)
    shape[axis] = maker.rng.choice((1, 2, 5))
    source = np.random.default_rng(maker.rng.randrange(1 << 16))
    picked = source.integers(-value.shape[axis], value.shape[axis], shape)
    maker.node("GatherElements", [value, maker.weight(picked, "int64")], value.dtype, axis=axis)


def scatter(maker: Maker) -> None:
    """Elements replaced at constant positions."""
    value = maker.pick_float(lambda v: 1 <= v.rank <= 3 and v.array.size > 0)
    axis = maker.rng.randrange(value.rank)
    shape = list(value.shape)
    shape[axis] = 1
    index = np.full(shape, maker.rng.randrange(-value.shape[axis], value.shape[axis]))
    updates = maker.random(shape, value.dtype)
    maker.node(
        "ScatterElements", [value, maker.weight(index, "int64"), updates], value.dtype, axis=axis
    )


def expand(maker: Maker) -> None:
    """Expand or Tile."""
    value = maker.pick(lambda v: v.rank <= 4 and v.dtype != "bool")
    if maker.chance(0.5):
        shape = [maker.rng.choice((1, 2, 3)) if extent == 1 else extent for extent in value.shape]
        if maker.chance(0.5):
            shape.insert(0, maker.rng.choice((1, 2)))
        if not shape:
            raise Refused("scalar stays one")
        maker.node("Expand", [value, maker.ints(*shape)], value.dtype)
    elif value.rank:
        repeats = [maker.rng.choice((1, 1, 2, 3)) for _ in value.shape]
        maker.node("Tile", [value, maker.ints(*repeats)], value.dtype)
    else:
        raise Refused("scalar cannot be tiled")


def rearrange(maker: Maker) -> None:
    """SpaceToDepth, DepthToSpace, or what is left of a triangle."""
    kind = maker.rng.choice(("DepthToSpace", "SpaceToDepth", "Trilu"))
    if kind == "Trilu":
        value = maker.pick(lambda v: v.rank >= 2 and v.dtype == "float32")
        maker.node("Trilu", [value], value.dtype, upper=maker.rng.randrange(2))
    elif kind == "DepthToSpace":
        value = maker.pick(lambda v: v.rank == 4 and v.dtype == "float32" and v.shape[1] % 4 == 0)
        mode = maker.rng.choice(("DCR", "CRD"))
        maker.node(kind, [value], value.dtype, blocksize=2, mode=mode)
    else:
        value = maker.pick(
            lambda v: v.rank == 4 and v.dtype == "float32" and v.shape[2] % 2 == v.shape[3] % 2 == 0
        )
        maker.node(kind, [value], value.dtype, blocksize=2)


def resize(maker: Maker) -> None:
    """Twice the height and width, nearest or linear."""
    value = maker.pick(lambda v: v.rank == 4 and v.dtype == "float32" and v.array.size > 0)
    scales = maker.weight(np.array([1, 1, 2, 2], np.float32), "float32")
    mode = maker.rng.choice(("nearest", "linear"))
    coordinates = "asymmetric" if mode == "nearest" else "half_pixel"
    maker.node(
        "Resize",
        [value, None, scales],
        value.dtype,
        mode=mode,
        coordinate_transformation_mode=coordinates,
        nearest_mode="floor",
    )
