"""Random numbers.

Deterministic: a hash of the seed, the node and the element's position, so that a compiled model
gives the same numbers every time. ONNX does not define the sequence, only the distribution.
"""

from __future__ import annotations

import math
import zlib
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from uif_tvm.frontends.converters.context import NodeContext
from uif_tvm.frontends.converters.registry import converter
from uif_tvm.frontends.onnx.values import Dim


def _seed(ctx: NodeContext) -> int:
    """The ``seed`` attribute's bits, or a number made of the node's name."""
    given = ctx.attrs.get("seed")
    if given is None:
        return zlib.crc32(ctx.outputs[0].encode())
    return int(np.float32(given).view(np.uint32))


MASK = 0xFFFFFFFF
FACTOR = 0x45D9F3B
"""Below 2^31, so that products of 32-bit numbers stay exact in int64."""


def _mixed(value: Any) -> Any:
    """A scrambling of 32 bits, held in int64 (TVM folds wrapping uint32 products wrongly)."""

    def c(number: int) -> Any:
        return tirx.const(number, "int64")

    for _ in range(2):
        value = ((value ^ (value >> c(16))) * c(FACTOR)) & c(MASK)
    return value ^ (value >> c(16))


def _mixed_number(value: int) -> int:
    """:func:`_mixed` of a Python integer."""
    value &= MASK
    for _ in range(2):
        value = ((value ^ (value >> 16)) * FACTOR) & MASK
    return value ^ (value >> 16)


def uniform_at(position: Any, seed: int, stream: int) -> Any:
    """A float32 in (0, 1) for an element's position."""
    start = tirx.const(_mixed_number(seed + 0x9E3779B9 * (stream + 1)), "int64")
    mask = tirx.const(MASK, "int64")
    bits = _mixed((_mixed((position.astype("int64") & mask) ^ start) + start) & mask)
    whole = (bits >> tirx.const(9, "int64")).astype("float32") + tirx.const(0.5, "float32")
    return whole * tirx.const(2.0**-23, "float32")


def normal_at(position: Any, seed: int) -> Any:
    """A float32 of the standard normal distribution (Box and Muller)."""
    radius = tirx.sqrt(tirx.const(-2.0, "float32") * tirx.log(uniform_at(position, seed, 0)))
    angle = tirx.const(2 * math.pi, "float32") * uniform_at(position, seed, 1)
    return radius * tirx.cos(angle)


def _position(index: tuple[Any, ...], shape: Any) -> Any:
    place: Any = tirx.const(0, "int64")
    for at, extent in zip(index, shape, strict=True):
        place = place * extent + at
    return place


def _value(ctx: NodeContext, place: Any, dtype: str) -> Any:
    seed = _seed(ctx)
    if "Normal" in ctx.op_type:
        item = normal_at(place, seed)
        scale, shift = float(ctx.attrs["scale"]), float(ctx.attrs["mean"])
    else:
        item = uniform_at(place, seed, 0)
        shift = float(ctx.attrs["low"])
        scale = float(ctx.attrs["high"]) - shift
    return (item * tirx.const(scale, "float32") + tirx.const(shift, "float32")).astype(dtype)


def _dtype(ctx: NodeContext, default: str) -> str:
    from uif_tvm.frontends.onnx.tensors import numpy_dtype

    if not ctx.attrs.get("dtype"):
        return default
    return str(numpy_dtype(int(ctx.attrs["dtype"]), ctx.op_type))


@converter("RandomNormalLike", "RandomUniformLike")
def random_like(ctx: NodeContext) -> relax.Expr:
    """Random numbers in the shape of the input."""
    source = ctx.dtype(0) if "float" in ctx.dtype(0) else "float32"
    dtype = _dtype(ctx, source)

    def compute(a: te.Tensor) -> te.Tensor:
        return te.compute(
            a.shape, lambda *i: _value(ctx, _position(i, a.shape), dtype), name="random"
        )

    return ctx.te(compute, ctx.expr(0), name="random")


@converter("RandomNormal", "RandomUniform")
def random(ctx: NodeContext) -> relax.Expr:
    """Random numbers in a given shape."""
    shape: list[Dim] = [int(v) for v in ctx.attrs["shape"]]
    dtype = _dtype(ctx, "float32")
    return ctx.te(
        lambda: te.compute(
            shape, lambda *i: _value(ctx, _position(i, shape), dtype), name="random"
        ),
        name="random",
    )


@converter("Bernoulli")
def bernoulli(ctx: NodeContext) -> relax.Expr:
    """One with the probability given per element."""
    dtype, seed = _dtype(ctx, ctx.dtype(0)), _seed(ctx)

    def compute(a: te.Tensor) -> te.Tensor:
        def at(*i: Any) -> Any:
            drawn = uniform_at(_position(i, a.shape), seed, 0)
            return (drawn < a(*i).astype("float32")).astype(dtype)

        return te.compute(a.shape, at, name="bernoulli")

    return ctx.te(compute, ctx.expr(0), name="bernoulli")


@converter("Multinomial")
def multinomial(ctx: NodeContext) -> relax.Expr:
    """Classes drawn by unnormalised log probabilities: how many sums lie below a draw."""
    if ctx.rank(0) != 2:
        raise ctx.invalid("the input must have shape (batch, classes)")
    classes = ctx.shape(0)[1]
    count, seed = int(ctx.attrs.get("sample_size", 1)), _seed(ctx)
    dtype = _dtype(ctx, "int32")
    if count < 1 or dtype not in ("int32", "int64"):
        raise ctx.invalid(f"{count} samples of {dtype}")
    chances = ctx.emit(relax.op.nn.softmax(ctx.cast(ctx.expr(0), "float32"), -1))
    sums = ctx.emit(relax.op.cumsum(chances, 1))

    def compute(a: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, a.shape[1]), name="k")

        def below(b: Any, n: Any) -> Any:
            drawn = uniform_at(b * count + n, seed, 0) * a(b, a.shape[1] - 1)
            return te.sum(tirx.Select(a(b, k) <= drawn, 1, 0).astype(dtype), axis=k)

        return te.compute((a.shape[0], count), below, name="multinomial")

    drawn = ctx.te(compute, sums, name="multinomial")
    last = ctx.const(classes - 1, dtype) if isinstance(classes, int) else None
    return drawn if last is None else ctx.emit(relax.op.minimum(drawn, last))
