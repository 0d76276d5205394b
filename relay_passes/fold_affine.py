"""Channel-wise scale and shift folded into the matmul or convolution before it.

    product(x, W) * s          ->  product(x, W * s)            s broadcast over output channels
    (product(x, W) + b) * s    ->  product(x, W * s) + b * s
    (product(x, W) + b) + t    ->  product(x, W) + (b + t)
    batch_norm(y)              ->  y * s + t,  s = gamma / sqrt(var + eps),  t = beta - mean * s

``product`` is a matmul or a plain, grouped, depthwise or transposed convolution; ``W``, ``s``,
``b`` and ``t`` are constants. Divisions are scales, subtractions shifts. Values are combined in
float64 and rounded once. Chains fold one by one, so conv + bias + batch norm is conv + bias.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import mutator
from uif_tvm.relay_passes.affine_ops import (
    AffineRewrite,
    Array,
    Product,
    Step,
    elements,
    not_finite,
    per_channel,
    scaled_weight,
)

from uif_tvm.compiler.gain import Gain
from uif_tvm.compiler.graph_pass import GraphPass
from uif_tvm.ops.build import numpy_dtype
from uif_tvm.relax_util import make_constant, op_name, static_shape

if TYPE_CHECKING:
    from uif_tvm.compiler.context import CompileContext


@mutator
class _FoldAffine(AffineRewrite):
    def visit_call_(self, call: Call) -> Any:
        call = self.visit_expr_post_order(call)
        if op_name(call) == "relax.nn.batch_norm":
            return self._norm(call)
        step = self.step(call)
        made = None if step is None else self._folded(step, call.ty.ndim)
        return call if made is None else made

    def visit_tuple_getitem_(self, item: Any) -> Any:
        """Results of a batch norm are known one by one."""
        item = self.visit_expr_post_order(item)
        whole = self.bound(getattr(item, "tuple_value", item))
        if isinstance(item, relax.TupleGetItem) and isinstance(whole, relax.Tuple):
            return whole.fields[item.index]
        return item

    def _norm(self, call: Call) -> Any:
        """A batch norm as scale and shift, folded where it can be."""
        found = [self.constant(arg) for arg in call.args[1:]]
        arrays = [array for array in found if array is not None]
        data, attrs = call.args[0], call.attrs
        if len(arrays) < len(found) or attrs.training:
            return call
        gamma, beta, mean, var = (array.astype(np.float64) for array in arrays)
        with np.errstate(divide="ignore", invalid="ignore"):
            scale = (gamma if attrs.scale else 1.0) / np.sqrt(var + attrs.epsilon)
            shift = (beta if attrs.center else 0.0) - mean * scale
        shape = [1] * data.ty.ndim
        shape[int(attrs.axis)] = -1
        step = Step(data, scale.reshape(shape), shift.reshape(shape))
        out = self._folded(step, data.ty.ndim)
        if out is None:
            constants = [make_constant(value.reshape(shape).astype(arrays[0].dtype))
                         for value in (scale, shift)]  # fmt: skip
            scaled = self.emit(relax.op.multiply(data, constants[0]))
            out = relax.op.add(scaled, constants[1])
        return relax.Tuple([self.emit(out), call.args[3], call.args[4]])

    def _folded(self, step: Step, rank: int) -> Any:
        """``step`` as part of the product before it, or ``None``."""
        biased, bias = self._biased(step.data)
        product = self.product(self.made_by(biased))
        if product is None or (step.scale is None and bias is None):
            return None
        size = product.channels(product.outputs)
        parts = [part for part in (step.scale, step.shift) if part is not None]
        if any(per_channel(part, size, rank, product.channel) is None for part in parts):
            return None
        reason = self._obstacle(step, biased, bias)
        shift = reason or self._shift(step, bias, str(product.weight.dtype))
        if isinstance(shift, str):
            return self.refuse(step.data, shift)
        if step.scale is None:
            assert shift is not None  # a shift without a scale has at least itself
            gain = Gain(flops=elements(step.data), dtype=str(product.weight.dtype))
            self.settle(step.data, gain, "shift merged into the bias", "")
            return relax.op.add(biased, make_constant(shift))
        conv = self._scaled(step, product, rank)
        if conv is None or shift is None:
            return conv
        return relax.op.add(self.emit(conv), make_constant(shift))

    def _biased(self, data: Any) -> tuple[Any, Array | None]:
        """What a bias is added to, and the bias; ``data`` itself where there is none."""
        made = self.made_by(data)
        inner = self.step(made) if made is not None else None
        return (data, None) if inner is None or inner.shift is None else (inner.data, inner.shift)

    def _obstacle(self, step: Step, biased: Any, bias: Array | None) -> str | None:
        if not self.private(step.data) or not self.private(biased):
            return "the result before it is read elsewhere too: the product would be needed twice"
        if static_shape(biased) != static_shape(step.data):
            return f"the bias makes {static_shape(biased)} {static_shape(step.data)}"
        return not_finite(step.scale, step.shift, bias)

    def _shift(self, step: Step, bias: Array | None, dtype: str) -> Array | str | None:
        """The bias afterwards in its type, ``None`` for none, or why it cannot be had."""
        parts = [] if step.shift is None else [step.shift]
        if bias is not None:
            parts.insert(0, bias if step.scale is None else bias * step.scale)
        if not parts:
            return None
        total = parts[0] if len(parts) == 1 else parts[0] + parts[1]
        largest = max(float(np.abs(part).max()) for part in parts)
        # Adding a large value and taking it away again is how some models round.
        if step.scale is None and np.abs(total).max() * 16 < largest:
            return f"shifts of {largest:.3g} cancel out: they may be there to round"
        with np.errstate(over="ignore"):
            made: Array = np.asarray(total).astype(numpy_dtype(dtype))
        if not np.isfinite(made.astype(np.float64)).all():
            return f"the bias {np.abs(total).max():.3g} overflows {dtype}"
        return made

    def _scaled(self, step: Step, product: Product, rank: int) -> Any:
        """The product with its weight scaled, or ``None`` where that loses something."""
        assert step.scale is not None
        size = product.channels(product.outputs)
        scale = per_channel(step.scale, size, rank, product.channel)
        assert scale is not None
        weight = scaled_weight(product.weight, product.factor(product.outputs, scale))
        if isinstance(weight, str):
            return self.refuse(step.data, weight)
        copied = self.copied(product)
        gain = Gain(
            bytes=-copied, flops=elements(step.data) * step.flops, dtype=str(weight.dtype)
        )  # fmt: skip
        shared = f"the weight has other readers, a copy takes {copied} bytes"
        if not self.settle(step.data, gain, "scale folded into weights", shared):
            return None
        return self.reweighted(product, product.call.args[0], weight)


class FoldAffine(GraphPass):
    """Fold batch norms and channel scales into weights."""

    name = "fold-affine"

    def apply(self, mod: tvm.IRModule, ctx: CompileContext) -> tvm.IRModule:
        """See the module text."""
        return _FoldAffine(mod, ctx, self.name).run()


PASS = FoldAffine()
