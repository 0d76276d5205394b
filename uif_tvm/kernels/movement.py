"""Kernels that copy elements to other places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvm import te

Index = tuple[Any, ...]


def read_from(
    x: te.Tensor, shape: Sequence[Any], source: Callable[..., Sequence[Any]], name: str
) -> te.Tensor:
    """``out[i] = x[source(i)]``."""
    from tvm import te, tirx

    if any(isinstance(n, tirx.IntImm) and int(n) == 0 for n in x.shape):
        return te.compute(shape, lambda *_: tirx.const(0, str(x.dtype)), name=name)
    return te.compute(shape, lambda *i: x(*source(*i)), name=name)


def tile(x: te.Tensor, repeats: Sequence[int]) -> te.Tensor:
    """Side by side with itself along each axis, new leading axes included."""
    from tvm import tirx

    rank = max(len(repeats), len(x.shape))
    new = rank - len(x.shape)
    times = [*[1] * (rank - len(repeats)), *repeats]
    shape = [t if axis < new else x.shape[axis - new] * t for axis, t in enumerate(times)]

    def source(*i: Any) -> Index:
        return tuple(tirx.floormod(at, n) for at, n in zip(i[new:], x.shape, strict=True))

    return read_from(x, shape, source, "tile")


def split(x: te.Tensor, bounds: Sequence[int], axis: int) -> list[te.Tensor]:
    """Consecutive parts of an axis, cut at ``bounds``; parts may be empty."""
    from tvm import te

    ends = [*bounds, x.shape[axis]]

    def part(start: int, end: Any) -> te.Tensor:
        shape = [*x.shape[:axis], end - start, *x.shape[axis + 1 :]]

        def element(*i: Any) -> Any:
            return x(*i[:axis], i[axis] + start, *i[axis + 1 :])

        return te.compute(shape, element, name="split")

    return [part(start, end) for start, end in zip([0, *bounds], ends, strict=True)]


def repeat(x: te.Tensor, repeats: int, axis: int) -> te.Tensor:
    """Each position of an axis several times in a row."""
    from tvm import tirx

    axis %= len(x.shape)
    shape = [n * repeats if at == axis else n for at, n in enumerate(x.shape)]

    def source(*i: Any) -> Index:
        return (*i[:axis], tirx.floordiv(i[axis], repeats), *i[axis + 1 :])

    return read_from(x, shape, source, "repeat")


def roll(x: te.Tensor, shift: Sequence[int], axis: Sequence[int]) -> te.Tensor:
    """Rotated along axes: what leaves at the end comes back at the start."""
    from tvm import tirx

    moved: dict[int, int] = {}
    for amount, at in zip(shift, axis, strict=True):
        moved[at % len(x.shape)] = moved.get(at % len(x.shape), 0) + amount

    def source(*i: Any) -> Index:
        return tuple(
            tirx.floormod(place - moved[at], x.shape[at]) if at in moved else place
            for at, place in enumerate(i)
        )

    return read_from(x, x.shape, source, "roll")


def flip(x: te.Tensor, axis: Sequence[int]) -> te.Tensor:
    """Axes backwards."""
    turned = {at % len(x.shape) for at in axis}

    def source(*i: Any) -> Index:
        return tuple(x.shape[at] - 1 - p if at in turned else p for at, p in enumerate(i))

    return read_from(x, x.shape, source, "flip")


def pad(
    x: te.Tensor,
    value: te.Tensor | float,
    before: Sequence[Any],
    after: Sequence[Any],
    mode: str = "constant",
) -> te.Tensor:
    """Elements around a tensor, or fewer where an amount is negative.

    Args:
        x: data.
        value: what ``constant`` fills with: a number, or a tensor of one element.
        before: amounts in front of each axis; ints or expressions of sizes.
        after: amounts behind each axis.
        mode: ``constant``, ``edge``, ``reflect`` or ``wrap``.
    """
    from tvm import te, tirx

    shape = [n + low + high for n, low, high in zip(x.shape, before, after, strict=True)]

    def element(*index: Any) -> Any:
        inside: list[Any] = []
        source: list[Any] = []
        for i, n, low, high in zip(index, x.shape, before, after, strict=True):
            if isinstance(low, int) and isinstance(high, int) and low == high == 0:
                source.append(i)
                continue
            place = i - low
            if mode == "constant":
                inside += [place >= 0] if _grows(low) else []
                inside += [place < n] if _grows(high) else []
                source.append(place)
            else:
                first = 0 if _grows(low) else -low
                last = n if _grows(high) else n + high
                source.append(first + _bordering(place - first, last - first, mode))
        if not inside:
            return x(*source)
        if isinstance(value, te.Tensor):
            fill = value(*[0] * len(value.shape))
        else:
            fill = tirx.const(value, str(x.dtype))
        condition = tirx.all(*inside) if len(inside) > 1 else inside[0]
        return tirx.if_then_else(condition, x(*source), fill)

    return te.compute(shape, element, name="pad")


def _grows(amount: Any) -> bool:
    """Whether an amount may be positive."""
    return not isinstance(amount, int) or amount > 0


def _bordering(place: Any, extent: Any, mode: str) -> Any:
    """Which element of an axis stands at a place outside or inside of it."""
    from tvm import tirx

    if mode == "edge":
        return tirx.max(tirx.min(place, extent - 1), 0)
    if mode == "wrap":
        return tirx.floormod(place, extent)
    period = 2 * (extent - 1)
    folded = tirx.floormod(place, tirx.max(period, 1))
    return tirx.min(folded, period - folded)


def trilu(x: te.Tensor, k: Any, upper: bool) -> te.Tensor:
    """The upper or lower triangle of matrices, from diagonal ``k`` on; zero elsewhere."""
    from tvm import te, tirx

    def element(*i: Any) -> Any:
        offset = (i[-1] - i[-2]).astype("int64")
        kept = offset >= k if upper else offset <= k
        return tirx.Select(kept, x(*i), tirx.const(0, str(x.dtype)))

    return te.compute(x.shape, element, name="trilu")


def depth_to_space(x: te.Tensor, blocksize: int, mode: str) -> te.Tensor:
    """Channels become blocks of pixels: ``[n, c b b, h, w] -> [n, c, h b, w b]``."""
    n, c, h, w = x.shape
    b = blocksize
    depth = c // (b * b)

    def source(batch: Any, channel: Any, row: Any, column: Any) -> Index:
        within = row % b * b + column % b
        at = within * depth + channel if mode == "DCR" else channel * (b * b) + within
        return batch, at, row // b, column // b

    return read_from(x, [n, depth, h * b, w * b], source, "depth_to_space")


def space_to_depth(x: te.Tensor, blocksize: int, mode: str) -> te.Tensor:
    """Blocks of pixels become channels: ``[n, c, h b, w b] -> [n, c b b, h, w]``."""
    n, c, h, w = x.shape
    b = blocksize

    def source(batch: Any, channel: Any, row: Any, column: Any) -> Index:
        within = channel // c if mode == "DCR" else channel % (b * b)
        at = channel % c if mode == "DCR" else channel // (b * b)
        return batch, at, row * b + within // b, column * b + within % b

    return read_from(x, [n, c * b * b, h // b, w // b], source, "space_to_depth")
