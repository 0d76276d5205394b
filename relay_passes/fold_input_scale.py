"""Constant scales and shifts moved into the product that reads them, or into one another.

    product(x * s, W)   ->  product(x, s * W)            s broadcast over input channels
    product(x + t, W)   ->  product(x, W) + sum(t * W)   where no padding stands among the data
    (x * a) * b         ->  x * (a * b)
    (x + a) + b         ->  x + (a + b)

``product`` is a matmul or convolution with a constant weight ``W``; the other values are constants
too. Divisions are scales, subtractions shifts. Values are combined in float64 and rounded once.
Constants are left apart where their combination could overflow, vanish or cancel out: the results
in between are then part of what the model computes. This runs after norms and activations were
recovered, whose own constants look the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
import tvm_ffi
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
from uif_tvm.relax_util import attributes, make_constant, op_name
from uif_tvm.target.spec import dtype_bytes

if TYPE_CHECKING:
    from uif_tvm.compiler.context import CompileContext

#: Shifts up to here are small against what float32 resolves in a sum over channels.
_LARGEST_SHIFT = 1024.0
#: Factor up to which two shifts of one sign are of one size: neither is lost in their sum.
_ALIKE = 16.0


@mutator
class _Fold(AffineRewrite):
    def visit_call_(self, call: Call) -> Any:
        made = self.visit_expr_post_order(call)
        product = self.product(made)
        biases: list[Array] = []
        #: Whether no step before the current product has moved yet.
        self._last = True
        while product is not None:
            moved = self._moved(product, biases)
            if moved is None:
                break
            made, self._last = self.builder_.normalize(moved), False
            product = self.product(made)
        if biases:
            bias = np.sum(biases, axis=0).astype(numpy_dtype(str(made.ty.dtype)))
            return relax.op.add(self.emit(made), make_constant(bias))
        step = self.step(made)
        merged = None if step is None else self._merged(step)
        return made if merged is None else merged

    def _moved(self, product: Product, biases: list[Array]) -> Any:
        """``product`` over the data before the step that it reads, or ``None``.

        A bias to be added to the result instead is appended to ``biases``.
        """
        data = product.call.args[0]
        made = self.made_by(data)
        step = self.step(made) if made is not None else None
        if step is None or not tvm_ffi.structural_equal(step.data.ty, data.ty):
            return None
        value = step.scale if step.scale is not None else step.shift
        assert value is not None
        channels = product.channels(product.inputs)
        values = per_channel(value, channels, data.ty.ndim, product.channel)
        if values is None:
            return None
        reason = not_finite(value)
        if not self.private(data):
            reason = "the value is read elsewhere too: the step would stay for other readers"
        if reason is not None:
            return self.refuse(data, reason)
        if step.scale is not None:
            return self._scaled(product, step, values)
        bias = self._bias(product, step, values)
        if bias is None:
            return None
        biases.append(bias)
        call = product.call
        return Call(call.op, [step.data, *call.args[1:]], call.attrs, call.ty_args)

    def _scaled(self, product: Product, step: Step, scale: Array) -> Any:
        data = product.call.args[0]
        weight = scaled_weight(product.weight, product.factor(product.inputs, scale))
        if isinstance(weight, str):
            return self.refuse(data, weight)
        copied = self.copied(product)
        gain = self._saved(step, data) + Gain(bytes=-copied)
        lost = f"the weight has other readers, a copy takes {copied} bytes"
        if not self.settle(data, gain, "scale moved into the weights that read it", lost):
            return None
        return self.reweighted(product, step.data, weight)

    def _bias(self, product: Product, step: Step, shift: Array) -> Any:
        """The shift's contribution to the result in float64, or ``None`` where it must stay."""
        call, data = product.call, product.call.args[0]
        dtype = str(product.weight.dtype)
        reason = _unshiftable(product, shift)
        if reason is not None:
            return self.refuse(data, reason)
        wide = product.weight.astype(np.float64) * product.factor(product.inputs, shift)
        if op_name(call) == "relax.matmul":
            bias = wide.sum(axis=product.inputs, keepdims=wide.ndim > 2)
        else:
            axes = tuple(axis for axis in range(wide.ndim) if axis != product.outputs)
            shape = [1] * wide.ndim
            shape[product.channel] = -1
            bias = wide.sum(axis=axes).reshape(shape)
        with np.errstate(over="ignore"):
            finite = np.isfinite(bias.astype(product.weight.dtype)).all()
        if not finite:
            return self.refuse(data, f"the bias {np.abs(bias).max():.3g} is not finite in {dtype}")
        gain = self._saved(step, data) + Gain(flops=-elements(call))
        lost = f"{elements(call)} results to shift instead of {elements(data)} operands"
        if not self.settle(data, gain, "shift moved behind the product as a bias", lost):
            return None
        return bias

    def _saved(self, step: Step, data: Any) -> Gain:
        """Steps are part of the kernel that makes their data; over inputs they are a kernel.

        The last of several steps, the first to move, stands for that kernel.
        """
        dtype, count, start = str(data.ty.dtype), elements(data), step.data
        while (made := self.made_by(start)) is not None and (inner := self.step(made)) is not None:
            start = inner.data
        if made is not None or not self._last:
            return Gain(flops=count, dtype=dtype)
        return Gain(2 * count * dtype_bytes(dtype), 1, count, dtype)

    def _merged(self, outer: Step) -> Any:
        """Two scales or two shifts as one, or ``None``."""
        made = self.made_by(outer.data)
        inner = self.step(made) if made is not None else None
        if inner is None or (inner.scale is None) != (outer.scale is None):
            return None
        pair = [step.shift if step.scale is None else step.scale for step in (inner, outer)]
        first, second = pair
        assert first is not None
        assert second is not None
        with np.errstate(over="ignore", invalid="ignore"):
            total = first + second if inner.scale is None else first * second
        if total.size > max(first.size, second.size):
            return None
        dtype = str(outer.data.ty.dtype)
        reason = not_finite(first, second)
        if not self.private(outer.data):
            reason = "the value in between is read elsewhere too"
        if reason is None and inner.scale is not None:
            reason = _beyond(dtype, first, second, total)
        elif reason is None:
            reason = self._unalike(inner, first, second, total)
        if reason is not None:
            return self.refuse(outer.data, reason)
        what = "scales" if inner.scale is not None else "shifts"
        gain = Gain(flops=elements(outer.data), dtype=dtype)
        self.settle(outer.data, gain, f"two {what} merged into one", "")
        constant = make_constant(np.asarray(total).astype(numpy_dtype(dtype)))
        function = relax.op.add if inner.scale is None else relax.op.multiply
        return function(inner.data, constant)

    def _unalike(self, inner: Step, first: Array, second: Array, total: Array) -> str | None:
        """Why shifts stay apart: one would be lost in their sum, or rounds on purpose."""
        a, b = np.broadcast_arrays(first, second)
        if self.product(self.made_by(inner.data)) is not None:
            # A sum of products is rounded to its size anyway; only a full cancellation tells.
            largest = max(np.abs(a).max(), np.abs(b).max())
            if largest <= _LARGEST_SHIFT and np.abs(total).max() * _ALIKE >= largest:
                return None
            return f"shifts of {largest:.3g} and their sum of {np.abs(total).max():.3g}"
        small, large = np.minimum(np.abs(a), np.abs(b)), np.maximum(np.abs(a), np.abs(b))
        apart = (small > 0) & ((a * b < 0) | (large > _ALIKE * small))
        if apart.any():
            return f"the sum of shifts {a[apart][0]:.3g} and {b[apart][0]:.3g} would lose digits"
        return _beyond(str(inner.data.ty.dtype), total)


def _unshiftable(product: Product, shift: Array) -> str | None:
    """Why a shift of the data is not a shift of the result."""
    call, dtype = product.call, str(product.weight.dtype)
    if dtype not in ("float32", "float64"):
        return f"{dtype} would round the bias beyond the sum's own rounding"
    largest = np.abs(shift).max()
    if largest > _LARGEST_SHIFT:
        return f"a shift of {largest:.3g} would cancel out in the sum"
    if op_name(call) == "relax.matmul":
        return None
    if "transpose" in str(op_name(call)):
        return "the ends of a transposed convolution sum up fewer products"
    padding = [int(width) for width in attributes(call)["padding"]]
    return f"padding {padding} is not shifted" if any(padding) else None


def _beyond(dtype: str, *values: Array) -> str | None:
    """Whether scales leave no room for the values in between: neither overflow nor underflow."""
    import ml_dtypes

    info = ml_dtypes.finfo(numpy_dtype(dtype))
    least, most = float(info.smallest_normal) ** 0.5, float(info.max) ** 0.5
    for value in values:
        size = np.abs(value[value != 0])
        out = size[(size < least) | (size > most)]
        if out.size:
            return f"{out[0]:.3g} is beyond {least:.3g} to {most:.3g}, safe in {dtype}"
    zero = values[-1] == 0
    if len(values) == 3 and (zero & (values[0] != 0) & (values[1] != 0)).any():
        return "the product of the scales is 0"
    return None


class FoldInputScale(GraphPass):
    """Move constant scales and shifts into the weights that read them, and merge them."""

    name = "fold-input-scale"

    def apply(self, mod: tvm.IRModule, ctx: CompileContext) -> tvm.IRModule:
        """See the module text."""
        return _Fold(mod, ctx, self.name).run()


PASS = FoldInputScale()
