"""What a task of fused attention reads: operands as float32, one block of keys and values ready.

Keys are transposed into panels, square by square in registers; values are copied only where they
are not vectors of float32 already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uif_tvm.schedules.x86 import conv2d_tir as tir
from uif_tvm.schedules.x86.attention_softmax import ceildiv, plain
from uif_tvm.schedules.x86.conv2d_tir import lanes_from, loop, read, seq, splat, write
from uif_tvm.schedules.x86.transposing import transposed

if TYPE_CHECKING:
    from uif_tvm.kernels.fused_attention import AttentionForm, View
    from uif_tvm.target.schedule import AttentionPlan

_FLOAT = "float32"


class KeyBlock:
    """One block of keys and values of one head.

    Args:
        key, value: the operands.
        keys: their positions.
    """

    def __init__(
        self, key: Any, value: Any, keys: Any, form: AttentionForm, plan: AttentionPlan, lanes: int
    ) -> None:
        self.key, self.value, self.keys = key, value, keys
        self.form, self.plan, self.lanes = form, plan, lanes
        self.padded = ceildiv(form.width, lanes) * lanes
        size = plan.key_block * form.depth
        self.packed = tir.workspace("packed", (size,), _FLOAT, "local")
        self.values = None
        if str(value.dtype) != _FLOAT or form.width % lanes:
            self.values = tir.workspace("values", (plan.key_block * self.padded,), _FLOAT)

    @property
    def buffers(self) -> list[Any]:
        """Workspaces of a task."""
        return [self.packed, *([] if self.values is None else [self.values])]

    def prepare(self, b: Any, g: Any, start: Any) -> Any:
        """Make the block from key ``start`` on ready."""
        return seq(self._pack_keys(b, g, start), self._stage_values(b, g, start))

    def panel(self, p: Any, d: Any, v: int) -> Any:
        """Feature ``d`` of the keys of vector ``v`` of panel ``p``."""
        size, lanes = self.plan.panel, self.lanes
        at = p * (size * self.form.depth) + d * size + v * lanes
        return read(self.packed, lanes_from(at, lanes))

    def vector(self, b: Any, g: Any, start: Any, k: Any, column: Any) -> Any:
        """A vector of features, from ``column`` on, of value ``start + k``."""
        if self.values is not None:
            return read(self.values, lanes_from(k * self.padded + column, self.lanes))
        return operand(
            self.value, self.form.value, b, g, start + k, lanes_from(column, self.lanes),
            self.form.width,
        )  # fmt: skip

    def _pack_keys(self, b: Any, g: Any, start: Any) -> Any:
        """``packed[k // panel, d, k % panel] = key[start + k, d]``, keys past the end repeated."""
        from tvm import tirx

        depth, lanes, panel = self.form.depth, self.lanes, self.plan.panel
        whole = depth // lanes * lanes
        count = tirx.min(self.keys - start, tir.i64(self.plan.key_block))

        def at(group: Any, d: Any, lane: Any) -> Any:
            k = group * lanes
            return k // panel * (panel * depth) + d * panel + k % panel + lane

        def load(group: Any, i: int, d: Any) -> Any:
            row = tirx.min(start + group * lanes + i, self.keys - 1)
            return operand(self.key, self.form.key, b, g, row, d, depth)

        def square(group: Any, d: Any) -> Any:
            return transposed(
                lanes,
                lambda i: load(group, i, lanes_from(d, lanes)),
                lambda j, value: write(self.packed, value, lanes_from(at(group, d + j, 0), lanes)),
            )

        def rest(group: Any) -> Any:
            return loop("d", depth - whole, lambda d: loop("i", lanes, lambda i: write(
                self.packed, load(group, i, whole + d), at(group, whole + d, i))))  # fmt: skip

        def group(index: Any) -> Any:
            squares = loop("d", whole // lanes, lambda d: square(index, d * lanes))
            return seq(squares, rest(index) if whole < depth else None)

        # Whole panels are multiplied, so the last one is filled up with what is at hand.
        groups = ceildiv(count, panel) * (panel // lanes)
        return loop("group", plain(groups), group)

    def _stage_values(self, b: Any, g: Any, start: Any) -> Any:
        """``values[k, d]`` as float32 in whole vectors, zeros past the last feature."""
        from tvm import tirx

        if self.values is None:
            return None
        width, lanes, padded = self.form.width, self.lanes, self.padded
        whole = width // lanes * lanes

        def load(k: Any, d: Any) -> Any:
            return operand(self.value, self.form.value, b, g, start + k, d, width)

        def row(k: Any) -> Any:
            vectors = loop("v", whole // lanes, lambda v: write(
                self.values, load(k, lanes_from(v * lanes, lanes)),
                lanes_from(k * padded + v * lanes, lanes)))  # fmt: skip
            if whole == width:
                return vectors
            zero = splat(float32(0.0), lanes)
            clear = write(self.values, zero, lanes_from(k * padded + whole, lanes))
            rest = loop("d", width - whole, lambda d: write(
                self.values, load(k, whole + d), k * padded + whole + d))  # fmt: skip
            return seq(vectors, clear, rest)

        count = tirx.min(self.keys - start, tir.i64(self.plan.key_block))
        return loop("k", plain(count), row)


def operand(buffer: Any, view: View, b: Any, h: Any, s: Any, d: Any, size: int) -> Any:
    """Elements of an operand as float32; ``d`` may be a vector."""
    index = list(view.index(b, h, s, d, size))
    if view.rows and hasattr(d, "lanes"):
        # A vector index must be one ramp for the code generator to see a vector load.
        index[-1] = lanes_from(view.start + h * size + d.base, int(d.lanes))
    loaded = read(buffer, *index)
    lanes = int(d.lanes) if hasattr(d, "lanes") else 1
    return loaded if str(buffer.dtype) == _FLOAT else loaded.astype(_wide(lanes))


def float32(value: float) -> Any:
    """A float32 constant."""
    from tvm import tirx

    return tirx.const(value, _FLOAT)


def _wide(lanes: int) -> str:
    return _FLOAT if lanes == 1 else f"{_FLOAT}x{lanes}"
