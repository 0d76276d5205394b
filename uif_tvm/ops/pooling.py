"""Pooling over sliding windows, whole planes, fractions of planes and regions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from uif_tvm.ops import infer
from uif_tvm.ops.convolution import each, padding_of, windows
from uif_tvm.ops.linear import exactly, is_float, normal
from uif_tvm.ops.spec import (
    FLOATS,
    LOOSE,
    NUMBERS,
    Array,
    Attribute,
    Attrs,
    Case,
    Dim,
    Operand,
    OpSpec,
    ShapeError,
    TensorType,
    Types,
    elements,
)

if TYPE_CHECKING:
    from uif_tvm.ops.build import Builder


def lowest(dtype: np.dtype[Any]) -> Any:
    """What loses against everything of a type."""
    return -np.inf if is_float(dtype) else np.iinfo(dtype).min


def positions(
    extent: Dim, kernel: int, stride: int, before: int, after: int, dilation: int, ceil: bool
) -> Dim:
    """Windows along an axis. With ``ceil`` the last may reach past the padding behind, but must
    start before it.

    Raises:
        ShapeError: no window fits, or ``ceil`` over an extent that is settled at run time.
    """
    span = extent + before + after - dilation * (kernel - 1) - 1
    if not isinstance(extent, int):
        if ceil and stride > 1:
            raise ShapeError("ceil_mode over an extent that is settled at run time")
        return span // stride + 1
    count = (-(-span // stride) if ceil else span // stride) + 1
    if ceil and (count - 1) * stride >= extent + before:
        count -= 1
    if count < 1:
        raise ShapeError(f"a window of {kernel} does not fit an extent of {extent}")
    return count


class Geometry:
    """One pooling call: extents of the result, and padding behind that ``ceil_mode`` adds.

    Args:
        extents: spatial extents of the input.
        attrs: ``pool_size``, ``strides``, ``padding``, ``dilation``, ``ceil_mode``.
    """

    def __init__(self, extents: Sequence[Dim], attrs: Attrs) -> None:
        rank = len(extents)
        if rank < 1:
            raise ShapeError("there are no spatial axes")
        self.kernel = each(attrs["pool_size"], rank)
        self.strides = each(attrs["strides"], rank)
        self.dilation = each(attrs.get("dilation", (1,)), rank)
        self.before, self.after = padding_of(attrs["padding"], rank)
        ceil = bool(attrs.get("ceil_mode", False))
        rows = zip(
            extents, self.kernel, self.strides, self.before, self.after, self.dilation, strict=True
        )
        self.out = [positions(n, k, s, lo, hi, d, ceil) for n, k, s, lo, hi, d in rows]
        #: Padding behind, so that every window lies within.
        self.reach = list(self.after)
        for axis, (extent, count) in enumerate(zip(extents, self.out, strict=True)):
            if isinstance(extent, int) and isinstance(count, int):
                end = (count - 1) * self.strides[axis] + (self.kernel[axis] - 1) * self.dilation[
                    axis
                ]
                past = end + 1 - extent - self.before[axis]
                self.reach[axis] = max(past, self.after[axis])

    def windows(self, x: Array, fill: float = 0) -> Array:
        """``[N, C, positions ..., kernel ...]``."""
        view = windows(x, self.kernel, self.strides, self.before, self.reach, self.dilation, fill)
        counts = tuple(slice(count) for count in self.out)
        return view[(slice(None), slice(None), *counts)]

    @property
    def axes(self) -> tuple[int, ...]:
        """Window axes of :meth:`windows`."""
        rank = len(self.kernel)
        return tuple(range(2 + rank, 2 + 2 * rank))


def max_pool(x: Array, **attrs: Any) -> Array:
    """Largest element of each window; padding never wins, NaN does."""
    geometry = Geometry(x.shape[2:], attrs)
    return geometry.windows(x, lowest(x.dtype)).max(geometry.axes)


def avg_pool(x: Array, count_include_pad: bool, divisor: int = 0, **attrs: Any) -> Array:
    """Mean of each window.

    ``count_include_pad`` counts padding as elements, but never what ``ceil_mode`` adds; a
    ``divisor`` takes the place of the count.
    """
    geometry = Geometry(x.shape[2:], attrs)
    total = geometry.windows(x).sum(geometry.axes)
    if divisor:
        return total / divisor
    ones = np.ones((1, 1, *x.shape[2:]))
    pads = [(0, 0), (0, 0), *zip(geometry.before, geometry.after, strict=True)]
    if count_include_pad:
        ones = np.pad(ones, pads, constant_values=1)
        counted = Geometry(ones.shape[2:], attrs | {"padding": (0,), "ceil_mode": True})
        counted.out, counted.reach = (
            geometry.out,
            [r - a for r, a in zip(geometry.reach, geometry.after, strict=True)],
        )
        return total / counted.windows(ones).sum(counted.axes)
    return total / np.maximum(geometry.windows(ones).sum(geometry.axes), 1)


def lp_pool(x: Array, p: float, **attrs: Any) -> Array:
    """(sum |x|^p)^(1/p) of each window."""
    geometry = Geometry(x.shape[2:], attrs)
    return (np.abs(geometry.windows(x)) ** p).sum(geometry.axes) ** (1 / p)


def max_pool_with_indices(
    x: Array, column_major: bool, whole: bool, **attrs: Any
) -> tuple[Array, Array]:
    """Largest elements and their flat positions: in the tensor (``whole``) or in the plane.

    The first of equals wins, but the last NaN (as in PyTorch). ``column_major`` counts positions
    of the plane with its first axis fastest.
    """
    geometry = Geometry(x.shape[2:], attrs)
    plane = np.arange(math.prod(x.shape[2:])).reshape(
        x.shape[2:], order="F" if column_major else "C"
    )
    seen = geometry.windows(x, lowest(x.dtype))
    inside = geometry.windows(np.ones((1, 1, *x.shape[2:])))
    places = geometry.windows(plane[None, None])
    flat = (*seen.shape[: -len(geometry.kernel)], -1)
    seen, inside, places = (
        np.broadcast_to(item, seen.shape).reshape(flat) for item in (seen, inside, places)
    )
    candidates = np.where(inside > 0, seen, lowest(x.dtype)).astype(x.dtype)
    # Where every element is as small as padding, the first one inside counts.
    top = candidates.max(-1, keepdims=True)
    best = np.where(top == lowest(x.dtype), inside, candidates == top).argmax(-1)
    if is_float(x.dtype):
        nan = np.isnan(candidates)
        best = np.where(nan.any(-1), nan.shape[-1] - 1 - nan[..., ::-1].argmax(-1), best)
    best = best[..., None]
    found = np.take_along_axis(places, best, -1)[..., 0]
    if whole:
        maps = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *(1,) * (x.ndim - 2))
        found = found + maps * math.prod(x.shape[2:])
    return np.take_along_axis(candidates, best, -1)[..., 0], found.astype(np.int64)


def max_unpool(x: Array, indices: Array, output_size: Sequence[int]) -> Array:
    """Zeros of ``output_size`` with each element of x at its flat position in the tensor."""
    y = np.zeros((*x.shape[:2], *output_size), x.dtype)
    y.reshape(-1)[indices.reshape(-1)] = x.reshape(-1)
    return y


def fractions(extent: int, parts: int) -> list[tuple[int, int]]:
    """First and end of each part of an axis; neighbours may share an element."""
    return [(i * extent // parts, -(-(i + 1) * extent // parts)) for i in range(parts)]


def adaptive(function: Callable[..., Any]) -> Callable[..., Array]:
    """``function`` of windows that tile the plane into ``output_size`` parts."""

    def apply(x: Array, output_size: Sequence[int]) -> Array:
        sizes = each(output_size, x.ndim - 2)
        y = np.zeros((*x.shape[:2], *sizes), x.dtype)
        spans = [fractions(n, parts) for n, parts in zip(x.shape[2:], sizes, strict=True)]
        for place in np.ndindex(*sizes):
            part = tuple(slice(*spans[axis][at]) for axis, at in enumerate(place))
            axes = tuple(range(2, x.ndim))
            y[(slice(None), slice(None), *place)] = function(x[(slice(None),) * 2 + part], axes)
        return y

    return apply


def global_pool(function: Callable[..., Any]) -> Callable[..., Array]:
    """``function`` of whole planes, whose axes stay with extent 1."""

    def apply(x: Array, **attrs: Any) -> Array:
        value: Array = function(x, tuple(range(2, x.ndim)), **attrs)
        return value

    return apply


def _lp_mean(x: Array, axes: tuple[int, ...], p: float) -> Array:
    value: Array = (np.abs(x) ** p).sum(axes, keepdims=True) ** (1 / p)
    return value


def _pool_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    x = types[0]
    return (TensorType((*x.shape[:2], *Geometry(x.shape[2:], attrs).out), x.dtype),)


def _indices_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    (values,) = _pool_type(types, attrs)
    return values, TensorType(values.shape, "int64")


def _unpool_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    if types[0].shape != types[1].shape:
        raise ShapeError("every element needs an index")
    return (TensorType((*types[0].shape[:2], *attrs["output_size"]), types[0].dtype),)


def _adaptive_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    x = types[0]
    return (TensorType((*x.shape[:2], *each(attrs["output_size"], x.rank - 2)), x.dtype),)


def _global_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    axes = range(2, types[0].rank)
    return (TensorType(infer.reduced(types[0].shape, axes, True), types[0].dtype),)


def _window_flops(types: Types, results: Sequence[TensorType], attrs: Attrs) -> float:
    return elements(results[0]) * math.prod(each(attrs["pool_size"], types[0].rank - 2))


def _input_flops(types: Types, results: Sequence[TensorType], attrs: Attrs) -> float:
    return elements(types[0])


def decompose_global(name: str) -> Callable[[Builder, Sequence[Any], Attrs], Any]:
    """A reduction over all spatial axes."""

    def decompose(b: Builder, operands: Sequence[Any], attrs: Attrs) -> Any:
        rank = len(b.shape(operands[0]))
        return b.op(name, operands[0], axis=tuple(range(2, rank)), keepdims=True)

    return decompose


def decompose_global_lp(b: Builder, operands: Sequence[Any], attrs: Attrs) -> Any:
    """(sum |x|^p)^(1/p)."""
    x, p = operands[0], attrs["p"]
    dtype, axes = b.dtype(x), tuple(range(2, len(b.shape(x))))
    powers = b.op("power", b.op("abs", x), b.const(p, dtype))
    total = b.op("sum", powers, axis=axes, keepdims=True)
    return b.op("power", total, b.const(1 / p, dtype))


def _padded(rank: int) -> dict[str, Any]:
    return {
        "pool_size": (3, 2, 2)[:rank],
        "strides": (2, 1, 2)[:rank],
        "padding": (1, 0, 1)[:rank] + (0, 1, 1)[:rank],
    }


def _plane(rank: int) -> Array:
    x = normal(2, 3, *(6, 5, 4)[:rank])
    x[0, 0, 0], x[1, 1, 1], x[1, 2] = np.nan, np.inf, -np.inf
    return x


def _pool_cases(rank: int, *extra: Mapping[str, Any]) -> Callable[[], Iterable[Case]]:
    def cases() -> Iterable[Case]:
        plain = normal(2, 3, *(6, 5, 4)[:rank])
        yield Case("plain", (plain,), {"pool_size": (2,) * rank})
        yield Case("nan-inf-padded", (_plane(rank),), _padded(rank))
        yield Case("whole-plane", (plain,), {"pool_size": (6, 5, 4)[:rank]})
        for number, attrs in enumerate(extra):
            yield Case(f"extreme-{number}", (plain,), {**_padded(rank), **attrs})

    return cases


def _indexed() -> Iterable[Case]:
    yield Case("plane", (normal(2, 3, 6, 5),), _padded(2))
    yield Case("whole", (normal(2, 3, 6, 5),), {**_padded(2), "whole": True})
    columns = {**_padded(2), "column_major": True, "ceil_mode": True}
    yield Case("column-major", (normal(1, 2, 6, 5),), columns)
    yield Case("ties", (np.ones((1, 1, 4, 4), np.float32),), {"pool_size": (2, 2)})
    lowest_ = np.full((1, 1, 4, 4), -np.inf, np.float32)
    yield Case("all-minus-infinity", (lowest_,), _padded(2))
    nan = normal(1, 1, 4, 4)
    nan[0, 0, 1, 1] = nan[0, 0, 1, 0] = np.nan
    yield Case("nan", (nan,), {"pool_size": (2, 2), "strides": (1, 1)})
    integers = np.arange(20, dtype=np.int8).reshape(1, 1, 20) - 10
    yield Case("int8-one-axis", (integers,), {"pool_size": (3,), "strides": (2,), "dilation": (2,)})


def _unpooled() -> Iterable[Case]:
    indices = np.array([[[[1, 14], [3, 7]]]], np.int64)
    yield Case("plain", (normal(1, 1, 2, 2), indices), {"output_size": (4, 4)})
    yield Case("larger", (normal(1, 1, 2, 2), indices), {"output_size": (5, 6)})


def _adaptive_cases(rank: int) -> Callable[[], Iterable[Case]]:
    def cases() -> Iterable[Case]:
        x = normal(2, 3, *(7, 6, 5)[:rank])
        yield Case("uneven", (x,), {"output_size": (3, 4, 2)[:rank]})
        yield Case("one", (x,), {"output_size": (1,) * rank})
        yield Case("larger-than-input", (x,), {"output_size": (9, 6, 5)[:rank]})

    return cases


def _planes() -> Iterable[Case]:
    yield Case("two-axes", (normal(2, 3, 5, 4),))
    yield Case("one-axis", (normal(2, 3, 7),))
    yield Case("nan", (_plane(2),))


_SIZE = (Attribute("pool_size"), Attribute("strides", (1,)), Attribute("padding", (0,)))
_DILATED = (*_SIZE, Attribute("dilation", (1,)))
_CEIL = Attribute("ceil_mode", False)
_COUNT = Attribute("count_include_pad", False)


def _window(name: str, reference: Any, rank: int, **more: Any) -> OpSpec:
    settings: dict[str, Any] = {
        "attributes": _DILATED,
        "cases": _pool_cases(rank),
        "flops": _window_flops,
        "tolerance": LOOSE,
    }
    return OpSpec(name, "pooling", reference, _pool_type, **(settings | more))


SPECS = (
    *(
        _window(
            f"max_pool{rank}d",
            max_pool,
            rank,
            relax=f"relax.nn.max_pool{rank}d",
            dtypes=NUMBERS,
            cases=_pool_cases(rank, {"dilation": (2,) * rank}),
        )
        for rank in (1, 2, 3)
    ),
    *(
        _window(
            f"avg_pool{rank}d",
            exactly(avg_pool),
            rank,
            relax=f"relax.nn.avg_pool{rank}d",
            attributes=(*_SIZE, _COUNT),
            cases=_pool_cases(rank, {"count_include_pad": True}),
        )
        for rank in (1, 2, 3)
    ),
    _window(
        "avg_pool",
        exactly(avg_pool),
        2,
        attributes=(*_DILATED, _CEIL, _COUNT, Attribute("divisor", 0)),
        cases=_pool_cases(
            2,
            {"ceil_mode": True},
            {"ceil_mode": True, "count_include_pad": True, "strides": (3, 3)},
            {"divisor": 7},
            {"dilation": (2, 2), "count_include_pad": True},
        ),
        source="ONNX AveragePool-22, PyTorch avg_pool2d",
    ),
    _window(
        "lp_pool",
        exactly(lp_pool),
        2,
        attributes=(*_DILATED, _CEIL, Attribute("p", 2.0)),
        cases=_pool_cases(2, {"p": 3.0, "ceil_mode": True}, {"p": 1.0}),
        source="ONNX LpPool-22",
    ),
    OpSpec(
        "max_pool_with_indices",
        "pooling",
        max_pool_with_indices,
        _indices_type,
        attributes=(
            *_DILATED,
            _CEIL,
            Attribute("column_major", False),
            Attribute("whole", False),
        ),
        results=2,
        dtypes=NUMBERS,
        cases=_indexed,
        flops=_window_flops,
        source="ONNX MaxPool-22, PyTorch max_pool2d_with_indices",
    ),
    OpSpec(
        "max_unpool",
        "pooling",
        max_unpool,
        _unpool_type,
        operands=(Operand("x"), Operand("indices")),
        attributes=(Attribute("output_size"),),
        dtypes=NUMBERS,
        cases=_unpooled,
        flops=0,
        source="ONNX MaxUnpool-22",
    ),
    *(
        OpSpec(
            f"adaptive_avg_pool{rank}d",
            "pooling",
            exactly(adaptive(np.mean)),
            _adaptive_type,
            attributes=(Attribute("output_size"),),
            tolerance=LOOSE,
            relax=f"relax.nn.adaptive_avg_pool{rank}d",
            cases=_adaptive_cases(rank),
            flops=_input_flops,
        )
        for rank in (1, 2, 3)
    ),
    OpSpec(
        "adaptive_max_pool",
        "pooling",
        adaptive(np.max),
        _adaptive_type,
        attributes=(Attribute("output_size"),),
        dtypes=NUMBERS,
        cases=_adaptive_cases(2),
        flops=_input_flops,
        source="PyTorch adaptive_max_pool2d",
    ),
    *(
        OpSpec(
            f"global_{short}_pool",
            "pooling",
            meaning if short == "max" else exactly(meaning),
            _global_type,
            dtypes=FLOATS,
            tolerance=LOOSE,
            cases=_planes,
            decompose=decompose_global(name),
            flops=_input_flops,
            source=f"ONNX Global{name.capitalize()}Pool",
        )
        for short, name, meaning in (
            ("avg", "mean", global_pool(lambda x, axes: x.mean(axes, keepdims=True))),
            ("max", "max", global_pool(lambda x, axes: x.max(axes, keepdims=True))),
        )
    ),
    OpSpec(
        "global_lp_pool",
        "pooling",
        exactly(global_pool(_lp_mean)),
        _global_type,
        attributes=(Attribute("p", 2.0),),
        tolerance=LOOSE,
        cases=lambda: (
            Case("euclidean", (normal(2, 3, 5, 4),)),
            Case("cube", (normal(2, 3, 7),), {"p": 3.0}),
        ),
        decompose=decompose_global_lp,
        flops=_input_flops,
        source="ONNX GlobalLpPool-22",
    ),
)
