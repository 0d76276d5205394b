"""Channel-wise scale and shift folded into the convolution before it.

    conv(x, W) * s        ->  conv(x, W * s)            s broadcast over output channels
    (conv(x, W) + b) * s  ->  conv(x, W * s) + b * s
    batch_norm(y)         ->  y * s + t,  s = gamma / sqrt(var + eps),  t = beta - mean * s

``W``, ``s`` and ``b`` are constants; products are taken in float64 and rounded once. Chains fold
until nothing changes, so conv + batch norm becomes conv + bias.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import PyExprMutator, mutator

from uif_tvm.compiler.graph_pass import GraphPass
from uif_tvm.relax_util import (
    bindings,
    constant_array,
    make_constant,
    op_name,
    static_shape,
)

if TYPE_CHECKING:
    from uif_tvm.compiler.context import CompileContext

Array = np.ndarray[Any, Any]
#: Operator -> axis of the output channel in its weight.
_CONVS = {"relax.nn.conv1d": 0, "relax.nn.conv2d": 0, "relax.nn.conv3d": 0}


@mutator
class _FoldAffine(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.uses = _use_counts(mod["main"])
        self.values = {b.var: getattr(b, "value", None) for b in bindings(mod["main"])}
        self.fired: list[str] = []

    def visit_call_(self, call: Call) -> Any:
        private = [self._private(arg) for arg in call.args]
        call = self.visit_expr_post_order(call)
        if op_name(call) == "relax.multiply":
            for data, factor in ((0, 1), (1, 0)):
                if private[data]:
                    folded = self._scale(call.args[data], call.args[factor], call)
                    if folded is not None:
                        return folded
        return call

    def _private(self, expr: Any) -> bool:
        """Whether nobody else uses ``expr`` nor, where it is a sum, what it adds to.

        A convolution with another user stays, and a scaled copy of it would cost a second one.
        """
        if not isinstance(expr, relax.Var) or self.uses.get(expr, 0) != 1:
            return False
        value = self.values.get(expr)
        if not isinstance(value, Call) or op_name(value) != "relax.add":
            return True
        return all(self.uses[arg] == 1 for arg in value.args if isinstance(arg, relax.Var))

    def _scale(self, data: Any, factor: Any, call: Call) -> Any:
        value = constant_array(self._bound(factor))
        if value is None or value.dtype.kind != "f":
            return None
        producer = self._bound(data)
        bias = None
        if isinstance(producer, Call) and op_name(producer) == "relax.add":
            for conv_at, bias_at in ((0, 1), (1, 0)):
                bias = constant_array(self._bound(producer.args[bias_at]))
                if bias is not None:
                    producer = self._bound(producer.args[conv_at])
                    break
            else:
                return None
        conv = self._scaled_conv(producer, value)
        if conv is None or (bias is not None and static_shape(call) != static_shape(data)):
            return None
        self.fired.append(str(getattr(data, "name", "conv")))
        if bias is None:
            return conv
        product = (bias.astype(np.float64) * value.astype(np.float64)).astype(bias.dtype)
        return relax.op.add(self.builder_.emit(conv), make_constant(product))

    def _scaled_conv(self, conv: Any, factor: Array) -> Any:
        """``conv`` with its weight multiplied, or ``None`` when it is not foldable."""
        if not isinstance(conv, Call) or op_name(conv) not in _CONVS:
            return None
        layout = str(conv.attrs.out_layout)
        if not layout.startswith("NC") or conv.attrs.kernel_layout[0] != "O":
            return None
        weight = constant_array(self._bound(conv.args[1]))
        # A wider result type would be scaled in that type; the weight cannot hold the product.
        if weight is None or weight.dtype != factor.dtype:
            return None
        scale = per_channel(factor, weight.shape[0], len(layout))
        if scale is None:
            return None
        wide = weight.astype(np.float64) * scale.reshape((-1,) + (1,) * (weight.ndim - 1))
        return Call(
            conv.op,
            [conv.args[0], make_constant(wide.astype(weight.dtype))],
            conv.attrs,
            conv.ty_args,
        )

    def _bound(self, expr: Any) -> Any:
        while isinstance(expr, relax.Var):
            value = self.lookup_binding(expr)
            if value is None:
                return expr
            expr = value
        return expr


def per_channel(value: Array, channels: int, ndim: int) -> Array | None:
    """``value`` as float64[channels] when it only varies along axis 1 of an ``ndim`` tensor."""
    shape = (1,) * (ndim - value.ndim) + value.shape
    if len(shape) != ndim or any(n != 1 for i, n in enumerate(shape) if i != 1):
        return None
    if shape[1] not in (1, channels):
        return None
    return np.broadcast_to(value.reshape(-1).astype(np.float64), (channels,)).copy()


class FoldAffine(GraphPass):
    """Fold batch norms and channel scales into convolution weights."""

    name = "fold-affine"

    def apply(self, mod: tvm.IRModule, ctx: CompileContext) -> tvm.IRModule:
        """See the module text."""
        mod = _decompose_batch_norm(mod)
        while True:
            fold = _FoldAffine(mod)
            main = fold.visit_expr(mod["main"])
            if not fold.fired:
                return mod
            for subject in fold.fired:
                ctx.report.decide(self.name, subject, True, "scale folded into weights")
            mod = tvm.IRModule(dict(mod.functions), attrs=mod.attrs)
            mod["main"] = main
            mod = relax.transform.DeadCodeElimination(["main"])(mod)


@mutator
class _DecomposeBatchNorm(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Call) -> Any:
        call = self.visit_expr_post_order(call)
        if op_name(call) != "relax.nn.batch_norm":
            return call
        found = [constant_array(self._bound(arg)) for arg in call.args[1:]]
        arrays = [array for array in found if array is not None]
        data, attrs = call.args[0], call.attrs
        if len(arrays) < len(found) or attrs.training:
            return call
        gamma, beta, mean, var = (array.astype(np.float64) for array in arrays)
        scale = (gamma if attrs.scale else 1.0) / np.sqrt(var + attrs.epsilon)
        shift = (beta if attrs.center else 0.0) - mean * scale
        shape = [1] * data.ty.ndim
        shape[int(attrs.axis)] = -1
        dtype = arrays[0].dtype
        scaled = relax.op.multiply(data, make_constant(scale.reshape(shape).astype(dtype)))
        out = relax.op.add(
            self.builder_.emit(scaled), make_constant(shift.reshape(shape).astype(dtype))
        )
        return relax.Tuple([self.builder_.emit(out), call.args[3], call.args[4]])

    def _bound(self, expr: Any) -> Any:
        return self.lookup_binding(expr) if isinstance(expr, relax.Var) else expr


def _decompose_batch_norm(mod: tvm.IRModule) -> tvm.IRModule:
    if not any(
        op_name(b.value) == "relax.nn.batch_norm"
        for b in bindings(mod["main"])
        if isinstance(getattr(b, "value", None), Call)
    ):
        return mod
    main = _DecomposeBatchNorm(mod).visit_expr(mod["main"])
    mod = tvm.IRModule(dict(mod.functions), attrs=mod.attrs)
    mod["main"] = main
    return relax.transform.CanonicalizeBindings()(mod)


def _use_counts(func: relax.Function) -> dict[Any, int]:
    counts: dict[Any, int] = {}

    def count(expr: Any) -> None:
        if isinstance(expr, relax.Var):
            counts[expr] = counts.get(expr, 0) + 1

    relax.analysis.post_order_visit(func.body, count)
    return counts


PASS = FoldAffine()
