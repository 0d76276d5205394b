"""Padding folded into what reads it, and padding that is none.

    conv(pad(x, p, 0), q)                ->  conv(x, p + q)
    max_pool(pad(x, p, least), q)        ->  max_pool(x, p + q)
    max_pool(pad(x, p, 0), q), x >= 0    ->  max_pool(x, p + q)
    avg_pool(pad(x, p, 0), q) counting pads           ->  the same over x, p + q
    avg_pool(pad(x, p, 0), 0) counting no pads        ->  avg_pool(x, p) counting pads
    pad(pad(x, a, v), b, v)              ->  pad(x, a + b, v)
    pad(x, 0)                            ->  x
    pad(x, -a)                           ->  strided_slice(x)

``p`` pads the plane only, by 0 or more. ``least`` is the identity of a maximum (-inf, or the
smallest integer). Pools are only folded when every window still reads data, so that no result
depends on what a pool makes of nothing. All of this is exact: the elements read as padding are
those that were stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import mutator
from uif_tvm.relay_passes.local_rewrite import LocalRewrite, operator

from uif_tvm.compiler.gain import Gain
from uif_tvm.compiler.graph_pass import GraphPass
from uif_tvm.ops.build import numpy_dtype
from uif_tvm.relax_util import calls, op_name, static_shape
from uif_tvm.standard_ops import call as standard_call
from uif_tvm.standard_ops import read

if TYPE_CHECKING:
    from uif_tvm.compiler.context import CompileContext

_PADS = frozenset(("relax.nn.pad", "uif.pad"))
_CONVS = frozenset(("conv1d", "conv2d", "conv3d"))
_MAX_POOLS = frozenset(("max_pool1d", "max_pool2d", "max_pool3d"))
_AVERAGES = frozenset(("avg_pool", "avg_pool1d", "avg_pool2d", "avg_pool3d"))
#: Operators whose results are never below 0.
_NOT_NEGATIVE = frozenset(
    f"relax.{name}" for name in ("nn.relu", "nn.relu6", "abs", "exp", "sigmoid", "square", "sqrt")
)


@dataclass(frozen=True)
class Padding:
    """One padding of ``data`` with a constant; widths per axis."""

    data: Any
    before: tuple[int, ...]
    after: tuple[int, ...]
    value: float

    @property
    def plane_only(self) -> bool:
        """Whether batch and channels are left as they are."""
        return not any((*self.before[:2], *self.after[:2]))

    @property
    def least(self) -> int:
        """The smallest width; negative ones cut."""
        return min((*self.before, *self.after), default=0)


@mutator
class _Fold(LocalRewrite):
    def visit_call_(self, call: Call) -> Any:
        call = self.visit_expr_post_order(call)
        if op_name(call) in _PADS:
            return self._padding(call)
        found = read(call) if call.args else None
        if found is None or found[0].name not in _CONVS | _MAX_POOLS | _AVERAGES:
            return call
        spec, operands, attrs = found
        inner = self._padded(operands[0])
        if inner is None:
            return call
        answer = self._folded(spec.name, inner, dict(attrs), static_shape(operands[0]))
        if isinstance(answer, str):
            self.declined(answer)
            return call
        made = self.builder_.normalize(
            standard_call(spec.name, inner.data, *operands[1:], **answer)
        )
        if not tvm_ffi.structural_equal(made.ty, call.ty):
            reason = f"the result would be {made.ty} instead of {call.ty}"
            self.declined(reason)
            return call
        self._copy_saved(
            f"padding {answer['padding']} instead of a padded copy", operands[0], inner.data
        )
        return made

    def _folded(
        self, name: str, inner: Padding, attrs: dict[str, Any], shape: tuple[int, ...] | None
    ) -> dict[str, Any] | str:
        """The attributes of the operator over unpadded data, or why there are none."""
        if not inner.plane_only or inner.least < 0:
            return f"pads {inner.before} and {inner.after} go beyond padding of the plane"
        rank = len(inner.before) - 2
        own = _both_ends(attrs["padding"], rank)
        added = (*inner.before[2:], *inner.after[2:])
        attrs["padding"] = tuple(a + b for a, b in zip(own, added, strict=True))
        if name in _CONVS:
            return attrs if inner.value == 0 else f"padded with {inner.value}, not with zeros"
        reach = _reach(attrs, rank)
        for pad, size in zip(attrs["padding"], (*reach, *reach), strict=True):
            if pad >= size:
                return f"windows of {reach} could lie in padding of {attrs['padding']} alone"
        if name in _MAX_POOLS:
            return attrs if self._never_wins(inner) else f"padding with {inner.value} may win"
        return self._average(inner, attrs, own, shape)

    def _average(
        self, inner: Padding, attrs: dict[str, Any], own: tuple[int, ...], shape: Any
    ) -> dict[str, Any] | str:
        if inner.value != 0:
            return f"padded with {inner.value}, not with zeros"
        if attrs.get("ceil_mode"):
            rank = len(own) // 2
            size, stride = _listed(attrs["pool_size"], rank), _listed(attrs["strides"], rank)
            for axis in range(rank):
                span = None if shape is None else shape[2 + axis] + own[axis] + own[rank + axis]
                if span is None or (span - size[axis]) % stride[axis]:
                    return "windows of ceil mode end past the padding, which counts otherwise"
        if attrs.get("divisor") or attrs["count_include_pad"]:
            return attrs
        if any(own):
            return f"the stored padding counts in the mean, that of the pool, {own}, does not"
        return attrs | {"count_include_pad": True}

    def _never_wins(self, inner: Padding) -> bool:
        dtype = numpy_dtype(str(inner.data.ty.dtype.dtype))
        if inner.value == (np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf):
            return True
        return inner.value == 0 and operator(self.bound(inner.data)) in _NOT_NEGATIVE

    def _padding(self, call: Call) -> Any:
        """Padding of padding, by nothing, or by negative widths."""
        outer = self._read(call)
        if outer is None:
            return call
        if not any((*outer.before, *outer.after)):
            self._copy_saved("pads by nothing", outer.data, outer.data)
            return outer.data
        if max((*outer.before, *outer.after)) <= 0 and static_shape(outer.data) is not None:
            self.fired("only cuts: a slice", Gain())
            return _cut(outer)
        inner = self._padded(outer.data)
        if inner is None or min(inner.least, outer.least) < 0 or inner.value != outer.value:
            return call
        before = tuple(a + b for a, b in zip(inner.before, outer.before, strict=True))
        after = tuple(a + b for a, b in zip(inner.after, outer.after, strict=True))
        self._copy_saved("two paddings became one", outer.data, inner.data)
        widths = [width for pair in zip(before, after, strict=True) for width in pair]
        if op_name(call) == "relax.nn.pad":
            return relax.op.nn.pad(inner.data, widths, "constant", outer.value)
        return Call(
            call.op,
            [inner.data, *call.args[1:]],
            standard_call("pad", *call.args, before=before, after=after, mode="constant").attrs,
            call.ty_args,
        )

    def _padded(self, expr: Any) -> Padding | None:
        """What ``expr`` is padding of, when it is padding with a known constant."""
        made = self.made_by(expr)
        return self._read(made) if made is not None and op_name(made) in _PADS else None

    def _read(self, call: Call) -> Padding | None:
        rank = call.args[0].ty.ndim
        if op_name(call) == "relax.nn.pad":
            widths = [int(width) for width in call.attrs.pad_width]
            if str(call.attrs.pad_mode) != "constant" or len(widths) != 2 * rank:
                return None
            value = float(call.attrs.pad_value)
            return Padding(call.args[0], tuple(widths[::2]), tuple(widths[1::2]), value)
        found = read(call)
        if found is None or found[2]["mode"] != "constant":
            return None
        _, (data, *fill), attrs = found
        constant = self.constant(fill[0]) if fill and fill[0] is not None else None
        if fill and fill[0] is not None and (constant is None or constant.size != 1):
            return None
        value = 0.0 if constant is None else float(constant.reshape(()))
        before, after = (tuple(attrs[name]) for name in ("before", "after"))
        if not all(isinstance(width, int) for width in (*before, *after)):
            return None
        return Padding(data, before, after, value)

    def _copy_saved(self, what: str, padded: Any, data: Any) -> None:
        """Record a rewrite; the copy is saved when nobody else reads it."""
        alone = self.alone(padded)
        copied = sum(prod(static_shape(e) or (0,)) for e in (padded, data))
        bits = int(data.ty.dtype.dtype.bits)
        gain = Gain(bytes=copied * max(1, bits // 8), launches=1) if alone else Gain()
        self.fired(what if alone else f"{what}; the copy stays for other readers", gain)


def _listed(values: Any, rank: int) -> list[int]:
    found = [values] if isinstance(values, int) else [int(value) for value in values]
    return found * rank if len(found) == 1 else found


def _both_ends(padding: Any, rank: int) -> tuple[int, ...]:
    """Padding as widths before, then after, each axis of the plane."""
    found = _listed(padding, rank)
    return tuple(found if len(found) == 2 * rank else found * 2)


def _reach(attrs: dict[str, Any], rank: int) -> tuple[int, ...]:
    """Elements that one window of a pool spans."""
    sizes, dilation = _listed(attrs["pool_size"], rank), _listed(attrs.get("dilation", 1), rank)
    return tuple(d * (size - 1) + 1 for size, d in zip(sizes, dilation, strict=True))


def _cut(padding: Padding) -> Any:
    """The slice that padding by negative widths is."""
    shape = static_shape(padding.data) or ()
    axes = [at for at, widths in enumerate(zip(padding.before, padding.after, strict=True))
            if any(widths)]  # fmt: skip
    begin = [min(-padding.before[axis], shape[axis]) for axis in axes]
    end = [max(shape[axis] + padding.after[axis], 0) for axis in axes]
    return relax.op.strided_slice(padding.data, axes, begin, end)


class FoldPad(GraphPass):
    """Fold padding into convolutions and pools."""

    name = "fold-pad"

    def apply(self, mod: tvm.IRModule, ctx: CompileContext) -> tvm.IRModule:
        """See the module text."""
        if not any(op_name(call) in _PADS for _, call in calls(mod)):
            return mod
        return _Fold(mod, ctx, self.name).run()


PASS = FoldPad()
