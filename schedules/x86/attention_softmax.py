"""The softmax inside fused attention: peaks, powers and totals of one row at a time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from uif_tvm.schedules.x86 import conv2d_tir as tir
from uif_tvm.schedules.x86.conv2d_tir import Registers, lanes_from, loop, read, seq, splat, write
from uif_tvm.schedules.x86.transposing import shuffle

if TYPE_CHECKING:
    from uif_tvm.schedules.x86.attention_nest import AttentionNest

_FLOAT = "float32"


class Softmax:
    """Scores of one tile of rows, and the running peak and total of every row of a task.

    Args:
        nest: the kernel.
        rows: rows whose state is kept.
    """

    def __init__(self, nest: AttentionNest, rows: int) -> None:
        self.nest, self.form, self.plan, self.lanes = nest, nest.form, nest.plan, nest.lanes
        size = self.plan.tile_rows * self.plan.key_block
        self.scores = tir.workspace("scores", (size,), _FLOAT, "local")
        self.alpha = tir.workspace("alpha", (self.plan.tile_rows,), _FLOAT, "local")
        self.peak = tir.workspace("peak", (rows,), _FLOAT, "local")
        self.total = tir.workspace("total", (rows,), _FLOAT, "local")
        self.rows = rows
        self.buffers = (self.scores, self.alpha, self.peak, self.total)

    def start(self) -> Any:
        """No key seen yet."""
        return loop("row", self.rows, lambda r: seq(
            write(self.peak, _const(-math.inf), r), write(self.total, _const(0.0), r)))  # fmt: skip

    def sight(self, position: Any) -> Any:
        """How many of the keys, from the first on, a query at ``position`` may see at most."""
        from tvm import tirx

        form, limit = self.form, self.nest.keys
        if form.causal:
            limit = tirx.min(limit, position + form.offset + 1)
        if form.after >= 0:
            limit = tirx.min(limit, position + (form.offset + form.after + 1))
        return limit

    def inverse_total(self, row: Any) -> Any:
        """1 / total, 1 where no key was seen: the sums are zeros there."""
        from tvm import tirx

        total = read(self.total, row)
        return _const(1.0) / tirx.Select(total == _const(0.0), _const(1.0), total)

    def row(
        self, head: Any, position: Any, b: Any, start: Any, r: Any, state: Any, count: Any
    ) -> Any:
        """Row ``r`` of the tile: scores of ``count`` keys from ``start`` on become powers."""
        return tir.named("head", head, lambda h: tir.named("position", position, lambda p: seq(
            self._adjusted(h, p, b, start, r, count),
            self._powers(p, start, r, state, count),
        )))  # fmt: skip

    def _at(self, r: Any, k: Any, count: int) -> Any:
        return lanes_from(r * self.plan.key_block + k, count)

    def _adjusted(self, h: Any, p: Any, b: Any, start: Any, r: Any, count: Any) -> Any:
        """``softcap`` and the mask. Vectors end with the mask's row; single scores follow."""
        if not self.form.softcap and self.nest.mask is None:
            return None

        def some(k: Any, width: int) -> Any:
            at = self._at(r, k, width)
            value = read(self.scores, at)
            if self.form.softcap:
                cap = splat(_const(self.form.softcap), width)
                value = cap * _tanh(value / cap)
            return write(self.scores, self._masked(value, h, p, b, start + k, width), at)

        whole = count // self.lanes
        vectors = loop("v", plain(whole), lambda v: some(v * self.lanes, self.lanes))
        rest = plain(count - whole * self.lanes)
        return seq(vectors, loop("k", rest, lambda k: some(plain(whole * self.lanes) + k, 1)))

    def _masked(self, value: Any, h: Any, p: Any, b: Any, k: Any, width: int) -> Any:
        from tvm import tirx

        mask = self.nest.mask
        if mask is None:
            return value
        own = (b, h, p, k)[4 - len(mask.shape) :]
        index = [
            tir.i64(0) if _is_one(extent) else at
            for at, extent in zip(own, mask.shape, strict=True)
        ]
        same = not index or _is_one(mask.shape[-1])
        if not same:
            index[-1] = lanes_from(k, width)
        given = read(mask, *index)
        if str(mask.dtype) == "bool":
            given = splat(given, width) if same else given
            return tirx.Select(given, value, splat(_const(-math.inf), width))
        if str(mask.dtype) != _FLOAT:
            given = given.astype(_FLOAT if same or width == 1 else f"{_FLOAT}x{width}")
        return value + (splat(given, width) if same else given)

    def _limits(self) -> bool:
        """Whether some score of a vector may belong to no key, or to one that is not seen."""
        form, keys = self.form, self.nest.keys
        sees_all = not form.causal and max(form.before, form.after) < 0
        return not (sees_all and isinstance(plain(keys), int) and plain(keys) % self.lanes == 0)

    def _visible(self, value: Any, p: Any, start: Any, k: Any) -> Any:
        """Minus infinity in place of scores of keys that the query at ``p`` does not see."""
        from tvm import tirx

        lanes = self.lanes
        at = tirx.Ramp(k.astype("int32"), tirx.const(1, "int32"), lanes)

        def limit(position: Any) -> Any:
            return splat((position - start).astype("int32"), lanes)

        seen = at < limit(self.sight(p))
        if self.form.before >= 0:
            seen = tirx.And(seen, at >= limit(p + (self.form.offset - self.form.before)))
        return tirx.Select(seen, value, splat(_const(-math.inf), lanes))

    def _powers(self, p: Any, start: Any, r: Any, state: Any, count: Any) -> Any:
        """The row's new peak, its powers in place of the scores, its new total."""
        from tvm import tirx

        lanes = self.lanes
        vectors = plain(ceildiv(count, lanes))
        low, zero = _const(-math.inf), _const(0.0)
        most, sums = Registers("most", 1, lanes, _FLOAT), Registers("sums", 1, lanes, _FLOAT)
        peak, shift = Registers("peak", 1, 1, _FLOAT), Registers("shift", 1, 1, _FLOAT)

        def visit(v: Any) -> Any:
            at = self._at(r, v * lanes, lanes)
            value = read(self.scores, at)
            if not self._limits():
                return most.write(0, tirx.max(most.read(0), value))
            seen = Registers("seen", 1, lanes, _FLOAT)
            return seq(
                *seen.alloc(),
                seen.write(0, self._visible(value, p, start, v * lanes)),
                write(self.scores, seen.read(0), at),
                most.write(0, tirx.max(most.read(0), seen.read(0))),
            )

        def power(v: Any) -> Any:
            at = self._at(r, v * lanes, lanes)
            value = tirx.exp(read(self.scores, at) - splat(shift.read(0), lanes))
            held = Registers("power", 1, lanes, _FLOAT)
            return seq(
                *held.alloc(),
                held.write(0, value),
                write(self.scores, held.read(0), at),
                sums.write(0, sums.read(0) + held.read(0)),
            )

        one = self.nest.one_block
        fold_peak, top = _fold(most, lanes, tirx.max)
        fold_total, total = _fold(sums, lanes, lambda a, c: a + c)
        new = top if one else tirx.max(read(self.peak, state), top)
        rescale = None if one else seq(
            write(self.alpha, tirx.exp(read(self.peak, state) - shift.read(0)), r),
            write(self.peak, peak.read(0), state),
        )  # fmt: skip
        old = None if one else read(self.total, state) * read(self.alpha, r)
        return seq(
            *most.alloc(), *sums.alloc(), *peak.alloc(), *shift.alloc(),
            *most.fill(-math.inf), loop("v", vectors, visit), *fold_peak,
            peak.write(0, new),
            # No key seen so far: every score is minus infinity, and so must be its difference.
            shift.write(0, tirx.Select(peak.read(0) == low, zero, peak.read(0))),
            rescale,
            *sums.fill(0.0), loop("v", vectors, power), *fold_total,
            write(self.total, total if old is None else old + total, state),
        )  # fmt: skip


def _fold(vector: Registers, lanes: int, fold: Any) -> tuple[list[Any], Any]:
    """Statements that fold the lanes of a register, and the folded value."""
    statements: list[Any] = []
    current, distance = vector, lanes // 2
    while distance:
        following = Registers("fold", 1, distance, _FLOAT)
        value = current.read(0)
        low = shuffle(value, value, list(range(distance)))
        high = shuffle(value, value, list(range(distance, 2 * distance)))
        statements += [*following.alloc(), following.write(0, fold(low, high))]
        current, distance = following, distance // 2
    return statements, current.read(0)


def _tanh(value: Any) -> Any:
    from tvm import tirx

    return tirx.tanh(value)


def _const(value: float) -> Any:
    from tvm import tirx

    return tirx.const(value, _FLOAT)


def _is_one(extent: Any) -> bool:
    return plain(extent) == 1 if isinstance(plain(extent), int) else False


def known(extent: Any) -> int | None:
    """The extent where it is a constant."""
    from tvm import tirx

    if isinstance(extent, int):
        return extent
    return int(extent.value) if isinstance(extent, tirx.IntImm) else None


def plain(extent: Any) -> Any:
    """An ``int`` where the extent is a constant after simplification."""
    from tvm import sym

    found = known(extent)
    if found is not None:
        return found
    simple = sym.Analyzer().simplify(extent)
    found = known(simple)
    return simple if found is None else found


def ceildiv(extent: Any, block: int) -> Any:
    """``extent / block``, rounded up."""
    found = known(plain(extent))
    return -(-found // block) if found is not None else (extent + (block - 1)) // block
