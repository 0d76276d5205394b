"""Arithmetic, comparison and logic, element by element."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from tvm import relax, te, tirx

from uif_tvm.frontends.converters.broadcast import aligned, broadcast_shape
from uif_tvm.frontends.converters.context import NodeContext, Unsupported
from uif_tvm.frontends.converters.dtypes import kind
from uif_tvm.frontends.converters.registry import converter
from uif_tvm.frontends.onnx.values import Dynamic, shape_of
from uif_tvm.kernels.arithmetic import floor_remainder, remainder
from uif_tvm.kernels.math import is_nan

BINARY = {
    "Add": relax.op.add,
    "Sub": relax.op.subtract,
    "Mul": relax.op.multiply,
    "Less": relax.op.less,
    "LessOrEqual": relax.op.less_equal,
    "Greater": relax.op.greater,
    "GreaterOrEqual": relax.op.greater_equal,
    "Equal": relax.op.equal,
    "And": relax.op.logical_and,
    "Or": relax.op.logical_or,
    "Xor": relax.op.logical_xor,
    "BitwiseAnd": relax.op.bitwise_and,
    "BitwiseOr": relax.op.bitwise_or,
    "BitwiseXor": relax.op.bitwise_xor,
}


def is_float(dtype: str) -> bool:
    """Whether a dtype is a floating-point one."""
    return "float" in dtype


def is_unsigned(dtype: str) -> bool:
    """Whether a dtype is an unsigned integer or bool."""
    return dtype.startswith("uint") or dtype == "bool"


def legacy_broadcast(ctx: NodeContext, left: relax.Expr, right: relax.Expr) -> relax.Expr:
    """The second operand of an operator before version 7, aligned at its ``axis`` attribute."""
    if ctx.version >= 7 or not ctx.attrs.get("broadcast", 0) or "axis" not in ctx.attrs:
        return right
    shape = list(shape_of(right))
    rank = len(shape_of(left))
    tail = rank - ctx.axis(int(ctx.attrs["axis"]), rank) - len(shape)
    return ctx.reshape(right, shape + [1] * max(tail, 0))


@converter(*BINARY)
def binary(ctx: NodeContext) -> relax.Expr:
    """Operators that Relax has under the same meaning."""
    left = ctx.expr(0)
    right = legacy_broadcast(ctx, left, ctx.expr(1))
    same_dtype(ctx, left, right)
    left, right = aligned(ctx, left, right)
    return ctx.emit(BINARY[ctx.op_type](left, right))


def same_dtype(ctx: NodeContext, *exprs: relax.Expr) -> None:
    """Refuse operands of different dtypes, which ONNX does not allow."""
    dtypes = [str(expr.ty.dtype) for expr in exprs]
    if len(set(dtypes)) > 1:
        raise ctx.invalid(f"operands have different dtypes: {', '.join(dtypes)}")


def pairwise(
    ctx: NodeContext,
    left: relax.Expr,
    right: relax.Expr,
    fn: Callable[[Any, Any], Any],
    name: str,
) -> relax.Expr:
    """An element-wise TE function of two operands, broadcast."""
    left, right = aligned(ctx, left, right)
    shape = broadcast_shape(ctx, shape_of(left), shape_of(right))

    def compute(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        def at(tensor: te.Tensor, index: tuple[Any, ...]) -> Any:
            tail = index[len(index) - len(tensor.shape) :]
            return tensor(
                *[
                    0 if isinstance(d, tirx.IntImm) and int(d) == 1 else i
                    for i, d in zip(tail, tensor.shape, strict=True)
                ]
            )

        return te.compute(shape, lambda *i: fn(at(a, i), at(b, i)), name=name)

    return ctx.te(compute, left, right, name=name)


def each(ctx: NodeContext, expr: relax.Expr, fn: Callable[[Any], Any], name: str) -> relax.Expr:
    """An element-wise TE function of one operand."""
    return ctx.te(lambda a: te.compute(a.shape, lambda *i: fn(a(*i)), name=name), expr, name=name)


@converter("Div")
def div(ctx: NodeContext) -> relax.Expr:
    """Quotient; integers are divided towards zero, and by zero give zero instead of a trap."""
    left = ctx.expr(0)
    right = legacy_broadcast(ctx, left, ctx.expr(1))
    same_dtype(ctx, left, right)
    if is_float(ctx.dtype(0)):
        return ctx.emit(relax.op.divide(*aligned(ctx, left, right)))
    return pairwise(ctx, left, right, safe_quotient, "divide")


def safe_quotient(a: Any, b: Any) -> Any:
    """``a / b`` towards zero, 0 where ``b`` is 0 and without the overflow of ``min / -1``."""
    zero, one = tirx.const(0, kind(a)), tirx.const(1, kind(a))
    quotient = tirx.truncdiv(a, tirx.Select(b == zero, one, b))
    if not is_unsigned(kind(a)):
        negated = tirx.Select(b == tirx.const(-1, kind(a)), one, b)
        divisor = tirx.Select(b == zero, one, negated)
        quotient = tirx.Select(b == tirx.const(-1, kind(a)), zero - a, tirx.truncdiv(a, divisor))
    return tirx.Select(b == zero, zero, quotient)


@converter("Mod")
def mod(ctx: NodeContext) -> relax.Expr:
    """Remainder: sign of the divisor, or of the dividend with ``fmod``."""
    left, right = ctx.expr(0), ctx.expr(1)
    same_dtype(ctx, left, right)
    rest_of = remainder if ctx.attrs.get("fmod", 0) else floor_remainder
    return pairwise(ctx, left, right, rest_of, "mod")


@converter("Pow")
def power(ctx: NodeContext) -> relax.Expr:
    """Power in the base's dtype; small constant exponents become products."""
    base, dtype = ctx.expr(0), ctx.dtype(0)
    exponent = ctx.array(1)
    if exponent is not None and exponent.size == 1 and is_float(dtype):
        constant = float(exponent.reshape(-1)[0])
        rank_kept = len(exponent.shape) <= ctx.rank(0)
        if rank_kept and constant == 2.0:
            return ctx.emit(relax.op.multiply(base, base))
        if rank_kept and constant == 0.5:
            return ctx.emit(relax.op.sqrt(base))
        if rank_kept and constant == 1.0:
            return base
        if rank_kept and constant == 3.0:
            square = ctx.emit(relax.op.multiply(base, base))
            return ctx.emit(relax.op.multiply(square, base))
    right = legacy_broadcast(ctx, base, ctx.expr(1))
    if is_float(dtype):
        if str(right.ty.dtype) == dtype and dtype in ("float32", "float64"):
            return ctx.emit(relax.op.power(*aligned(ctx, base, right)))
        wide = "float64" if dtype == "float64" else "float32"
        return pairwise(
            ctx,
            base,
            right,
            lambda a, b: tirx.pow(a.astype(wide), b.astype(wide)).astype(dtype),
            "power",
        )
    if is_float(str(right.ty.dtype)):
        return pairwise(
            ctx,
            base,
            right,
            lambda a, b: tirx.pow(a.astype("float64"), b.astype("float64")).astype(dtype),
            "power",
        )
    return pairwise(ctx, base, right, _integer_power, "power")


def _integer_power(base: Any, exponent: Any) -> Any:
    """Exact integer power modulo the dtype's range: square and multiply over 6 bits.

    Exponents above 63 overflow every integer base but 0, 1 and -1, for which the low bits decide.
    """
    one, zero = tirx.const(1, kind(base)), tirx.const(0, kind(base))
    clipped = tirx.min(
        exponent,
        tirx.const(62, kind(exponent)) + tirx.truncmod(exponent, tirx.const(2, kind(exponent))),
    )
    result, square = one, base
    rest = clipped
    for _ in range(6):
        odd = tirx.truncmod(rest, tirx.const(2, kind(exponent))) == tirx.const(1, kind(exponent))
        result = result * tirx.Select(odd, square, one)
        square = square * square
        rest = tirx.truncdiv(rest, tirx.const(2, kind(exponent)))
    if is_unsigned(kind(exponent)):
        return result
    negative = tirx.Select(base == one, one, zero)
    return tirx.Select(exponent < tirx.const(0, kind(exponent)), negative, result)


@converter("BitShift")
def bit_shift(ctx: NodeContext) -> relax.Expr:
    """Shift; by the width or more gives zero."""
    left = ctx.attrs["direction"] == "LEFT"
    bits = int(ctx.dtype(0).removeprefix("uint").removeprefix("int"))

    def shift(a: Any, b: Any) -> Any:
        count = b.astype("int64")
        inside = tirx.all(count >= 0, count < bits)
        amount = tirx.Select(inside, count, tirx.const(0, "int64")).astype(kind(a))
        shifted = a << amount if left else a >> amount
        beyond = tirx.const(0, kind(a))
        if not left and not is_unsigned(kind(a)):
            beyond = a >> tirx.const(bits - 1, kind(a))
        return tirx.Select(inside, shifted, beyond)

    return pairwise(ctx, ctx.expr(0), ctx.expr(1), shift, "bit_shift")


@converter("Not")
def logical_not(ctx: NodeContext) -> relax.Expr:
    """Negation of booleans."""
    return ctx.emit(relax.op.logical_not(ctx.expr(0)))


@converter("BitwiseNot")
def bitwise_not(ctx: NodeContext) -> relax.Expr:
    """Complement of integers."""
    return ctx.emit(relax.op.bitwise_not(ctx.expr(0)))


def _pick(larger: bool) -> Callable[[Any, Any], Any]:
    def choose(a: Any, b: Any) -> Any:
        better = a > b if larger else a < b
        if is_float(kind(a)):
            better = tirx.any(better, is_nan(a))  # a NaN on either side wins
        return tirx.Select(better, a, b)

    return choose


@converter("Max", "Min")
def extremum(ctx: NodeContext) -> relax.Expr:
    """Maximum or minimum of any number of tensors; NaN propagates, which Relax's own loses."""
    exprs = [ctx.expr(i) for i in range(len(ctx.inputs))]
    same_dtype(ctx, *exprs)
    choose = _pick(ctx.op_type == "Max")
    return reduce(lambda a, b: pairwise(ctx, a, b, choose, ctx.op_type.lower()), exprs)


@converter("Sum", "Mean")
def total(ctx: NodeContext) -> relax.Expr:
    """Sum or mean of any number of tensors."""
    exprs = [ctx.expr(i) for i in range(len(ctx.inputs))]
    same_dtype(ctx, *exprs)
    result = reduce(lambda a, b: ctx.emit(relax.op.add(*aligned(ctx, a, b))), exprs)
    if ctx.op_type == "Sum":
        return result
    return ctx.emit(relax.op.divide(result, ctx.const(len(exprs), ctx.dtype(0))))


@converter("Where")
def where(ctx: NodeContext) -> relax.Expr:
    """Selection by a condition, all three broadcast."""
    exprs = [ctx.expr(i) for i in range(3)]
    same_dtype(ctx, *exprs[1:])
    return ctx.emit(relax.op.where(*aligned(ctx, *exprs)))


@converter("Clip")
def clip(ctx: NodeContext) -> relax.Expr:
    """Clamp to [min, max]; NaN stays NaN."""
    dtype = ctx.dtype(0)
    low, high = _bound(ctx, 1, "min"), _bound(ctx, 2, "max")
    result = ctx.expr(0)
    for bound, larger in ((low, True), (high, False)):
        if isinstance(bound, (int, float)):
            result = each(ctx, result, _limit(bound, dtype, larger), "clip")
        elif bound is not None:
            result = pairwise(ctx, result, bound, _pick(larger), "clip")
    return result


def _limit(bound: float, dtype: str, larger: bool) -> Callable[[Any], Any]:
    """The larger (smaller) of an element and ``bound``; one kernel a bound, so that none repeats
    the other's expression."""
    edge = tirx.const(bound, dtype)
    return lambda v: tirx.Select(v < edge if larger else v > edge, edge, v)


def _bound(ctx: NodeContext, index: int, attribute: str) -> float | int | relax.Expr | None:
    if ctx.version < 11:
        return float(ctx.attrs[attribute]) if attribute in ctx.attrs else None
    if not ctx.has(index):
        return None
    array = ctx.array(index)
    if array is None:
        return ctx.reshape(ctx.expr(index), ())
    if array.size != 1:
        raise ctx.invalid(f"{attribute} must be a scalar")
    item = array.reshape(-1)[0]
    return float(item) if is_float(ctx.dtype(0)) else int(item)


@converter("Identity")
def identity(ctx: NodeContext) -> Any:
    """The value itself."""
    ctx.importer.count_removed("Identity")
    return ctx.value(0)


@converter("Dropout")
def dropout(ctx: NodeContext) -> list[Any]:
    """The value itself at inference, and a mask of ones."""
    if ctx.has(2):
        mode = ctx.array(2)
        ratio = ctx.array(1) if ctx.has(1) else None
        if mode is None or (bool(mode.reshape(-1)[0]) and (ratio is None or ratio.any())):
            raise Unsupported("training mode", "export the model for inference: model.eval()")
    ctx.importer.count_removed("Dropout")
    results: list[Any] = [ctx.value(0)]
    if ctx.wants(1):
        dtype = "bool" if ctx.version >= 10 else ctx.dtype(0)
        results.append(Dynamic(ctx.emit(relax.op.full(ctx.shape(0), ctx.const(1, dtype), dtype))))
    return results
