"""What passes over constant factors share: steps, products with constant weights, rounding.

A *step* is ``y = x * scale + shift`` with constants. A *product* is a matmul or convolution whose
weight is a constant, so that factors along its inputs or outputs can move into that weight.
Values are combined in float64 and rounded once, to the type they are stored in.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call, GenericConst
from uif_tvm.relay_passes.local_rewrite import LocalRewrite, operator

from uif_tvm.compiler.gain import Gain, consider
from uif_tvm.ops.spec import FLOATS
from uif_tvm.relax_util import attributes, calls, make_constant, op_name

if TYPE_CHECKING:
    from uif_tvm.compiler.context import CompileContext

Array = np.ndarray[Any, Any]
_RANKS = (1, 2, 3)
_CONVS = frozenset(f"relax.nn.conv{rank}d" for rank in _RANKS)
_TRANSPOSED = frozenset(
    name for rank in _RANKS for name in (f"relax.nn.conv{rank}d_transpose",
                                         f"uif.conv{rank}d_transpose")
)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """``data * scale + shift``; constants in float64, as they broadcast to the result."""

    data: Any
    scale: Array | None = None
    shift: Array | None = None

    @property
    def flops(self) -> int:
        """Operations on each element."""
        return (self.scale is not None) + (self.shift is not None)


@dataclass(frozen=True)
class Product:
    """A matmul or convolution with a constant weight.

    Args:
        weight: as the operator reads it.
        permuted: the ``permute_dims`` through which it does, if any.
        outputs: the weight's axis of output channels; ``inputs``: that of input channels.
        channel: axis of the channels in the data and in the result, counted from the front where
            it is positive.
        groups: groups of channels; the weight lists one group's channels on one of both axes.
        grouped: the other axis, on which the weight lists the channels of all groups.
    """

    call: Call
    weight: Array
    permuted: Call | None
    outputs: int
    inputs: int
    channel: int
    groups: int = 1
    grouped: int = 0

    def channels(self, axis: int) -> int:
        """Channels of all groups along the ``outputs`` or ``inputs`` axis."""
        return int(self.weight.shape[axis]) * (1 if axis == self.grouped else self.groups)

    def factor(self, axis: int, scale: Array) -> Array:
        """``scale`` ``[channels]`` in the weight's rank, to be multiplied with it."""
        shape = [1] * self.weight.ndim
        shape[axis] = self.weight.shape[axis]
        if self.groups == 1 or axis == self.grouped:
            return scale.reshape(shape)
        shape[self.grouped] = self.weight.shape[self.grouped]
        each = np.repeat(
            scale.reshape(self.groups, -1), self.weight.shape[self.grouped] // self.groups, axis=0
        )
        return (each if self.grouped < axis else each.T).reshape(shape)


class AffineRewrite(LocalRewrite):
    """Reads steps and products. Subclasses rewrite."""

    def __init__(self, mod: tvm.IRModule, ctx: CompileContext, name: str) -> None:
        super().__init__(mod, ctx, name)
        self._weight_readers = Counter(
            arg.value for _, call in calls(mod) for arg in call.args
            if isinstance(arg, GenericConst) and isinstance(arg.value, tvm.runtime.Tensor)
        )  # fmt: skip

    def step(self, call: Call) -> Step | None:
        """The step that ``call`` is, if it is one over a float tensor."""
        name, dtype = op_name(call), str(getattr(call.ty, "dtype", ""))
        if name not in _STEPS or dtype not in FLOATS:
            return None
        for data, other in ((0, 1), (1, 0)):
            value = self.constant(call.args[other])
            if value is None or value.size == 0 or str(value.dtype) != dtype:
                continue
            if other == 0 and name in ("relax.divide", "relax.subtract"):
                return None
            wide = value.astype(np.float64)
            if name == "relax.divide":
                with np.errstate(divide="ignore"):
                    wide = 1 / wide
            if name in ("relax.multiply", "relax.divide"):
                return Step(call.args[data], scale=wide)
            return Step(call.args[data], shift=-wide if name == "relax.subtract" else wide)
        return None

    def product(self, call: Any) -> Product | None:
        """``call`` as a product with a constant weight of its own element type."""
        name = operator(call)
        if name != "relax.matmul" and name not in _CONVS | _TRANSPOSED:
            return None
        permuted, weight = None, self.constant(call.args[1])
        behind = self.made_by(call.args[1])
        if weight is None and behind is not None and op_name(behind) == "relax.permute_dims":
            permuted, weight = behind, self.constant(behind.args[0])
            if weight is not None:
                weight = weight.transpose(_axes(behind, weight.ndim))
        if weight is None or weight.ndim < 2 or weight.size == 0:
            return None
        types = {str(item.ty.dtype) for item in (call, call.args[0])}
        if types != {str(weight.dtype)} or not types <= set(FLOATS):
            return None
        if name == "relax.matmul":
            return Product(call, weight, permuted, weight.ndim - 1, weight.ndim - 2, -1)
        return _convolution(call, weight, permuted)

    def reweighted(self, product: Product, data: Any, weight: Array) -> Any:
        """The operator of ``product`` over ``data`` with another weight, not yet bound."""
        made = make_constant(weight)
        if product.permuted is not None:
            back = np.argsort(_axes(product.permuted, weight.ndim))
            behind = product.permuted
            stored = make_constant(np.ascontiguousarray(weight.transpose(back)))
            made = self.emit(Call(behind.op, [stored], behind.attrs, behind.ty_args))
        call = product.call
        return Call(call.op, [data, made], call.attrs, call.ty_args)

    def copied(self, product: Product) -> int:
        """Bytes that a weight of its own costs, as others read the present one: else 0."""
        permuted = product.permuted
        behind = product.call.args[1] if permuted is None else permuted.args[0]
        constant = self.bound(behind)
        shared = self._weight_readers.get(constant.value, 1) > 1
        if permuted is not None:
            shared |= not self.alone(product.call.args[1])
        return int(product.weight.nbytes) if shared else 0

    def private(self, expr: Any) -> bool:
        """Whether nobody else reads ``expr``, aliases of it included."""
        while isinstance(expr, relax.Var):
            if not self.alone(expr):
                return False
            expr = self.lookup_binding(expr)
        return True

    def settle(self, subject: Any, gain: Gain, done: str, lost: str) -> bool:
        """Price and record a rewrite; whether it pays."""
        return consider(self.ctx, self.name, named(subject), gain, done, lost)

    def refuse(self, subject: Any, reason: str) -> Any:
        """Record why what reads ``subject`` stays as it is; ``None``, for no replacement."""
        self.ctx.report.decide(self.name, named(subject), False, reason)
        return None


_STEPS = frozenset(f"relax.{name}" for name in ("multiply", "divide", "add", "subtract"))


def named(expr: Any) -> str:
    """Source name of a value."""
    return str(getattr(expr, "name", "conv"))


def elements(expr: Any) -> int:
    """Elements of a tensor; an extent known at run time only counts as one."""
    values = getattr(getattr(expr.ty, "shape", None), "values", None) or ()
    return prod(int(n) for n in values if isinstance(n, (int, tvm.tirx.IntImm)))


def per_channel(value: Array, channels: int, ndim: int, axis: int = 1) -> Array | None:
    """``value`` as float64[channels] when it only varies along one axis of an ``ndim`` tensor."""
    axis %= ndim
    shape = (1,) * (ndim - value.ndim) + value.shape
    if len(shape) != ndim or any(n != 1 for i, n in enumerate(shape) if i != axis):
        return None
    if shape[axis] not in (1, channels):
        return None
    return np.broadcast_to(value.reshape(-1).astype(np.float64), (channels,)).copy()


def not_finite(*values: Array | None) -> str | None:
    """Why constants cannot be combined: what is not finite in them."""
    for value in values:
        if value is not None and not np.isfinite(value).all():
            return f"the constant holds {value[~np.isfinite(value)].reshape(-1)[0]}"
    return None


def scaled_weight(weight: Array, factor: Array) -> Array | str:
    """``weight * factor`` rounded to the weight's type, or why that would lose values.

    Small elements may be lost beside large ones, by less than the rounding of the largest. A
    weight whose elements are subnormal already loses nothing that kernels would keep.
    """
    import ml_dtypes

    info = ml_dtypes.finfo(weight.dtype)
    wide = weight.astype(np.float64)
    if not np.isfinite(wide).all():
        return "the weight holds values that are not finite"
    product = wide * factor
    with np.errstate(over="ignore", under="ignore"):
        made: Array = product.astype(weight.dtype)
    kept = made.astype(np.float64)
    if not np.isfinite(kept).all():
        return f"the product {np.abs(product).max():.3g} overflows {weight.dtype}"
    tiny = float(info.smallest_normal)
    if weight.dtype != np.float16:  # its subnormals are computed in float32, others' flush to 0
        kept[np.abs(kept) < tiny] = 0
    # Elements that share a factor are one channel, whose largest element's rounding counts.
    others = tuple(axis for axis, size in enumerate(factor.shape) if size == 1)
    lost, floor, held = (
        np.abs(value).max(axis=others, keepdims=True) for value in (kept - product, product, wide)
    )
    bad = (lost > float(info.eps) * floor) & (held >= tiny)
    if bad.any():
        return f"scaled by {factor[bad][0]:.3g}, the weight underflows {weight.dtype}"
    return made


def _axes(permute: Call, rank: int) -> list[int]:
    axes = permute.attrs.axes
    return [int(a) % rank for a in axes] if axes is not None else list(range(rank))[::-1]


def _convolution(call: Call, weight: Array, permuted: Call | None) -> Product | None:
    attrs, rank = attributes(call), weight.ndim
    transposed = op_name(call) in _TRANSPOSED
    plain = "NCDHW"[:2] + "DHW"[5 - rank :]
    data = str(attrs.get("data_layout", plain))
    result = str(attrs.get("out_layout", data)) or data
    kernel = str(attrs.get("kernel_layout", ("IO" if transposed else "OI") + plain[2:]))
    if result != data or any(len(text) != rank or not text.isupper() for text in (data, kernel)):
        return None
    outputs, inputs = kernel.index("O"), kernel.index("I")
    return Product(
        call,
        weight,
        permuted,
        outputs,
        inputs,
        data.index("C"),
        int(attrs["groups"]),
        inputs if transposed else outputs,
    )
