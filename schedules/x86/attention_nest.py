"""Loop nest of fused attention.

    for task in (batch, head of keys, block of rows):              parallel
      for block of keys:
        pack K^T into panels [keys / panel, depth, panel]; values as vectors of float32
        for tile of rows:
          scores[tile, keys] = q K^T                               register tiles, K^T from L1 / L2
          running peak and total of each row; scores -> exp(scores - peak)
          sums[tile, width] = sums * exp(old peak - peak) + scores V    register tiles
      result = sums / total

*Rows* are the positions of all query heads that share the head of keys, so grouped heads read keys
and values once. Rows past the end repeat the last one and are not stored. A block of keys that no
row of a tile may see is passed over, so a NaN or infinity in hidden values does not reach the
result there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from uif_tvm.schedules.x86 import conv2d_tir as tir
from uif_tvm.schedules.x86.attention_keys import KeyBlock, float32, operand
from uif_tvm.schedules.x86.attention_softmax import Softmax, ceildiv, known, plain
from uif_tvm.schedules.x86.conv2d_tir import Registers, lanes_from, loop, read, seq, splat, write

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from uif_tvm.kernels.fused_attention import AttentionForm
    from uif_tvm.target.schedule import AttentionPlan

_FLOAT = "float32"


class AttentionNest:
    """Emits one kernel; the methods follow the module text from the outside in."""

    def __init__(
        self, func: PrimFunc, form: AttentionForm, plan: AttentionPlan, lanes: int
    ) -> None:
        self.form, self.plan, self.lanes = form, plan, lanes
        self.query, self.key, self.value, *masks, self.result = func.params
        self.mask = masks[0] if masks else None
        self.share = form.heads // form.groups
        self.batch = self.query.shape[0]
        self.queries = form.query.positions(self.query.shape)
        self.keys = form.key.positions(self.key.shape)
        self.rows = self.queries * self.share
        self.block = KeyBlock(self.key, self.value, self.keys, form, plan, lanes)
        self.padded = self.block.padded
        count = known(self.keys)
        self.one_block = count is not None and count <= plan.key_block
        self.tile = tir.workspace("tile", (plan.tile_rows * form.depth,), _FLOAT, "local")
        kept = plan.tile_rows if self.one_block else plan.row_block
        self.sums = tir.workspace("sums", (kept * self.padded,), _FLOAT, "local")
        self.softmax = Softmax(self, kept)

    def body(self, parallel: bool) -> Any:
        """The whole function."""
        chunks = ceildiv(self.rows, self.plan.row_block)
        tasks = self.batch * self.form.groups * chunks

        def task(t: Any) -> Any:
            return tir.named("b", t // (chunks * self.form.groups), lambda b: tir.named(
                "g", t // chunks % self.form.groups, lambda g: tir.named(
                    "first", t % chunks * self.plan.row_block,
                    lambda first: self._task(b, g, first))))  # fmt: skip

        return loop("task", plain(tasks), task, "PARALLEL" if parallel else "SERIAL")

    def _task(self, b: Any, g: Any, first: Any) -> Any:
        """Some rows of one head of keys, against all keys."""
        from tvm import tirx

        rows = tirx.min(self.rows - first, tir.i64(self.plan.row_block))
        tiles = ceildiv(rows, self.plan.tile_rows)
        buffers = [*self.block.buffers, self.tile, self.sums, *self.softmax.buffers]

        def key_block(index: Any) -> Any:
            return tir.named("start", index * self.plan.key_block, lambda start: seq(
                self.block.prepare(b, g, start),
                loop("tile", plain(tiles), lambda t: tir.named(
                    "local", t * self.plan.tile_rows,
                    lambda local: self._tile(b, g, first, local, start))),
            ))  # fmt: skip

        blocks = ceildiv(self.keys, self.plan.key_block)
        if self.form.causal and not self.one_block:
            last = self.softmax.sight(self._position_of_last(first, rows))
            blocks = ceildiv(tirx.max(last, tir.i64(0)), self.plan.key_block)
        count = plain(tiles * self.plan.tile_rows)
        finish = None
        if not self.one_block:
            finish = loop("row", count, lambda r: self._store_row(b, g, first, r, r))
        return seq(
            *[tir.alloc(buffer) for buffer in buffers],
            None if self.one_block else self._start(),
            loop("block", plain(blocks), key_block),
            finish,
        )

    def _position_of_last(self, first: Any, rows: Any) -> Any:
        """The latest position among rows ``first .. first + rows``."""
        from tvm import tirx

        last = first + rows - 1
        if self.share == 1:
            return last
        same = first // self.queries == last // self.queries
        return tirx.Select(same, last % self.queries, self.queries - 1)

    def _start(self) -> Any:
        """Nothing summed yet."""
        zero = splat(float32(0.0), self.lanes)
        vectors = self.plan.row_block * self.padded // self.lanes
        clear = loop(
            "at", vectors, lambda i: write(self.sums, zero, lanes_from(i * self.lanes, self.lanes))
        )
        return seq(clear, self.softmax.start())

    def _tile(self, b: Any, g: Any, first: Any, local: Any, start: Any) -> Any:
        """One register tile of rows against one block of keys."""
        from tvm import tirx

        rows = self.plan.tile_rows
        last = self._position_of_last(first + local, tirx.min(self.rows - first - local, rows))
        seen = tirx.min(self.softmax.sight(last) - start, tir.i64(self.plan.key_block))
        state: Any = tir.i64(0) if self.one_block else local

        def work(count: Any) -> Any:
            stores = None
            if self.one_block:
                stores = loop("r", rows, lambda r: self._store_row(b, g, first, local + r, r))
            return seq(
                self._load_tile(b, g, first + local),
                self._scores(count),
                loop("r", rows, lambda r: self.softmax.row(
                    *self.place(g, first + local + r), b, start, r, state + r, count)),
                self._weighted(b, g, start, state, count),
                stores,
            )  # fmt: skip

        if isinstance(plain(seen), int):
            return work(plain(seen))
        if self.one_block or not self.form.causal:
            return tir.named("seen", seen, work)
        return tir.named("seen", seen, lambda count: tir.branch(count > 0, work(count)))

    def place(self, g: Any, row: Any) -> tuple[Any, Any]:
        """(query head, position) of a row; rows past the end are the last one."""
        from tvm import tirx

        row = tirx.min(row, self.rows - 1)
        if self.share == 1:
            return g, row
        return g * self.share + row // self.queries, row % self.queries

    def _load_tile(self, b: Any, g: Any, first: Any) -> Any:
        """``tile[r, d] = query``, scaled: what is multiplied lies densely, as float32."""
        depth, lanes = self.form.depth, self.lanes
        whole = depth // lanes * lanes

        def row(r: Any) -> Any:
            head, position = self.place(g, first + r)

            def copy(head: Any, position: Any) -> Any:
                def load(d: Any) -> Any:
                    return operand(self.query, self.form.query, b, head, position, d, depth)

                scale = float32(self.form.scale)
                return seq(
                    loop("v", whole // lanes, lambda v: write(
                        self.tile, load(lanes_from(v * lanes, lanes)) * splat(scale, lanes),
                        lanes_from(r * depth + v * lanes, lanes))),
                    loop("d", depth - whole, lambda d: write(
                        self.tile, load(whole + d) * scale, r * depth + whole + d)),
                )  # fmt: skip

            return tir.named(
                "head", head, lambda h: tir.named("position", position, lambda p: copy(h, p))
            )

        return loop("r", self.plan.tile_rows, row)

    def _scores(self, count: Any) -> Any:
        """``scores[r, k] = tile[r] . packed[k]``, a panel of keys at a time."""
        rows, panel, lanes = self.plan.tile_rows, self.plan.panel, self.lanes
        depth = self.form.depth

        def one(p: Any) -> Any:
            return register_tile(
                rows, panel // lanes, lanes, depth,
                start=None,
                left=lambda r, d: read(self.tile, r * depth + d),
                right=lambda d, v: self.block.panel(p, d, v),
                store=lambda r, v, value: write(
                    self.softmax.scores, value,
                    lanes_from(r * self.plan.key_block + p * panel + v * lanes, lanes)),
            )  # fmt: skip

        return loop("p", plain(ceildiv(count, panel)), one)

    def _weighted(self, b: Any, g: Any, start: Any, state: Any, count: Any) -> Any:
        """``sums[r] = sums[r] * alpha[r] + scores[r] . values``, some columns at a time."""
        rows, lanes, padded = self.plan.tile_rows, self.lanes, self.padded
        columns = self.plan.columns

        def sums_at(r: int, column: Any) -> Any:
            return lanes_from((state + r) * padded + column, lanes)

        def some(column: Any, vectors: int) -> Any:
            def old(r: int, v: int) -> Any:
                alpha = read(self.softmax.alpha, tir.i64(r))
                return read(self.sums, sums_at(r, column + v * lanes)) * splat(alpha, lanes)

            return register_tile(
                rows, vectors, lanes, count,
                start=None if self.one_block else old,
                left=lambda r, k: read(self.softmax.scores, r * self.plan.key_block + k),
                right=lambda k, v: self.block.vector(b, g, start, k, column + v * lanes),
                store=lambda r, v, value: write(
                    self.sums, value, sums_at(r, column + v * lanes)),
            )  # fmt: skip

        whole = padded // columns
        rest = padded - whole * columns
        return seq(
            loop("c", whole, lambda c: some(c * columns, columns // lanes)),
            some(tir.i64(whole * columns), rest // lanes) if rest else None,
        )

    def _divided(self, state: Any, body: Callable[[Any], Any]) -> Any:
        """``body`` of the factor that turns a row's sums into its result."""
        factor = Registers("factor", 1, 1, _FLOAT)
        return seq(
            *factor.alloc(),
            factor.write(0, self.softmax.inverse_total(state)),
            body(factor.read(0)),
        )

    def _store_row(self, b: Any, g: Any, first: Any, local: Any, state: Any) -> Any:
        """``result = sums / total`` for one row, unless it lies past the end."""
        width, lanes = self.form.width, self.lanes
        whole = width // lanes * lanes
        dtype = str(self.result.dtype)

        def store(head: Any, position: Any, factor: Any) -> Any:
            def at(d: Any) -> Any:
                index = list(self.form.result.index(b, head, position, d, width))
                if self.form.result.rows and hasattr(d, "lanes"):
                    index[-1] = lanes_from(self.form.result.start + head * width + d.base, lanes)
                return index

            def cast(value: Any, count: int) -> Any:
                kind = dtype if count == 1 else f"{dtype}x{count}"
                return value if dtype == _FLOAT else value.astype(kind)

            def put(d: Any, count: int) -> Any:
                source = lanes_from(state * self.padded + d, count)
                value = read(self.sums, source) * splat(factor, count)
                return write(self.result, cast(value, count), *at(lanes_from(d, count)))

            return seq(
                loop("v", whole // lanes, lambda v: put(v * lanes, lanes)),
                loop("d", width - whole, lambda d: put(whole + d, 1)),
            )

        row = first + local
        head, position = self.place(g, row)
        body = tir.named("head", head, lambda h: tir.named("position", position, lambda p:

            self._divided(state, lambda factor: store(h, p, factor))))  # fmt: skip
        return tir.branch(row < self.rows, body)


def register_tile(
    rows: int,
    vectors: int,
    lanes: int,
    depth: Any,
    start: Callable[[int, int], Any] | None,
    left: Callable[[int, Any], Any],
    right: Callable[[Any, int], Any],
    store: Callable[[int, int, Any], Any],
) -> Any:
    """``[rows, vectors] += left[rows, depth] x right[depth, vectors]``, all of it in registers.

    Args:
        start: the sums' first value, zero if ``None``.
    """
    sums = Registers("sum", rows * vectors, lanes, _FLOAT)
    slots = [(r, v) for r in range(rows) for v in range(vectors)]
    if start is None:
        first = sums.fill(0.0)
    else:
        first = [sums.write(i, start(r, v)) for i, (r, v) in enumerate(slots)]

    def step(d: Any) -> Any:
        columns = Registers("column", vectors, lanes, _FLOAT)
        loads = [columns.write(v, right(d, v)) for v in range(vectors)]
        statements = []
        for r in range(rows):
            entry = Registers("entry", 1, lanes, _FLOAT)
            statements += [*entry.alloc(), entry.write(0, splat(left(r, d), lanes))]
            for v in range(vectors):
                slot = r * vectors + v
                statements.append(
                    sums.write(slot, sums.read(slot) + entry.read(0) * columns.read(v))
                )
        return seq(*columns.alloc(), *loads, *statements)

    stores = [store(r, v, sums.read(i)) for i, (r, v) in enumerate(slots)]
    return seq(*sums.alloc(), *first, loop("k", depth, step), *stores)
