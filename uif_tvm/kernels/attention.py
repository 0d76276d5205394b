"""Kernels around attention: rotary positions, caches, the recurrence of linear attention."""

# mypy: ignore-errors
from __future__ import annotations

import math
from typing import Any

from uif_tvm.kernels.norm import accumulator


def rope(x: Any, cos: Any, sin: Any, interleaved: bool) -> Any:
    """One element from itself and its partner; see the operator's reference."""
    from tvm import te, tirx

    half, dtype, wide = cos.shape[2], str(x.dtype), accumulator(str(x.dtype))
    shared = isinstance(cos.shape[0], tirx.IntImm) and int(cos.shape[0]) == 1

    # Where all features turn, no element has to ask.
    fixed = all(isinstance(extent, tirx.IntImm) for extent in (half, x.shape[3]))
    full = fixed and int(x.shape[3]) == 2 * int(half)

    def neighbours(b: Any, h: Any, s: Any, i: Any) -> Any:
        turned = i < 2 * half
        lane = i if full else tirx.Select(turned, i, tirx.const(0, str(i.ty.dtype)))
        second = tirx.floormod(lane, 2) == 1
        pair, partner = tirx.floordiv(lane, 2), tirx.Select(second, lane - 1, lane + 1)
        row = 0 if shared else b
        own, other = x(b, h, s, lane).astype(wide), x(b, h, s, partner).astype(wide)
        c, z = cos(row, s, pair).astype(wide), sin(row, s, pair).astype(wide)
        value = own * c + tirx.Select(second, other * z, tirx.const(0, wide) - other * z)
        return (
            value.astype(dtype) if full else tirx.Select(turned, value.astype(dtype), x(b, h, s, i))
        )

    def halves(b: Any, h: Any, s: Any, i: Any) -> Any:
        # One index a branch: chosen indices would be gathered, these are loaded as vectors.
        row = 0 if shared else b

        def turn(pair: Any, partner: Any, sign: int) -> Any:
            own, other = x(b, h, s, i).astype(wide), x(b, h, s, partner).astype(wide)
            c, z = cos(row, s, pair).astype(wide), sin(row, s, pair).astype(wide)
            value = own * c + other * z if sign > 0 else own * c - other * z
            return value.astype(dtype)

        value = tirx.if_then_else(i < half, turn(i, i + half, -1), turn(i - half, i - half, 1))
        return value if full else tirx.if_then_else(i < 2 * half, value, x(b, h, s, i))

    at = neighbours if interleaved else halves
    return te.compute(x.shape, at, name="rope")


def cache_scatter(cache: Any, update: Any, start: Any, axis: int, circular: bool) -> Any:
    """Each place reads the update if it was written there last, else the cache."""
    from tvm import te, tirx

    axis = axis % len(cache.shape)
    size, count = cache.shape[axis], update.shape[axis]

    def at(*i: Any) -> Any:
        step = i[axis].astype("int64") - start(i[0]).astype("int64")
        if circular:
            # Of several writes to one place the last one stays.
            step = tirx.floormod(step, size)
            step = step + tirx.floordiv(tirx.max(count - 1 - step, 0), size) * size
        written = tirx.all(step >= 0, step < count)
        near = tirx.max(tirx.min(step, count - 1), 0)
        value = update(*i[:axis], near, *i[axis + 1 :])
        return tirx.Select(written, value, cache(*i))

    return te.compute(cache.shape, at, name="cache_scatter")


def linear_attention(
    query: Any, key: Any, value: Any, state: Any, decay: Any, beta: Any, scale: float
) -> Any:
    """The recurrence over positions, head by head, as one function.

    Args:
        query, key, value, state, decay, beta: types of the operands, static extents; absent ones
            are passed as placeholders of one element (see the legalisation).
    """
    from tvm import tirx
    from tvm.script import tirx as T

    dtype, wide = query.dtype, accumulator(query.dtype)
    heads, features, columns = key.shape[1], query.shape[3], value.shape[3]
    groups = tirx.IntImm("int64", query.shape[1] // heads)
    batch, steps = tirx.IntImm("int64", query.shape[0]), tirx.IntImm("int64", query.shape[2])
    factor = tirx.const(scale or 1 / math.sqrt(features), wide)
    results = (*query.shape[:3], columns), (query.shape[0], heads, features, columns)
    kept, gated, delta = (item.rank == 4 for item in (state, decay, beta))
    gates = decay.shape[-1]
    heads, features, columns = (tirx.IntImm("int64", n) for n in (heads, features, columns))

    @T.prim_func(private=True, s_tir=True)
    def recurrence(
        q: T.Buffer(query.shape, dtype),
        k: T.Buffer(key.shape, dtype),
        v: T.Buffer(value.shape, dtype),
        first: T.Buffer(state.shape, state.dtype),
        decays: T.Buffer(decay.shape, decay.dtype),
        betas: T.Buffer(beta.shape, beta.dtype),
        y: T.Buffer(results[0], dtype),
        last: T.Buffer(results[1], state.dtype),
    ):
        with T.sblock("root"):
            memory = T.alloc_buffer((features, columns), wide)
            row = T.alloc_buffer((columns,), wide)
            with T.sblock("loops"):
                for b in range(batch):
                    for h in range(heads):
                        for d in range(features):
                            for m in range(columns):
                                if kept:
                                    memory[d, m] = T.Cast(wide, first[b, h, d, m])
                                else:
                                    memory[d, m] = T.Cast(wide, 0)
                        for t in range(steps):
                            if gated:
                                for d in range(features):
                                    for m in range(columns):
                                        memory[d, m] = memory[d, m] * T.exp(
                                            T.Cast(wide, decays[b, h, t, d if gates > 1 else 0])
                                        )
                            for m in range(columns):
                                row[m] = T.Cast(wide, v[b, h, t, m])
                            if delta:
                                for d in range(features):
                                    for m in range(columns):
                                        row[m] = row[m] - memory[d, m] * T.Cast(wide, k[b, h, t, d])
                                for m in range(columns):
                                    row[m] = row[m] * T.Cast(
                                        wide, betas[b, h if beta.shape[1] > 1 else 0, t, 0]
                                    )
                            for d in range(features):
                                for m in range(columns):
                                    memory[d, m] = (
                                        memory[d, m] + T.Cast(wide, k[b, h, t, d]) * row[m]
                                    )
                            for g in range(groups):
                                for m in range(columns):
                                    row[m] = T.Cast(wide, 0)
                                for d in range(features):
                                    for m in range(columns):
                                        row[m] = (
                                            row[m]
                                            + T.Cast(wide, q[b, h * groups + g, t, d])
                                            * memory[d, m]
                                        )
                                for m in range(columns):
                                    y[b, h * groups + g, t, m] = T.Cast(dtype, row[m] * factor)
                        for d in range(features):
                            for m in range(columns):
                                last[b, h, d, m] = T.Cast(state.dtype, memory[d, m])

    return recurrence
