"""Winograd convolution, what it computes: 3x3 windows of stride 1 over blocked activations.

F(m x m, 3 x 3) makes an ``m x m`` tile of results from an ``n x n`` tile of inputs, ``n = m + 2``,
with ``n*n`` multiplications per channel pair instead of ``9*m*m``:

    Y = A^T [ (G g G^T) . (B^T d B) ] A        (summed over input channels inside the brackets)

The matrices follow from ``n - 1`` interpolation points and the point at infinity by the Toom-Cook
construction (:func:`transform`); the points decide how much rounding errors grow. Sources:
A. Lavin, S. Gray, *Fast Algorithms for Convolutional Neural Networks*, CVPR 2016;
B. Barabasz et al., *Error Analysis and Improving the Accuracy of Winograd Convolution for Deep
Neural Networks*, ACM TOMS 46(4), 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from uif_tvm.kernels.layout import (
    ELEMENTWISE_FUSABLE,
    Window,
    blocks,
    extents,
    prim_func,
    reduce_axis,
    within,
)
from uif_tvm.target.schedule import FAMILY_ATTR

if TYPE_CHECKING:
    import tvm

#: Family of the anchor, which transforms products into results, and of the stages before it.
WINOGRAD, STAGE = "winograd", "winograd_stage"
#: Anchor annotation: rows (and columns) of a tile of results.
TILE_ATTR = "uif.winograd_tile"
#: Anchor annotation: input channels, output channels.
CHANNELS_ATTR = "uif.channels"
#: Extent of the window.
TAPS = 3

Row = tuple[Fraction, ...]
Matrix = tuple[Row, ...]


@dataclass(frozen=True)
class Transform:
    """The three matrices of F(m, 3) in one dimension, exact.

    Args:
        points: finite interpolation points; the last row or column belongs to infinity.
        at: ``A^T``, ``m x n``: products to results.
        g: ``G``, ``n x 3``: taps to factors.
        bt: ``B^T``, ``n x n``: inputs to factors.
    """

    points: Row
    at: Matrix
    g: Matrix
    bt: Matrix

    @property
    def tile(self) -> int:
        """Results per tile and dimension, ``m``."""
        return len(self.at)

    @property
    def size(self) -> int:
        """Inputs per tile and dimension, ``n``; also products."""
        return len(self.bt)

    @property
    def growth(self) -> float:
        """How much larger the products' sums are than the results, root mean square, in 2-D.

        For independent inputs and taps of unit variance: the square root of
        ``sum_i A_ki^2 |G_i|^2 |B_i|^2 / 3``, largest over results k, squared for two dimensions.
        Rounding errors made on the products grow by this much relative to the results.
        """
        g, bt = _norms(self.g), _norms(self.bt)
        worst = max(
            sum(float(a) ** 2 * u * v for a, u, v in zip(row, g, bt, strict=True))
            for row in self.at
        )
        return worst / TAPS


#: Points per tile size. Two sizes of +-pairs share half of the arithmetic; all coefficients of
#: B^T and A^T are dyadic rationals, exact in float32. For m = 4 the pair (5/8, 3/2) makes errors
#: grow 8.2 times, the customary (1, 2) 31 times.
_POINTS: dict[int, Row] = {
    2: (Fraction(0), Fraction(1), Fraction(-1)),
    4: (Fraction(0), Fraction(5, 8), Fraction(-5, 8), Fraction(3, 2), Fraction(-3, 2)),
}
TILES = tuple(_POINTS)


@cache
def transform(tile: int) -> Transform:
    """The transform of one of :data:`TILES`."""
    return toom_cook(tile, _POINTS[tile])


def toom_cook(tile: int, points: Row) -> Transform:
    """F(tile, 3) over distinct ``points`` (``tile + 1`` of them) and infinity.

    With ``M(x) = prod_i (x - a_i)`` and ``f_i = prod_{j != i} (a_i - a_j)``: row i of ``B^T``
    holds the coefficients of ``M(x) / (x - a_i)``, row i of ``G`` the powers of ``a_i`` over
    ``f_i``, column i of ``A^T`` its powers; infinity takes ``M`` and the highest powers.
    """
    size = tile + TAPS - 1
    if len(points) != size - 1 or len(set(points)) != len(points):
        raise ValueError(f"F({tile}, {TAPS}) needs {size - 1} distinct points, got {points}")
    g, bt = [], []
    for i, point in enumerate(points):
        others = points[:i] + points[i + 1 :]
        scale = Fraction(1)
        for other in others:
            scale *= point - other
        g.append(tuple(point**k / scale for k in range(TAPS)))
        bt.append((*_monic(others), Fraction(0)))
    g.append(_unit(TAPS))
    bt.append(_monic(points))
    at = tuple((*(p**k for p in points), Fraction(int(k == tile - 1))) for k in range(tile))
    return Transform(points, at, tuple(g), tuple(bt))


def _monic(roots: Row) -> Row:
    """Coefficients of ``prod (x - root)``, the constant one first."""
    found = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *found]
        found = [a - root * b for a, b in zip(shifted, [*found, Fraction(0)], strict=True)]
    return tuple(found)


def _unit(length: int) -> Row:
    return (Fraction(0),) * (length - 1) + (Fraction(1),)


def _norms(rows: Matrix) -> list[float]:
    return [sum(float(v) ** 2 for v in row) for row in rows]


def expected_error(tile: int, channels: int) -> float:
    """Expected rounding error of float32 results over their root mean square.

    Products are sums of ``channels`` terms, whose errors add up as a random walk's; the growth of
    :attr:`Transform.growth` applies to them and to the roundings of the transforms.
    """
    found = transform(tile)
    roundings = sqrt(channels + 2.0 * found.size)
    return 2.0**-24 * found.growth * roundings / sqrt(TAPS * TAPS)


def packed_shape(
    in_channels: int, out_channels: int, tile: int, in_block: int, out_block: int
) -> tuple[int, int, int, int, int]:
    """Shape that :func:`pack_weight` makes."""
    size = transform(tile).size
    depth, count = blocks(in_channels, in_block), blocks(out_channels, out_block)
    return count, size * size, depth, in_block, out_block


def pack_weight(
    weight: np.ndarray[Any, Any], tile: int, in_block: int, out_block: int
) -> np.ndarray[Any, Any]:
    """``G g G^T`` of OIHW weights as ``[ceil(O/ob), n*n, ceil(I/ib), ib, ob]``.

    Transformed in float64 and rounded once; zero past the last channel.
    """
    out_channels, in_channels = weight.shape[:2]
    g = np.array([[float(v) for v in row] for row in transform(tile).g])
    factors = np.einsum("ip,ocpq,jq->ijco", g, weight.astype(np.float64), g, optimize=True)
    count, products, depth, _, _ = packed_shape(
        in_channels, out_channels, tile, in_block, out_block
    )
    padded = np.zeros((products, depth * in_block, count * out_block), weight.dtype)
    padded[:, :in_channels, :out_channels] = factors.reshape(products, in_channels, -1)
    shape = (products, depth, in_block, count, out_block)
    return np.ascontiguousarray(padded.reshape(shape).transpose(3, 0, 1, 2, 4))


def conv2d(
    data: tuple[int, int, int, int, int],
    weight: tuple[int, int, int, int, int],
    channels: tuple[int, int],
    padding: tuple[int, int, int, int],
    out_block: int,
    tile: int,
    dtype: str = "float32",
) -> tvm.tirx.PrimFunc:
    """3x3 convolution of stride 1 through F(tile x tile, 3 x 3).

    A NaN or an infinity of the input reaches all results of its tile (as NaN), where the direct
    kernel keeps it to the nine results that its window covers.

    Args:
        data: blocked input ``[N, ceil(C/cb), H, W, cb]``.
        weight: shape of the weights as :func:`pack_weight` makes them.
        channels: real input and output channels.
        padding: zeros before and after the rows and columns (t, l, b, r).
        out_block: channel block of the result ``[N, ceil(O/cb), OH, OW, cb]``.
        tile: one of :data:`TILES`.
        dtype: element type of everything.
    """
    from tvm import te

    found, window = transform(tile), Window((TAPS, TAPS), (1, 1), padding)
    rows, columns = window.out(data[2], data[3])
    x = te.placeholder(extents(*data), dtype, name="data")
    w = te.placeholder(extents(*weight), dtype, name="weight")
    tiles = blocks(rows, tile), blocks(columns, tile)
    v = _transformed_input(x, data, found, padding, tiles)
    product = _products(v, w, data, weight, channels, found.size, tiles)
    at = _constant(found.at, "output_matrix", dtype)
    i, j = reduce_axis(found.size, "i"), reduce_axis(found.size, "j")

    def body(n: Any, co: Any, y: Any, xx: Any, ci: Any) -> Any:
        value = product[n, co * out_block + ci, i, j, y // tile, xx // tile]
        return te.sum(at[y % tile, i] * at[xx % tile, j] * value, axis=[i, j])

    shape = (data[0], blocks(channels[1], out_block), rows, columns, out_block)
    attrs = {
        FAMILY_ATTR: WINOGRAD,
        TILE_ATTR: tile,
        CHANNELS_ATTR: list(channels),
        **window.attrs(),
    }
    out = te.compute(extents(*shape), body, name="winograd", attrs=attrs)
    return prim_func([x, w, out], ELEMENTWISE_FUSABLE)


def _transformed_input(
    x: Any,
    data: tuple[int, int, int, int, int],
    found: Transform,
    padding: tuple[int, int, int, int],
    tiles: tuple[int, int],
) -> Any:
    """``B^T d B`` of every tile: ``[N, C/cb, n, n, tile rows, tile columns, cb]``."""
    from tvm import te, tirx

    batch, count, height, width, block = data
    bt = _constant(found.bt, "input_matrix", str(x.dtype))
    p, q = reduce_axis(found.size, "p"), reduce_axis(found.size, "q")
    # The window that a tile is of the padded input: it may also leave it at the end.
    (up, down), reach = tiles, found.size
    last = (up - 1) * found.tile + reach, (down - 1) * found.tile + reach
    bottom, right = last[0] - height - padding[0], last[1] - width - padding[1]
    view = Window((reach, reach), (found.tile,) * 2, (padding[0], padding[1], bottom, right))

    def body(n: Any, c: Any, i: Any, j: Any, ty: Any, tx: Any, lane: Any) -> Any:
        y, xx = view.rows(ty, p), view.columns(tx, q)
        value = x[n, c, y, xx, lane]
        inside = within(view, height, width, y, xx)
        if inside is not None:
            value = tirx.if_then_else(inside, value, tirx.const(0, str(x.dtype)))
        return te.sum(bt[i, p] * bt[j, q] * value, axis=[p, q])

    shape = extents(batch, count, found.size, found.size, *tiles, block)
    return te.compute(shape, body, name="winograd_input", attrs={FAMILY_ATTR: STAGE})


def _products(
    v: Any,
    w: Any,
    data: tuple[int, int, int, int, int],
    weight: tuple[int, int, int, int, int],
    channels: tuple[int, int],
    size: int,
    tiles: tuple[int, int],
) -> Any:
    """Products summed over channels, ``[N, O, n, n, tile rows, tile columns]``."""
    from tvm import te

    rc = reduce_axis(channels[0], "rc")
    in_block, weight_block = data[4], weight[4]

    def body(n: Any, o: Any, i: Any, j: Any, ty: Any, tx: Any) -> Any:
        c, lane = rc // in_block, rc % in_block
        factor = w[o // weight_block, i * size + j, c, lane, o % weight_block]
        return te.sum(v[n, c, i, j, ty, tx, lane] * factor, axis=rc)

    shape = extents(data[0], weight[0] * weight_block, size, size, *tiles)
    return te.compute(shape, body, name="winograd_product", attrs={FAMILY_ATTR: STAGE})


def _constant(matrix: Matrix, name: str, dtype: str) -> Any:
    """``matrix`` as a tensor that the kernel fills itself."""
    from tvm import te, tirx

    def body(i: Any, j: Any) -> Any:
        value = tirx.const(0, dtype)
        for row, numbers in enumerate(matrix):
            line = tirx.const(0, dtype)
            for column, number in enumerate(numbers):
                if number:
                    line = tirx.Select(j == column, tirx.const(float(number), dtype), line)
            value = tirx.Select(i == row, line, value)
        return value

    shape = extents(len(matrix), len(matrix[0]))
    return te.compute(shape, body, name=name, attrs={FAMILY_ATTR: STAGE})
