"""Which kernel each Relax operator becomes, where ours is better than TVM's default.

``LEGALIZE`` maps operator names to functions for ``relax.transform.LegalizeOps``. Each function
falls back to TVM's own legalisation for element types and forms that our kernels do not take.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from uif_tvm.kernels import activation, norm, window

if TYPE_CHECKING:
    from tvm import te
    from tvm.ir import Call
    from tvm.relax import BlockBuilder, Expr

Legalizer = Callable[["BlockBuilder", "Call"], "Expr"]

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_ELEMENTWISE, _REDUCTION, _OUT_FUSABLE = 0, 3, 4


def _default(bb: BlockBuilder, call: Call) -> Expr:
    """TVM's own legalisation of the operator."""
    return call.op.get_attr("FLegalize")(bb, call)


def _dtype(expr: Any) -> str:
    return str(expr.ty.dtype.dtype if hasattr(expr.ty.dtype, "dtype") else expr.ty.dtype)


def _shape(expr: Any) -> list[Any] | None:
    """Extents of a tensor expression, or ``None`` when even its rank is unknown."""
    values = getattr(getattr(expr.ty, "shape", None), "values", None)
    return None if values is None else list(values)


def _elementwise(name: str, formula: Callable[[Any], Any]) -> Legalizer:
    """Legalisation of a unary operator to ``formula``, for floating-point types."""

    def kernel(x: te.Tensor) -> te.Tensor:
        from tvm import te

        return te.compute(x.shape, lambda *i: formula(x[i].asobject()), name=name)

    def legalize(bb: BlockBuilder, call: Call) -> Expr:
        if _dtype(call.args[0]) not in _FLOATS:
            return _default(bb, call)
        return bb.call_te(kernel, call.args[0], primfunc_name_hint=f"tir_{name}")

    return legalize


def _softplus(bb: BlockBuilder, call: Call) -> Expr:
    beta, threshold = float(call.attrs.beta), float(call.attrs.threshold)
    formula = _elementwise("softplus", lambda v: activation.softplus(v, beta, threshold))
    return formula(bb, call)


def _power(bb: BlockBuilder, call: Call) -> Expr:
    """x^2 and x^3 by multiplication; any other power by TVM's default."""
    from uif_tvm.relax_util import constant_array

    base, exponent = call.args
    value = constant_array(exponent)
    if value is None or value.size != 1 or _dtype(base) not in _FLOATS or value.ndim:
        return _default(bb, call)
    power = float(value.reshape(()))
    if power == 2.0:
        return _elementwise("square", lambda v: v * v)(bb, call)
    if power == 3.0:
        return _elementwise("cube", lambda v: v * v * v)(bb, call)
    return _default(bb, call)


def _softmax(log: bool) -> Legalizer:
    def legalize(bb: BlockBuilder, call: Call) -> Expr:
        shape = _shape(call.args[0])
        if not shape or _dtype(call.args[0]) not in _FLOATS:
            return _default(bb, call)
        axis = int(call.attrs.axis) % len(shape)
        return bb.call_te(
            lambda x: norm.softmax(x, axis, log),
            call.args[0],
            primfunc_name_hint="log_softmax" if log else "softmax",
            primfunc_attrs={"op_pattern": _OUT_FUSABLE},
        )

    return legalize


def _last_axis_only(call: Call) -> bool:
    """Whether a normalisation runs over the last axis alone, of a floating-point tensor."""
    shape = _shape(call.args[0])
    if not shape or _dtype(call.args[0]) not in _FLOATS:
        return False
    axes = [int(axis) % len(shape) for axis in call.attrs.axes]
    return axes == [len(shape) - 1] and len(shape) > 1


def _layer_norm(bb: BlockBuilder, call: Call) -> Expr:
    if not _last_axis_only(call):
        return _default(bb, call)
    epsilon = float(call.attrs.epsilon)
    scale, centre = bool(call.attrs.scale), bool(call.attrs.center)
    return bb.call_te(
        lambda x, g, b: norm.layer_norm(x, g if scale else None, b if centre else None, epsilon),
        *call.args,
        primfunc_name_hint="layer_norm",
        primfunc_attrs={"op_pattern": _OUT_FUSABLE},
    )


def _rms_norm(bb: BlockBuilder, call: Call) -> Expr:
    if not _last_axis_only(call):
        return _default(bb, call)
    epsilon = float(call.attrs.epsilon)
    return bb.call_te(
        lambda x, w: norm.rms_norm(x, w, epsilon),
        *call.args,
        primfunc_name_hint="rms_norm",
        primfunc_attrs={"op_pattern": _OUT_FUSABLE},
    )


def _axes(call: Call, rank: int) -> list[int]:
    axes: Sequence[Any] | None = call.attrs.axis
    return list(range(rank)) if axes is None else sorted({int(axis) % rank for axis in axes})


def _reduction(name: str, build: Callable[[Any, list[int], bool], Any]) -> Legalizer:
    """Legalisation of a reduction to ``build(x, axes, keepdims)``, for floating-point types."""

    def legalize(bb: BlockBuilder, call: Call) -> Expr:
        from tvm import tirx

        shape = _shape(call.args[0])
        if not shape or _dtype(call.args[0]) not in _FLOATS:
            return _default(bb, call)
        axes = _axes(call, len(shape))
        if not axes or any(isinstance(n, tirx.IntImm) and int(n) == 0 for n in shape):
            return _default(bb, call)
        keepdims = bool(call.attrs.keepdims)
        return bb.call_te(
            lambda x: build(x, axes, keepdims),
            call.args[0],
            primfunc_name_hint=name,
            primfunc_attrs={"op_pattern": _REDUCTION},
        )

    return legalize


def _fold(reducer: norm.Reducer, mean: bool = False) -> Callable[[Any, list[int], bool], Any]:
    return lambda x, axes, keepdims: norm.reduce_rows(x, axes, keepdims, reducer, mean)


def _max_pool(bb: BlockBuilder, call: Call) -> Expr:
    data, attrs = call.args[0], call.attrs
    plain = str(attrs.layout)[:2] == "NC" and attrs.layout == attrs.out_layout
    shape = _shape(call)
    if not plain or not shape or _dtype(data) not in _FLOATS:
        return _default(bb, call)
    spatial = len(shape) - 2
    lists = [
        [int(v) for v in values]
        for values in (attrs.pool_size, attrs.strides, attrs.padding[:spatial], attrs.dilation)
    ]
    return bb.call_te(
        lambda x: window.max_pool(x, shape[2:], *lists),
        data,
        primfunc_name_hint=f"max_pool{spatial}d",
        primfunc_attrs={"op_pattern": _OUT_FUSABLE},
    )


def _division(op: str) -> Legalizer:
    """A zero divisor stays in memory: as an immediate, TVM refuses to divide by it."""

    def legalize(bb: BlockBuilder, call: Call) -> Expr:
        from tvm import te, topi

        from uif_tvm.relax_util import constant_array, make_constant

        x, divisor = call.args
        value = constant_array(divisor)
        if value is None or value.ndim or value != 0 or _dtype(x) not in _FLOATS:
            return _default(bb, call)
        zero = make_constant(value.reshape(1))
        divide = getattr(topi, op)

        def kernel(x: te.Tensor, z: te.Tensor) -> te.Tensor:
            if len(x.shape):
                return divide(x, z)
            wide = divide(te.compute((1,), lambda i: x(), name="wide"), z)
            return te.compute((), lambda: wide[0], name=op)

        return bb.call_te(kernel, x, zero, primfunc_name_hint=op)

    return legalize


#: Operator name -> legalisation, for ``relax.transform.LegalizeOps``.
LEGALIZE: dict[str, Legalizer] = {
    "relax.nn.relu": _elementwise("relu", activation.relu),
    "relax.nn.silu": _elementwise("silu", activation.silu),
    "relax.nn.gelu": _elementwise("gelu", activation.gelu),
    "relax.nn.gelu_tanh": _elementwise("gelu_tanh", activation.gelu_tanh),
    "relax.nn.softplus": _softplus,
    "relax.power": _power,
    "relax.divide": _division("divide"),
    "relax.floor_divide": _division("floor_divide"),
    "relax.mod": _division("mod"),
    "relax.floor_mod": _division("floor_mod"),
    "relax.nn.max_pool1d": _max_pool,
    "relax.nn.max_pool2d": _max_pool,
    "relax.nn.max_pool3d": _max_pool,
    "relax.nn.softmax": _softmax(log=False),
    "relax.nn.log_softmax": _softmax(log=True),
    "relax.nn.layer_norm": _layer_norm,
    "relax.nn.rms_norm": _rms_norm,
    "relax.sum": _reduction("sum", _fold(norm.SUM)),
    "relax.mean": _reduction("mean", _fold(norm.SUM, mean=True)),
    "relax.max": _reduction("max", _fold(norm.MAXIMUM)),
    "relax.min": _reduction("min", _fold(norm.MINIMUM)),
    "relax.prod": _reduction("prod", _fold(norm.PRODUCT)),
    "relax.variance": _reduction("variance", norm.variance),
    "relax.std": _reduction("std", lambda x, axes, keep: norm.variance(x, axes, keep, root=True)),
}
