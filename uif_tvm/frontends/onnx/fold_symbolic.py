"""Shape arithmetic on symbolic dimensions, at import.

Operands are object arrays: of integers and dimension expressions where the tensor is of integers,
of :class:`Ratio` where it is of floats, of truth values where it is of booleans. What an operator
cannot say symbolically (a comparison that the data decides, a constant that is no small fraction)
is left to the device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from uif_tvm.frontends.onnx.ratio import Ratio
from uif_tvm.frontends.onnx.values import (
    Array,
    Known,
    Symbolic,
    Value,
    decide,
    is_condition,
    simplify,
)

FLOATS = ("float32", "float64")
INTEGERS = ("int64", "int32")
#: Element types of ONNX that a symbolic tensor may be cast to.
CASTS = {1: "float32", 6: "int32", 7: "int64", 9: "bool", 11: "float64"}


def _ints(*items: Any) -> bool:
    return all(isinstance(item, (int, np.integer)) for item in items)


def _expr(item: Any) -> Any:
    from tvm import tirx

    return tirx.const(int(item), "int64") if _ints(item) else item


def _each(fn: Callable[..., Any]) -> Callable[..., Array]:
    """``fn`` over broadcast operands, element by element."""

    def apply(_: dict[str, Any], *operands: Array) -> Array:
        arrays = np.broadcast_arrays(*operands)
        out = np.empty(arrays[0].shape, dtype=object)
        for index in np.ndindex(*out.shape):
            out[index] = fn(*(array[index] for array in arrays))
        return out

    return apply


def _variadic(fn: Callable[[Any, Any], Any]) -> Callable[..., Array]:
    return _each(lambda *items: functools.reduce(fn, items))


def _extreme(left: Any, right: Any, name: str) -> Any:
    from tvm import tirx

    if isinstance(left, Ratio):
        if left.denominator != right.denominator:
            raise NotImplementedError
        return Ratio(_extreme(left.numerator, right.numerator, name), left.denominator)
    if _ints(left, right):
        return min(left, right) if name == "min" else max(left, right)
    return getattr(tirx, name)(_expr(left), _expr(right))


def _div(left: Any, right: Any) -> Any:
    """Quotient of integers towards zero, or a fraction."""
    from tvm import tirx

    if isinstance(left, Ratio):
        return left / right
    if _ints(left, right):
        return int(abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1))
    if _ints(right) and right == 0:
        raise NotImplementedError
    return tirx.truncdiv(_expr(left), _expr(right))


def _mod(left: Any, right: Any) -> Any:
    from tvm import tirx

    if isinstance(left, Ratio):
        raise NotImplementedError
    return left % right if _ints(left, right) else tirx.floormod(_expr(left), _expr(right))


def _compare(fn: Callable[[Any, Any], Any]) -> Callable[..., Array]:
    def decided(left: Any, right: Any) -> Any:
        if isinstance(left, Ratio):
            scaled = left.numerator * right.denominator, right.numerator * left.denominator
            return decided(*map(simplify, scaled))
        test = fn(left, right) if _ints(left, right) else fn(_expr(left), _expr(right))
        truth = decide(test)
        return test if truth is None else truth

    return _each(decided)


def _equal(left: Any, right: Any) -> Any:
    from tvm import tirx

    return left == right if _ints(left, right) else tirx.EQ(_expr(left), _expr(right))


def _absolute(item: Any) -> Any:
    if isinstance(item, Ratio):
        return Ratio(_absolute(item.numerator), item.denominator)
    if _ints(item):
        return abs(item)
    if decide(item >= 0):
        return item
    raise NotImplementedError


def _rounded(fn: Callable[[Ratio], Any]) -> Callable[..., Array]:
    return _each(lambda item: Ratio(fn(item)) if isinstance(item, Ratio) else item)


def _cast(attrs: dict[str, Any], data: Array) -> Array:
    target = CASTS[attrs["to"]]

    def convert(item: Any) -> Any:
        truth = isinstance(item, (bool, np.bool_)) or is_condition(item)
        if target == "bool":
            return item if truth else compare(item, Ratio(0) if isinstance(item, Ratio) else 0)
        if truth:
            item = _select(item, 1, 0)
        if target in FLOATS:
            return Ratio.of(item)
        return item.trunc() if isinstance(item, Ratio) else item

    def compare(item: Any, zero: Any) -> Any:
        return _not(SYMBOLIC_OPS["Equal"]({}, np.array(item, object), np.array(zero, object))[()])

    return _each(convert)({}, data)


def _select(condition: Any, left: Any, right: Any) -> Any:
    from tvm import tirx

    if isinstance(condition, (bool, np.bool_)):
        return left if condition else right
    if isinstance(left, Ratio):
        raise NotImplementedError
    return tirx.Select(condition, _expr(left), _expr(right))


def _logical(name: str) -> Callable[[Any, Any], Any]:
    def apply(left: Any, right: Any) -> Any:
        from tvm import tirx

        known = [item for item in (left, right) if isinstance(item, (bool, np.bool_))]
        unknown = [item for item in (left, right) if not isinstance(item, (bool, np.bool_))]
        settling = name == "Or"
        if any(bool(item) == settling for item in known):
            return settling
        if not unknown:
            return not settling
        return getattr(tirx, name)(*unknown) if len(unknown) == 2 else unknown[0]

    return apply


def _not(item: Any) -> Any:
    from tvm import tirx

    return not item if isinstance(item, (bool, np.bool_)) else tirx.Not(item)


def _gather(attrs: dict[str, Any], data: Array, indices: Array) -> Array:
    return np.asarray(np.take(data, indices.astype(np.int64), axis=int(attrs.get("axis", 0))))


def _concat(attrs: dict[str, Any], *parts: Array) -> Array:
    return np.concatenate(parts, axis=int(attrs["axis"]))


def _axes(attrs: dict[str, Any], given: Array | None) -> list[int] | None:
    if given is not None:
        return [int(axis) for axis in given.reshape(-1)]
    return list(attrs["axes"]) if "axes" in attrs else None


def _unsqueeze(attrs: dict[str, Any], data: Array, axes: Array | None = None) -> Array:
    return np.expand_dims(data, tuple(_axes(attrs, axes) or ()))


def _squeeze(attrs: dict[str, Any], data: Array, axes: Array | None = None) -> Array:
    chosen = _axes(attrs, axes)
    return np.squeeze(data, None if chosen is None else tuple(chosen))


def _reshape(_: dict[str, Any], data: Array, shape: Array) -> Array:
    return data.reshape([int(dim) for dim in shape])


def _transpose(attrs: dict[str, Any], data: Array) -> Array:
    return data.transpose(attrs.get("perm"))


def _tile(_: dict[str, Any], data: Array, repeats: Array) -> Array:
    return np.tile(data, [int(count) for count in repeats])


def _expand(_: dict[str, Any], data: Array, shape: Array) -> Array:
    wanted = np.broadcast_shapes(data.shape, tuple(int(dim) for dim in shape))
    return np.broadcast_to(data, wanted).copy()


def _flatten(attrs: dict[str, Any], data: Array) -> Array:
    axis = int(attrs.get("axis", 1)) % (data.ndim + 1)
    return data.reshape(int(np.prod(data.shape[:axis])), -1)


def _slice(
    attrs: dict[str, Any],
    data: Array,
    starts: Array | None = None,
    ends: Array | None = None,
    axes: Array | None = None,
    steps: Array | None = None,
) -> Array:
    first = attrs["starts"] if starts is None else [int(v) for v in starts]
    last = attrs["ends"] if ends is None else [int(v) for v in ends]
    along = _axes(attrs, axes) or list(range(len(first)))
    stride = [1] * len(first) if steps is None else [int(v) for v in steps]
    index: list[slice] = [slice(None)] * data.ndim
    for axis, begin, end, step in zip(along, first, last, stride, strict=True):
        index[axis] = slice(begin, end if step > 0 or end >= -data.shape[axis] else None, step)
    return data[tuple(index)]


def _reduce(fn: Callable[[Any, Any], Any]) -> Callable[..., Array]:
    """A reduction of a vector; that is what shape arithmetic reduces."""

    def apply(attrs: dict[str, Any], data: Array, axes: Array | None = None) -> Array:
        chosen = _axes(attrs, axes)
        if data.ndim != 1 or data.size == 0 or chosen not in (None, [0], [-1]):
            raise NotImplementedError
        total = functools.reduce(fn, data)
        out = np.empty((1,) if attrs.get("keepdims", 1) else (), dtype=object)
        out[...] = total
        return out

    return apply


SYMBOLIC_OPS: dict[str, Callable[..., Array]] = {
    "Add": _each(lambda a, b: a + b),
    "Sub": _each(lambda a, b: a - b),
    "Mul": _each(lambda a, b: a * b),
    "Div": _each(_div),
    "Mod": _each(_mod),
    "Neg": _each(lambda a: -a),
    "Abs": _each(_absolute),
    "Min": _variadic(lambda a, b: _extreme(a, b, "min")),
    "Max": _variadic(lambda a, b: _extreme(a, b, "max")),
    "Floor": _rounded(Ratio.floor),
    "Ceil": _rounded(Ratio.ceil),
    "Equal": _compare(_equal),
    "Less": _compare(lambda a, b: a < b),
    "LessOrEqual": _compare(lambda a, b: a <= b),
    "Greater": _compare(lambda a, b: a > b),
    "GreaterOrEqual": _compare(lambda a, b: a >= b),
    "Where": _each(_select),
    "And": _each(_logical("And")),
    "Or": _each(_logical("Or")),
    "Not": _each(_not),
    "Identity": lambda _, data: data,
    "Cast": _cast,
    "Gather": _gather,
    "Concat": _concat,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Flatten": _flatten,
    "Tile": _tile,
    "Expand": _expand,
    "Slice": _slice,
    "ReduceProd": _reduce(lambda a, b: a * b),
    "ReduceSum": _reduce(lambda a, b: a + b),
    "ReduceMax": _reduce(lambda a, b: _extreme(a, b, "max")),
    "ReduceMin": _reduce(lambda a, b: _extreme(a, b, "min")),
}


TRUTHS = frozenset(
    ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Not"]
)
"""Operators whose result is boolean."""
#: Inputs that are positions and counts and not data: they do not take the data's form.
_PLAIN_INPUTS = {
    "Gather": (1,),
    "Unsqueeze": (1,),
    "Squeeze": (1,),
    "Reshape": (1,),
    "Tile": (1,),
    "Expand": (1,),
    "Slice": (1, 2, 3, 4),
    "ReduceProd": (1,),
    "ReduceSum": (1,),
    "ReduceMax": (1,),
    "ReduceMin": (1,),
    "Where": (0,),
}


def fold_symbolic(
    op_type: str, attrs: dict[str, Any], inputs: Sequence[Value | None]
) -> Known | Symbolic | None:
    """Result of shape arithmetic on symbolic dimensions, ``None`` where it is not that."""
    rule = SYMBOLIC_OPS.get(op_type)
    tensors = [value for value in inputs if isinstance(value, (Known, Symbolic))]
    if rule is None or not {value.dtype for value in tensors} <= {*INTEGERS, *FLOATS, "bool"}:
        return None
    if op_type == "Cast" and attrs.get("to") not in CASTS:
        return None
    dtype = next(value.dtype for value in inputs if isinstance(value, Symbolic))
    if op_type == "Where":
        dtype = next(v.dtype for v in inputs[1:] if isinstance(v, (Known, Symbolic)))
    if op_type == "Cast":
        dtype = CASTS[attrs["to"]]
    plain = _PLAIN_INPUTS.get(op_type, ())
    try:
        operands = [_operand(value, at in plain) for at, value in enumerate(inputs)]
        result = rule(attrs, *operands)
        made = "bool" if op_type in TRUTHS else dtype
        return settle(np.asarray(result, dtype=object), made)
    except (NotImplementedError, TypeError, ValueError, IndexError):
        return None


def _operand(value: Value | None, plain: bool) -> Array | None:
    if isinstance(value, Known):
        if value.dtype in FLOATS and not plain:
            return _each(lambda item: Ratio.of(float(item)))({}, value.array)
        return value.array.astype(object)
    if isinstance(value, Symbolic):
        return value.elements
    if value is None:
        return None
    raise NotImplementedError


def settle(elements: Array, dtype: str) -> Known | Symbolic:
    """Simplify each element; known when all of them are numbers (or truth values)."""
    if dtype == "bool":
        if any(is_condition(item) for item in elements.flat):
            return Symbolic(elements, dtype)
        return Known(elements.astype(bool))
    if dtype in FLOATS:
        numbers = [item.known() for item in elements.flat]
        if all(number is not None for number in numbers):
            return Known(np.array(numbers, dtype).reshape(elements.shape))
        return Symbolic(elements, dtype)
    out = np.empty(elements.shape, dtype=object)
    for index in np.ndindex(*elements.shape):
        out[index] = simplify(elements[index])
    if all(isinstance(item, int) for item in out.flat):
        return Known(out.astype(dtype))
    return Symbolic(out, dtype)
