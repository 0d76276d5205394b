"""Arithmetic, comparison and logic, element by element."""

from __future__ import annotations

from functools import reduce
from typing import Any

from tvm import relax

from uif_tvm.frontends.converters.broadcast import aligned
from uif_tvm.frontends.converters.context import NodeContext, Unsupported
from uif_tvm.frontends.converters.registry import converter
from uif_tvm.frontends.onnx.values import Dynamic, shape_of

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


@converter("Div")
def div(ctx: NodeContext) -> relax.Expr:
    """Quotient; integers are divided towards zero, and by zero give zero instead of a trap."""
    left = ctx.expr(0)
    right = legacy_broadcast(ctx, left, ctx.expr(1))
    same_dtype(ctx, left, right)
    return ctx.emit(relax.op.divide(*aligned(ctx, left, right)))


@converter("Mod")
def mod(ctx: NodeContext) -> relax.Expr:
    """Remainder: sign of the divisor, or of the dividend with ``fmod``."""
    left, right = ctx.expr(0), ctx.expr(1)
    same_dtype(ctx, left, right)
    op = relax.op.mod if ctx.attrs.get("fmod", 0) else relax.op.floor_mod
    return ctx.emit(op(*aligned(ctx, left, right)))


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
    given = str(right.ty.dtype)
    work = "float32" if is_float(dtype) and dtype != "float64" else "float64"
    if is_float(dtype) or is_float(given):
        base, right = ctx.cast(base, work), ctx.cast(right, work)
    elif given != dtype:
        wide = "uint64" if is_unsigned(given) and is_unsigned(dtype) else "int64"
        base, right = ctx.cast(base, wide), ctx.cast(right, wide)
    return ctx.cast(ctx.emit(relax.op.power(*aligned(ctx, base, right))), dtype)


@converter("BitShift")
def bit_shift(ctx: NodeContext) -> relax.Expr:
    """Shift; by the width or more gives zero."""
    op = relax.op.left_shift if ctx.attrs["direction"] == "LEFT" else relax.op.right_shift
    return ctx.emit(op(*aligned(ctx, ctx.expr(0), ctx.expr(1))))


@converter("Not")
def logical_not(ctx: NodeContext) -> relax.Expr:
    """Negation of booleans."""
    return ctx.emit(relax.op.logical_not(ctx.expr(0)))


@converter("BitwiseNot")
def bitwise_not(ctx: NodeContext) -> relax.Expr:
    """Complement of integers."""
    return ctx.emit(relax.op.bitwise_not(ctx.expr(0)))


@converter("Max", "Min")
def extremum(ctx: NodeContext) -> relax.Expr:
    """Maximum or minimum of any number of tensors; NaN propagates."""
    exprs = [ctx.expr(i) for i in range(len(ctx.inputs))]
    same_dtype(ctx, *exprs)
    op = relax.op.maximum if ctx.op_type == "Max" else relax.op.minimum
    return reduce(lambda a, b: ctx.emit(op(*aligned(ctx, a, b))), exprs)


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
    bounds = {"min": _bound(ctx, 1, "min"), "max": _bound(ctx, 2, "max")}
    x = ctx.expr(0)
    if all(bound is None or isinstance(bound, (int, float)) for bound in bounds.values()):
        given = {name: bound for name, bound in bounds.items() if bound is not None}
        return ctx.op("clip", x, **given) if given else x
    for (name, bound), op in zip(bounds.items(), (relax.op.maximum, relax.op.minimum), strict=True):
        if isinstance(bound, (int, float)):
            x = ctx.op("clip", x, **{name: bound})
        elif bound is not None:
            x = ctx.emit(op(x, bound))
    return x


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
