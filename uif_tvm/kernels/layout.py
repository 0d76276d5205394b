"""Blocked activation layout: shapes, windows and the two layout changes.

``[N, C, H, W]`` is stored as ``[N, ceil(C/cb), H, W, cb]``. Lanes past the last real channel are
*unspecified*: zero after :func:`block`, anything (NaN included) after element-wise kernels. They
are never read into a real lane, so only per-lane kernels may run on blocked tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uif_tvm.kernels import arithmetic
from uif_tvm.kernels.pointwise import pointwise
from uif_tvm.target.schedule import FAMILY_ATTR

if TYPE_CHECKING:
    import tvm

BLOCK = "layout_block"
UNBLOCK = "layout_unblock"
#: Anchor annotation: kernel, strides, padding (t, l, b, r) and dilation, ten integers.
WINDOW_ATTR = "uif.window"
#: FuseOps patterns: chains freely; takes element-wise followers as epilogue; never fused.
INJECTIVE, ELEMENTWISE_FUSABLE, OPAQUE = 2, 4, 8
#: Operators in which TOPI loses NaN.
_OWN = {"maximum": arithmetic.maximum, "minimum": arithmetic.minimum}


@dataclass(frozen=True)
class Window:
    """A sliding window; lengths in elements, ``padding`` as (top, left, bottom, right)."""

    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)

    def attrs(self) -> dict[str, list[int]]:
        """The window as a block annotation."""
        return {WINDOW_ATTR: [*self.kernel, *self.strides, *self.padding, *self.dilation]}

    @staticmethod
    def from_attrs(annotations: Any) -> Window:
        """Inverse of :meth:`attrs`."""
        v = [int(item) for item in annotations[WINDOW_ATTR]]
        return Window((v[0], v[1]), (v[2], v[3]), (v[4], v[5], v[6], v[7]), (v[8], v[9]))

    def reach(self, axis: int) -> int:
        """Input elements that one output element spans along ``axis``."""
        return self.dilation[axis] * (self.kernel[axis] - 1) + 1

    def out(self, height: int, width: int) -> tuple[int, int]:
        """Extents of the result."""
        top, left, bottom, right = self.padding
        return (
            (height + top + bottom - self.reach(0)) // self.strides[0] + 1,
            (width + left + right - self.reach(1)) // self.strides[1] + 1,
        )

    def rows(self, out_row: Any, tap: Any) -> Any:
        """Input row that tap ``tap`` of output row ``out_row`` reads; may be outside."""
        return out_row * self.strides[0] + tap * self.dilation[0] - self.padding[0]

    def columns(self, out_column: Any, tap: Any) -> Any:
        """Input column that tap ``tap`` of output column ``out_column`` reads."""
        return out_column * self.strides[1] + tap * self.dilation[1] - self.padding[1]


def blocks(channels: int, block: int) -> int:
    """Blocks that hold ``channels`` channels."""
    return -(-channels // block)


def extents(*values: int) -> list[Any]:
    """Shape as 64-bit integers: Relax has no others, and FuseTIR compares buffers exactly."""
    from tvm import tirx

    return [tirx.IntImm("int64", value) for value in values]


def prim_func(tensors: list[Any], pattern: int) -> tvm.tirx.PrimFunc:
    """The kernel that computes the last of ``tensors``, marked for FuseOps with ``pattern``."""
    from tvm import te

    func = te.create_prim_func(tensors).without_attr("global_symbol")
    return func.with_attr("op_pattern", pattern)


def reduce_axis(extent: int, name: str) -> Any:
    """A 64-bit reduction axis ``[0, extent)``."""
    from tvm import te

    return te.reduce_axis(tuple(extents(0, extent)), name=name)


def within(window: Window, height: int, width: int, row: Any, column: Any) -> Any:
    """Condition that ``(row, column)`` lies in the input; ``None`` when it always does."""
    from tvm import tirx

    out_height, out_width = window.out(height, width)
    last_row = window.rows(out_height - 1, window.kernel[0] - 1)
    last_column = window.columns(out_width - 1, window.kernel[1] - 1)
    checks = []
    if window.padding[0] > 0:
        checks.append(row >= 0)
    if last_row >= height:
        checks.append(row < height)
    if window.padding[1] > 0:
        checks.append(column >= 0)
    if last_column >= width:
        checks.append(column < width)
    return tirx.all(*checks) if checks else None


def block(shape: tuple[int, ...], width: int, dtype: str) -> tvm.tirx.PrimFunc:
    """``out[n,c,h,w,l] = data[n, c*width + l, h, w]``, zero past the last channel.

    Args:
        shape: ``[N, C, H, W]``, or ``[N, C, W]`` with one row.
        width: channels per block.
        dtype: element type.
    """
    from tvm import te, tirx

    batch, channels, *plane = shape
    rows, columns = plane if len(plane) == 2 else (1, *plane)
    x = te.placeholder(extents(*shape), dtype, name="data")

    def body(n: Any, c: Any, h: Any, w: Any, lane: Any) -> Any:
        channel = c * width + lane
        value = x[n, channel, h, w] if len(plane) == 2 else x[n, channel, w]
        if channels % width == 0:
            return value
        return tirx.if_then_else(channel < channels, value, tirx.const(0, dtype))

    target = extents(batch, blocks(channels, width), rows, columns, width)
    out = te.compute(target, body, name="block", attrs={FAMILY_ATTR: BLOCK})
    return prim_func([x, out], OPAQUE)


def unblock(shape: tuple[int, ...], width: int, dtype: str) -> tvm.tirx.PrimFunc:
    """``out[n,c,h,w] = data[n, c // cb, h, w, c % cb]``: drops unspecified lanes.

    Args:
        shape: of the result, ``[N, C, H, W]`` or ``[N, C, W]`` (the data then has one row).
        width: channels per block.
        dtype: element type.
    """
    from tvm import te

    batch, channels, *plane = shape
    rows, columns = plane if len(plane) == 2 else (1, *plane)
    source = (batch, blocks(channels, width), rows, columns, width)
    x = te.placeholder(extents(*source), dtype, name="data")

    def body(n: Any, c: Any, *at: Any) -> Any:
        h, w = at if len(plane) == 2 else (0, *at)
        return x[n, c // width, h, w, c % width]

    out = te.compute(extents(*shape), body, name="unblock", attrs={FAMILY_ATTR: UNBLOCK})
    return prim_func([x, out], OPAQUE)


def gate(op: str, left: tuple[int, ...], right: tuple[int, ...], dtype: str) -> tvm.tirx.PrimFunc:
    """``op(left, right)`` with broadcasting, as a kernel that is never fused.

    Fused into the small operand's producer it would take the place of that kernel's schedule.

    Args:
        op: name of a TOPI binary operator.
        left, right: shapes of the operands.
        dtype: element type.
    """
    from tvm import te, topi

    a = te.placeholder(extents(*left), dtype, name="left")
    b = te.placeholder(extents(*right), dtype, name="right")
    formula = _OWN.get(op)
    out = getattr(topi, op)(a, b) if formula is None else pointwise(formula, op)(a, b)
    return prim_func([a, b, out], OPAQUE)
