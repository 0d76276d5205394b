"""What the matmul kernels compute, as tensor expressions; how fast is the schedules' business.

*Packed*: ``y[..., n] = sum_k x[..., k] * w[n // nb, k, n % nb]`` with a constant right-hand side
packed at export by :func:`pack_weight`. The sum is computed in whole register tiles
``[..., M / mb, N / nb, mb, nb]`` (rows past the end repeat the last row, columns past the end are
zero weights), and a copy-out stage keeps what belongs to the result. So every tile is full and
no loop that accumulates has a condition in it.

*Batched*: both sides computed at run time, the right-hand one packed panel by panel on the way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from uif_tvm.target.schedule import FAMILY_ATTR

if TYPE_CHECKING:
    from tvm import te

#: Families of the anchor blocks.
PACKED_MATMUL = "packed_matmul"
BATCH_MATMUL = "batch_matmul"

#: ``op_pattern`` of kernels that take element-wise epilogues.
OUT_FUSABLE = 4


def pack_weight(weight: np.ndarray[Any, Any], n_block: int) -> np.ndarray[Any, Any]:
    """``[K, N] -> [ceil(N / nb), K, nb]``, zeros in the columns past N."""
    depth, width = weight.shape
    panels = -(-width // n_block)
    padded = np.zeros((depth, panels * n_block), weight.dtype)
    padded[:, :width] = weight
    return np.ascontiguousarray(padded.reshape(depth, panels, n_block).transpose(1, 0, 2))


def unpack_weight(packed: np.ndarray[Any, Any], width: int) -> np.ndarray[Any, Any]:
    """Inverse of :func:`pack_weight` for a weight of ``width`` columns."""
    panels, depth, n_block = packed.shape
    return packed.transpose(1, 0, 2).reshape(depth, panels * n_block)[:, :width]


def packed_matmul(x: te.Tensor, packed: te.Tensor, width: int, m_block: int) -> te.Tensor:
    """``[..., M, K] x packed [N/nb, K, nb] -> [..., M, N]``.

    Args:
        x: left-hand side with at least two axes; the last but one is cut into row tiles.
        packed: from :func:`pack_weight`.
        width: N, columns of the result.
        m_block: rows of one register tile.
    """
    from tvm import te

    lead, n_block = x.shape[:-1], packed.shape[2]
    acc = tile_sums(x, packed, m_block, {FAMILY_ATTR: PACKED_MATMUL})

    def copy_out(*index: Any) -> Any:
        *batch, m, n = index
        return acc[(*batch, m // m_block, n // n_block, m % m_block, n % n_block)]

    return te.compute(shape64(*lead, width), copy_out, name="matmul")


def tile_sums(x: te.Tensor, packed: te.Tensor, m_block: int, attrs: Mapping[str, Any]) -> te.Tensor:
    """All register tiles ``[..., M / mb, N / nb, mb, nb]`` of a packed product.

    Args:
        attrs: annotations of the anchor block.
    """
    from tvm import te, tirx

    *lead, depth = x.shape
    panels, _, n_block = packed.shape
    *outer, rows = lead
    exact = _divides(m_block, rows)
    k = te.reduce_axis((int64(0), int64(depth)), name="k")

    def tile_sum(*index: Any) -> Any:
        *batch, mo, no, mi, ni = index
        row = mo * m_block + mi
        row = row if exact else tirx.min(row, rows - 1)
        return te.sum(x[(*batch, row, k)] * packed[no, k, ni], axis=k)

    return te.compute(
        shape64(*outer, _ceildiv(rows, m_block), panels, m_block, n_block),
        tile_sum,
        name="matmul_tile",
        attrs=dict(attrs),
    )


def batch_matmul(
    x: te.Tensor, y: te.Tensor, tile: tuple[int, int], transpose_y: bool = False
) -> te.Tensor:
    """``[..., M, K] x [..., K, N] -> [..., M, N]``; leading axes broadcast as NumPy's do.

    Args:
        x: left-hand side, two axes or more.
        y: right-hand side; ``[..., N, K]`` with ``transpose_y``.
        tile: rows and columns of the register tile.
        transpose_y: contract over the last axis of ``y`` instead of the last but one.
    """
    from tvm import te, tirx

    m_block, n_block = tile
    lead = _broadcast(x.shape[:-2], y.shape[:-2])
    rows, depth = x.shape[-2:]
    width = y.shape[-2] if transpose_y else y.shape[-1]
    exact_m, exact_n = _divides(m_block, rows), _divides(n_block, width)

    def clamp(index: Any, extent: Any, exact: bool) -> Any:
        return index if exact else tirx.min(index, extent - 1)

    def panel(*index: Any) -> Any:
        *batch, no, k, ni = index
        n = clamp(no * n_block + ni, width, exact_n)
        lead_y = _select(batch, y.shape[:-2])
        return y[(*lead_y, n, k)] if transpose_y else y[(*lead_y, k, n)]

    panels = _ceildiv(width, n_block)
    packed = te.compute(shape64(*lead, panels, depth, n_block), panel, name="pack_rhs")
    k = te.reduce_axis((int64(0), int64(depth)), name="k")

    def tile_sum(*index: Any) -> Any:
        *batch, mo, no, mi, ni = index
        m = clamp(mo * m_block + mi, rows, exact_m)
        left = x[(*_select(batch, x.shape[:-2]), m, k)]
        return te.sum(left * packed[(*batch, no, k, ni)], axis=k)

    acc = te.compute(
        shape64(*lead, _ceildiv(rows, m_block), panels, m_block, n_block),
        tile_sum,
        name="matmul_tile",
        attrs={FAMILY_ATTR: BATCH_MATMUL},
    )

    def copy_out(*index: Any) -> Any:
        *batch, m, n = index
        return acc[(*batch, m // m_block, n // n_block, m % m_block, n % n_block)]

    return te.compute(shape64(*lead, rows, width), copy_out, name="matmul")


def int64(extent: Any) -> Any:
    """``extent`` as a 64-bit index expression.

    Relax shapes are 64-bit; one 32-bit extent among them puts casts into the loop bindings, and
    schedule primitives no longer see that they are affine.
    """
    from tvm import tirx

    known = _known(extent)
    return extent if known is None else tirx.IntImm("int64", known)


def shape64(*extents: Any) -> tuple[Any, ...]:
    """A tensor shape of 64-bit extents."""
    return tuple(int64(extent) for extent in extents)


def _known(extent: Any) -> int | None:
    from tvm import tirx

    if isinstance(extent, int):
        return extent
    return int(extent.value) if isinstance(extent, tirx.IntImm) else None


def _ceildiv(extent: Any, block: int) -> Any:
    known = _known(extent)
    # (n - 1) // b + 1, not (n + b - 1) // b: only this form lets TVM prove that the tiles cover
    # every row that the copy-out stage reads.
    return -(-known // block) if known is not None else (extent - 1) // block + 1


def _divides(block: int, extent: Any) -> bool:
    known = _known(extent)
    return known is not None and known % block == 0


def _broadcast(left: Sequence[Any], right: Sequence[Any]) -> tuple[Any, ...]:
    """NumPy's rule for leading axes; a symbolic extent wins over 1."""
    short, long = sorted((list(left), list(right)), key=len)
    padded = [1] * (len(long) - len(short)) + short
    return tuple(b if _known(a) == 1 else a for a, b in zip(padded, long, strict=True))


def _select(batch: Sequence[Any], shape: Sequence[Any]) -> tuple[Any, ...]:
    """The part of a broadcast index that an operand of leading ``shape`` sees."""
    own = batch[len(batch) - len(shape) :]
    return tuple(
        0 if _known(extent) == 1 else position for position, extent in zip(own, shape, strict=True)
    )
