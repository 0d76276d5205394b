"""Relax operators with NumPy meanings: what the generic rule must take and get right.

``CASES`` maps a name to a function of a random generator that returns one instance: the operator
as a function of Relax variables, its inputs, and the expected results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.special
from tvm import relax, tirx
from tvm.relax import op as rx

Array = np.ndarray[Any, Any]
Rng = np.random.Generator


@dataclass(frozen=True)
class Instance:
    """One operator on given inputs."""

    apply: Callable[..., Any]
    inputs: Sequence[Array]
    expected: Sequence[Array]


CASES: dict[str, Callable[[Rng], Instance]] = {}


def case(name: str) -> Callable[[Callable[[Rng], Instance]], Callable[[Rng], Instance]]:
    """Register a case under ``name``."""

    def register(make: Callable[[Rng], Instance]) -> Callable[[Rng], Instance]:
        CASES[name] = make
        return make

    return register


def shape(rng: Rng, low: int = 1, high: int = 4, most: int = 20) -> tuple[int, ...]:
    """A random shape; extents of 1 and odd ones are as likely as any."""
    return tuple(int(rng.integers(1, most)) for _ in range(int(rng.integers(low, high + 1))))


def floats(rng: Rng, dims: Sequence[int], dtype: str = "float32") -> Array:
    return rng.standard_normal(tuple(dims)).astype(dtype)


def ints(rng: Rng, dims: Sequence[int], high: int = 100, low: int = 0) -> Array:
    return rng.integers(low, high, tuple(dims)).astype("int64")


def _unary(name: str, apply: Any, meaning: Any, positive: bool = False) -> None:
    def make(rng: Rng) -> Instance:
        x = floats(rng, shape(rng, 0, 4), ["float32", "float64"][int(rng.integers(2))])
        x = np.abs(x) + np.asarray(0.1, x.dtype) if positive else x
        return Instance(apply, [x], [np.asarray(meaning(x)).astype(x.dtype)])

    CASES[name] = make


for _name, _apply, _meaning in (
    ("abs", rx.abs, np.abs),
    ("ceil", rx.ceil, np.ceil),
    ("cos", rx.cos, np.cos),
    ("exp", rx.exp, np.exp),
    ("erf", rx.erf, scipy.special.erf),
    ("floor", rx.floor, np.floor),
    ("negative", rx.negative, np.negative),
    ("relu", rx.nn.relu, lambda x: np.maximum(x, 0)),
    ("round", rx.round, np.round),
    ("sigmoid", rx.sigmoid, scipy.special.expit),
    ("sign", rx.sign, np.sign),
    ("silu", rx.nn.silu, lambda x: x * scipy.special.expit(x)),
    ("square", rx.square, np.square),
    ("tanh", rx.tanh, np.tanh),
    ("trunc", rx.trunc, np.trunc),
    ("gelu", rx.nn.gelu, lambda x: x * 0.5 * (1 + scipy.special.erf(x / np.sqrt(2)))),
    ("leakyrelu", lambda x: rx.nn.leakyrelu(x, 0.1), lambda x: np.where(x > 0, x, 0.1 * x)),
    ("clip", lambda x: rx.clip(x, -0.5, 0.5), lambda x: np.clip(x, -0.5, 0.5)),
    ("softplus", rx.nn.softplus, lambda x: np.logaddexp(x, 0)),
):
    _unary(_name, _apply, _meaning)
for _name, _apply, _meaning in (
    ("log", rx.log, np.log),
    ("sqrt", rx.sqrt, np.sqrt),
    ("rsqrt", rx.rsqrt, lambda x: 1 / np.sqrt(x)),
):
    _unary(_name, _apply, _meaning, positive=True)


def _binary(name: str, apply: Any, meaning: Any, make_input: Any) -> None:
    def make(rng: Rng) -> Instance:
        full = shape(rng, 1, 4)
        other = tuple(1 if rng.integers(3) == 0 else n for n in full)[
            int(rng.integers(len(full))) :
        ]
        pair = [make_input(rng, full), make_input(rng, other)]
        pair = pair[::-1] if rng.integers(2) else pair
        return Instance(apply, pair, [meaning(*pair)])

    CASES[name] = make


def _positive_ints(rng: Rng, dims: Sequence[int]) -> Array:
    return ints(rng, dims, 30, 1)


def _booleans(rng: Rng, dims: Sequence[int]) -> Array:
    return rng.integers(0, 2, tuple(dims)).astype(bool)


for _name, _apply, _meaning, _make in (
    ("add", rx.add, np.add, floats),
    ("subtract", rx.subtract, np.subtract, floats),
    ("multiply", rx.multiply, np.multiply, floats),
    ("divide", rx.divide, np.divide, floats),
    ("maximum", rx.maximum, np.maximum, floats),
    ("minimum", rx.minimum, np.minimum, floats),
    ("less", rx.less, np.less, floats),
    ("equal", rx.equal, np.equal, _positive_ints),
    ("add_int", rx.add, np.add, _positive_ints),
    ("floor_divide_int", rx.floor_divide, np.floor_divide, _positive_ints),
    ("mod_int", rx.floor_mod, np.mod, _positive_ints),
    ("bitwise_and", rx.bitwise_and, np.bitwise_and, _positive_ints),
    ("left_shift", rx.left_shift, np.left_shift, _positive_ints),
    ("logical_and", rx.logical_and, np.logical_and, _booleans),
    ("logical_xor", rx.logical_xor, np.logical_xor, _booleans),
):
    _binary(_name, _apply, _meaning, _make)


def _reduce(name: str, apply: Any, meaning: Any) -> None:
    def make(rng: Rng) -> Instance:
        x = floats(rng, shape(rng, 1, 4))
        count = int(rng.integers(1, x.ndim + 1))
        axes = tuple(int(a) for a in sorted(rng.permutation(x.ndim)[:count]))
        keep = bool(rng.integers(2))
        expected = np.asarray(meaning(x.astype("float64"), axis=axes, keepdims=keep))
        return Instance(lambda v: apply(v, list(axes), keep), [x], [expected.astype("float32")])

    CASES[name] = make


for _name, _apply, _meaning in (
    ("sum", rx.sum, np.sum),
    ("mean", rx.mean, np.mean),
    ("max", rx.max, np.max),
    ("min", rx.min, np.min),
    ("variance", rx.variance, np.var),
    ("std", rx.std, np.std),
):
    _reduce(_name, _apply, _meaning)


@case("argmax")
def _argmax(rng: Rng) -> Instance:
    x = floats(rng, shape(rng, 1, 4))
    axis = int(rng.integers(x.ndim))
    return Instance(lambda v: rx.argmax(v, axis), [x], [np.argmax(x, axis)])


@case("argmin_keepdims")
def _argmin(rng: Rng) -> Instance:
    x = floats(rng, shape(rng, 1, 4))
    axis = int(rng.integers(x.ndim))
    expected = np.argmin(x, axis, keepdims=True)
    return Instance(lambda v: rx.argmin(v, axis, True), [x], [expected])


@case("cumsum")
def _cumsum(rng: Rng) -> Instance:
    x = floats(rng, shape(rng, 1, 3))
    axis = int(rng.integers(x.ndim))
    return Instance(lambda v: rx.cumsum(v, axis), [x], [np.cumsum(x, axis)])


@case("reshape")
def _reshape(rng: Rng) -> Instance:
    x = floats(rng, shape(rng, 2, 4))
    return Instance(lambda v: rx.reshape(v, (-1, x.shape[0])), [x], [x.reshape(-1, x.shape[0])])


@case("permute_dims")
def _permute(rng: Rng) -> Instance:
    x = floats(rng, shape(rng, 2, 4))
    axes = [int(a) for a in rng.permutation(x.ndim)]
    return Instance(lambda v: rx.permute_dims(v, axes), [x], [x.transpose(axes)])


@case("broadcast_to")
def _broadcast(rng: Rng) -> Instance:
    x = floats(rng, (1, 5, 1))
    return Instance(
        lambda v: rx.broadcast_to(v, (3, 4, 5, 6)), [x], [np.broadcast_to(x, (3, 4, 5, 6))]
    )


@case("concat")
def _concat(rng: Rng) -> Instance:
    dims = list(shape(rng, 1, 3))
    axis = int(rng.integers(len(dims)))
    parts = []
    for _ in range(3):
        dims[axis] = int(rng.integers(1, 9))
        parts.append(floats(rng, dims))
    return Instance(
        lambda *v: rx.concat(relax.Tuple(v), axis), parts, [np.concatenate(parts, axis)]
    )


@case("split")
def _split(rng: Rng) -> Instance:
    x = floats(rng, (3, 12, 5))
    return Instance(lambda v: rx.split(v, [2, 7], 1), [x], np.split(x, [2, 7], 1))


@case("stack")
def _stack(rng: Rng) -> Instance:
    parts = [floats(rng, (3, 7)) for _ in range(3)]
    return Instance(lambda *v: rx.stack(relax.Tuple(v), 1), parts, [np.stack(parts, 1)])


@case("flip")
def _flip(rng: Rng) -> Instance:
    x = floats(rng, shape(rng, 1, 3))
    axis = int(rng.integers(x.ndim))
    return Instance(lambda v: rx.flip(v, axis), [x], [np.flip(x, axis)])


@case("tile")
def _tile(rng: Rng) -> Instance:
    x = floats(rng, shape(rng, 2, 2))
    return Instance(lambda v: rx.tile(v, (2, 1, 3)), [x], [np.tile(x, (2, 1, 3))])


@case("repeat")
def _repeat(rng: Rng) -> Instance:
    x = floats(rng, shape(rng, 2, 3))
    return Instance(lambda v: rx.repeat(v, 3, 1), [x], [np.repeat(x, 3, 1)])


@case("strided_slice")
def _slice(rng: Rng) -> Instance:
    x = floats(rng, (9, 20))
    return Instance(
        lambda v: rx.strided_slice(v, [0, 1], [1, 2], [8, 19], [2, 3]), [x], [x[1:8:2, 2:19:3]]
    )


@case("pad")
def _pad(rng: Rng) -> Instance:
    x = floats(rng, shape(rng, 2, 2))
    return Instance(lambda v: rx.nn.pad(v, [1, 2, 0, 3]), [x], [np.pad(x, [(1, 2), (0, 3)])])


@case("take")
def _take(rng: Rng) -> Instance:
    x, axis = floats(rng, (7, 5, 11)), int(rng.integers(3))
    index = ints(rng, shape(rng, 1, 2), x.shape[axis])
    return Instance(lambda v, i: rx.take(v, i, axis), [x, index], [np.take(x, index, axis)])


@case("gather_elements")
def _gather_elements(rng: Rng) -> Instance:
    x, axis = floats(rng, (6, 9)), int(rng.integers(2))
    index = ints(rng, (6, 9), x.shape[axis])
    expected = np.take_along_axis(x, index, axis)
    return Instance(lambda v, i: rx.gather_elements(v, i, axis), [x, index], [expected])


@case("scatter_elements")
def _scatter(rng: Rng) -> Instance:
    x, updates = floats(rng, (6, 9)), floats(rng, (6, 9))
    index = np.stack([rng.permutation(9) for _ in range(6)]).astype("int64")
    expected = x.copy()
    np.put_along_axis(expected, index, updates, 1)
    return Instance(
        lambda v, i, u: rx.scatter_elements(v, i, u, 1), [x, index, updates], [expected]
    )


@case("where")
def _where(rng: Rng) -> Instance:
    dims = shape(rng, 1, 3)
    chosen, x, y = _booleans(rng, dims), floats(rng, dims), floats(rng, dims[-1:])
    return Instance(rx.where, [chosen, x, y], [np.where(chosen, x, y)])


@case("triu")
def _triu(rng: Rng) -> Instance:
    x = floats(rng, (2, 7, 9))
    return Instance(lambda v: rx.triu(v, 1), [x], [np.triu(x, 1)])


@case("one_hot")
def _one_hot(rng: Rng) -> Instance:
    x = ints(rng, shape(rng, 1, 2), 6)
    on, off = tirx.IntImm("int64", 1), tirx.IntImm("int64", 0)
    return Instance(lambda v: rx.one_hot(v, on, off, 6, -1), [x], [np.eye(6, dtype="int64")[x]])


@case("astype")
def _astype(rng: Rng) -> Instance:
    x = floats(rng, shape(rng, 1, 3)) * 10
    to = ["float16", "int8", "int64", "bool"][int(rng.integers(4))]
    return Instance(lambda v: rx.astype(v, to), [x], [x.astype(to)])


@case("half_precision")
def _half(rng: Rng) -> Instance:
    x = floats(rng, shape(rng, 1, 3), "float16")
    expected = np.exp(x.astype("float32")).astype("float16")
    return Instance(rx.exp, [x], [expected])


@case("matmul")
def _matmul(rng: Rng) -> Instance:
    m, n, k = (int(rng.integers(1, 40)) for _ in range(3))
    lead = shape(rng, 0, 2, 4)
    x, y = floats(rng, (*lead, m, k)), floats(rng, (k, n))
    return Instance(rx.matmul, [x, y], [x @ y])


@case("softmax")
def _softmax(rng: Rng) -> Instance:
    x = floats(rng, shape(rng, 1, 4))
    axis = int(rng.integers(x.ndim))
    return Instance(lambda v: rx.nn.softmax(v, axis), [x], [scipy.special.softmax(x, axis)])


@case("log_softmax")
def _log_softmax(rng: Rng) -> Instance:
    x = floats(rng, shape(rng, 1, 4))
    axis = int(rng.integers(x.ndim))
    return Instance(lambda v: rx.nn.log_softmax(v, axis), [x], [scipy.special.log_softmax(x, axis)])


@case("layer_norm_two_axes")
def _layer_norm(rng: Rng) -> Instance:
    x, g, b = floats(rng, (5, 4, 6)), floats(rng, (4, 6)), floats(rng, (4, 6))
    centred = x - x.mean((1, 2), keepdims=True)
    expected = centred / np.sqrt(x.var((1, 2), keepdims=True) + 1e-5) * g + b
    return Instance(lambda v, s, t: rx.nn.layer_norm(v, s, t, [-2, -1]), [x, g, b], [expected])


@case("group_norm")
def _group_norm(rng: Rng) -> Instance:
    x, g, b = floats(rng, (2, 6, 5, 3)), floats(rng, (6,)), floats(rng, (6,))
    groups = x.reshape(2, 3, -1)
    normal = (groups - groups.mean(-1, keepdims=True)) / np.sqrt(
        groups.var(-1, keepdims=True) + 1e-5
    )
    expected = normal.reshape(x.shape) * g[:, None, None] + b[:, None, None]
    return Instance(lambda v, s, t: rx.nn.group_norm(v, s, t, 3, 1, [2, 3]), [x, g, b], [expected])


def _convolve(x: Array, w: Array, stride: int, pad: int, groups: int) -> Array:
    """2-D cross-correlation by definition."""
    x = np.pad(x.astype("float64"), [(0, 0), (0, 0), (pad, pad), (pad, pad)])
    batch, _, height, width = x.shape
    out, inner, kh, kw = w.shape
    rows, columns = (height - kh) // stride + 1, (width - kw) // stride + 1
    y = np.zeros((batch, out, rows, columns))
    per = out // groups
    for o in range(out):
        first = o // per * inner
        for r in range(rows):
            for c in range(columns):
                window = x[
                    :, first : first + inner, r * stride : r * stride + kh,
                    c * stride : c * stride + kw,
                ]  # fmt: skip
                y[:, o, r, c] = (window * w[o]).sum((1, 2, 3))
    return y.astype("float32")


@case("conv2d")
def _conv2d(rng: Rng) -> Instance:
    groups = int(rng.choice([1, 1, 2, 4]))
    channels, out = 4 * int(rng.integers(1, 3)), 4 * int(rng.integers(1, 4))
    x = floats(rng, (1, channels, int(rng.integers(5, 18)), int(rng.integers(5, 18))))
    w = floats(rng, (out, channels // groups, 3, 3))
    stride, pad = int(rng.integers(1, 3)), int(rng.integers(0, 2))
    return Instance(
        lambda v, k: rx.nn.conv2d(v, k, strides=stride, padding=pad, groups=groups),
        [x, w],
        [_convolve(x, w, stride, pad, groups)],
    )


@case("max_pool2d")
def _max_pool(rng: Rng) -> Instance:
    x = floats(rng, (2, 3, 8, 10))
    expected = x.reshape(2, 3, 4, 2, 5, 2).max((3, 5))
    return Instance(lambda v: rx.nn.max_pool2d(v, (2, 2), (2, 2)), [x], [expected])


@case("avg_pool2d")
def _avg_pool(rng: Rng) -> Instance:
    x = floats(rng, (2, 3, 8, 10))
    expected = x.reshape(2, 3, 4, 2, 5, 2).mean((3, 5))
    return Instance(lambda v: rx.nn.avg_pool2d(v, (2, 2), (2, 2)), [x], [expected])


@case("adaptive_avg_pool2d")
def _adaptive(rng: Rng) -> Instance:
    x = floats(rng, (1, 5, 7, 9))
    expected = x.mean((2, 3), keepdims=True)
    return Instance(lambda v: rx.nn.adaptive_avg_pool2d(v, (1, 1)), [x], [expected])


@case("large_parallel")
def _large(rng: Rng) -> Instance:
    x, y = floats(rng, (67, 1031)), floats(rng, (1031,))
    return Instance(rx.add, [x, y], [x + y])


@case("large_reduction")
def _large_reduction(rng: Rng) -> Instance:
    x = floats(rng, (61, 1030))
    return Instance(lambda v: rx.sum(v, [0]), [x], [x.astype("float64").sum(0).astype("float32")])


@case("empty")
def _empty(rng: Rng) -> Instance:
    x = floats(rng, (0, 5))
    return Instance(rx.nn.relu, [x], [x])


@case("scalar")
def _scalar(rng: Rng) -> Instance:
    x = floats(rng, ())
    return Instance(lambda v: rx.add(v, v), [x], [x + x])
