"""Activation functions."""

from __future__ import annotations

from typing import Any

from tvm import relax

from uif_tvm.frontends.torch.dtypes import compute_dtype, is_float
from uif_tvm.frontends.torch.emitter import Emitter
from uif_tvm.frontends.torch.registry import RefusedError, converts


def _standard(cx: Emitter, name: str, *args: Any, **attrs: Any) -> Any:
    """A standard operator in the dtype PyTorch computes in, rounded once."""
    work = compute_dtype(cx.out_dtype)
    return cx.cast(cx.op(name, *(cx.tensor(arg, work) for arg in args), **attrs), cx.out_dtype)


@converts("aten.relu.default")
def relu(cx: Emitter, x: Any) -> Any:
    """``max(x, 0)``; NaN goes through."""
    if is_float(cx.out_dtype):
        return cx.emit(relax.op.nn.relu(x))
    return cx.emit(relax.op.maximum(x, cx.const(0, cx.out_dtype)))


@converts("aten.relu6.default")
def relu6(cx: Emitter, x: Any) -> Any:
    """``min(max(x, 0), 6)``."""
    return cx.op("clip", x, min=0, max=6)


@converts("aten.hardtanh.default")
def hardtanh(cx: Emitter, x: Any, low: Any = -1, high: Any = 1) -> Any:
    """Limit to a range."""
    return cx.op("clip", cx.cast(x, cx.out_dtype), min=low, max=high)


@converts("aten.gelu.default")
def gelu(cx: Emitter, x: Any, approximate: str = "none") -> Any:
    """Gaussian error unit, exact or with tanh."""
    op = relax.op.nn.gelu_tanh if approximate == "tanh" else relax.op.nn.gelu
    return cx.half_safe(op, x)


@converts("aten.silu.default")
def silu(cx: Emitter, x: Any) -> Any:
    """``x * sigmoid(x)``."""
    return cx.half_safe(relax.op.nn.silu, x)


@converts("aten.leaky_relu.default")
def leaky_relu(cx: Emitter, x: Any, slope: Any = 0.01) -> Any:
    """``x`` where positive, ``slope * x`` elsewhere."""
    if not is_float(cx.out_dtype):
        raise RefusedError("leaky_relu of integers is not supported")
    return cx.half_safe(lambda v: relax.op.nn.leakyrelu(v, float(slope)), x)


@converts("aten.rrelu_with_noise_functional.default")
def rrelu(
    cx: Emitter, x: Any, noise: Any, lower: Any, upper: Any, training: bool = False, *_: Any
) -> Any:
    """Leaky ReLU with a random slope in training, the mean slope at inference."""
    if training:
        raise RefusedError("rrelu in training mode is random", "call model.eval() before exporting")
    return [leaky_relu(cx, x, (lower + upper) / 2), noise]


@converts("aten.hardsigmoid.default")
def hardsigmoid(cx: Emitter, x: Any) -> Any:
    """``min(6, max(0, x + 3)) / 6``."""
    return _standard(cx, "hard_sigmoid", x, alpha=1 / 6, beta=0.5)


@converts("aten.hardswish.default")
def hardswish(cx: Emitter, x: Any) -> Any:
    """``x * hardsigmoid(x)``."""
    return _standard(cx, "hard_swish", x)


@converts("aten.elu.default")
def elu(cx: Emitter, x: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Any:
    """``scale * x`` above zero, ``scale * alpha * (exp(input_scale * x) - 1)`` below."""
    numbers = {"alpha": alpha, "scale": scale, "input_scale": input_scale}
    return _standard(cx, "elu", x, **{name: float(value) for name, value in numbers.items()})


@converts("aten.softplus.default")
def softplus(cx: Emitter, x: Any, beta: Any = 1, threshold: Any = 20) -> Any:
    """``log(1 + exp(beta * x)) / beta``, linear above the threshold."""
    return _standard(cx, "softplus", x, beta=float(beta), threshold=float(threshold))


@converts("aten.threshold.default")
def threshold(cx: Emitter, x: Any, limit: Any, value: Any) -> Any:
    """``value`` where ``x <= limit``."""
    dtype = cx.out_dtype
    if is_float(dtype):
        return cx.op("thresholded_relu", x, alpha=float(limit), value=float(value))
    below = cx.emit(relax.op.less_equal(x, cx.const(limit, dtype)))
    return cx.emit(relax.op.where(below, cx.const(value, dtype), x))


@converts("aten.prelu.default", "aten._prelu_kernel.default")
def prelu(cx: Emitter, x: Any, weight: Any) -> Any:
    """``weight * x`` below zero, one weight for all or one per channel."""
    rank = len(cx.shape(x))
    if cx.shape(weight) != [1] and len(cx.shape(weight)) == 1 and rank > 1:
        weight = cx.reshape(weight, [*cx.shape(weight), *([1] * (rank - 2))])
    elif cx.shape(weight) == [1]:
        weight = cx.reshape(weight, [])
    return _standard(cx, "prelu", x, weight)


@converts("aten.softmax.int", "aten._softmax.default", "aten._safe_softmax.default")
def softmax(cx: Emitter, x: Any, dim: int, *_: Any) -> Any:
    """Softmax over one axis; the safe one gives zeros where everything is ``-inf``."""
    work = compute_dtype(cx.out_dtype)
    x = cx.tensor(x, work)
    if not cx.shape(x):
        return cx.full([], 1, cx.out_dtype)
    result = cx.emit(relax.op.nn.softmax(x, dim))
    if "_safe_softmax" in str(cx.node.target):
        # exp(-inf - -inf) is NaN; data with NaN of its own keeps it.
        lowest = cx.emit(relax.op.equal(x, cx.const(float("-inf"), work)))
        hidden = cx.emit(relax.op.min(cx.cast(lowest, "int8"), [dim], keepdims=True))
        result = cx.emit(relax.op.where(cx.cast(hidden, "bool"), cx.const(0, work), result))
    return cx.cast(result, cx.out_dtype)


@converts("aten.log_softmax.int", "aten._log_softmax.default")
def log_softmax(cx: Emitter, x: Any, dim: int, *_: Any) -> Any:
    """Logarithm of softmax over one axis."""
    work = compute_dtype(cx.out_dtype)
    if not cx.shape(x):
        return cx.full([], 0, cx.out_dtype)
    return cx.cast(cx.emit(relax.op.nn.log_softmax(cx.tensor(x, work), dim)), cx.out_dtype)
