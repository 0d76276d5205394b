"""Softmax and normalisations over rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uif_tvm.kernels import norm
from uif_tvm.kernels.legalize.rules import (
    FLOATS,
    OUT_FUSABLE,
    Legalizer,
    default,
    dtype_of,
    shape_of,
)

if TYPE_CHECKING:
    from tvm.ir import Call
    from tvm.relax import BlockBuilder, Expr


def _softmax(log: bool) -> Legalizer:
    def legalize(bb: BlockBuilder, call: Call) -> Expr:
        shape = shape_of(call.args[0])
        if not shape or dtype_of(call.args[0]) not in FLOATS:
            return default(bb, call)
        axis = int(call.attrs.axis) % len(shape)
        return bb.call_te(
            lambda x: norm.softmax(x, axis, log),
            call.args[0],
            primfunc_name_hint="log_softmax" if log else "softmax",
            primfunc_attrs={"op_pattern": OUT_FUSABLE},
        )

    return legalize


def _last_axis_only(call: Call) -> bool:
    """Whether a normalisation runs over the last axis alone, of a floating-point tensor."""
    shape = shape_of(call.args[0])
    if not shape or dtype_of(call.args[0]) not in FLOATS:
        return False
    axes = [int(axis) % len(shape) for axis in call.attrs.axes]
    return axes == [len(shape) - 1] and len(shape) > 1


def _layer_norm(bb: BlockBuilder, call: Call) -> Expr:
    if not _last_axis_only(call):
        return default(bb, call)
    epsilon = float(call.attrs.epsilon)
    scale, centre = bool(call.attrs.scale), bool(call.attrs.center)
    return bb.call_te(
        lambda x, g, b: norm.layer_norm(x, g if scale else None, b if centre else None, epsilon),
        *call.args,
        primfunc_name_hint="layer_norm",
        primfunc_attrs={"op_pattern": OUT_FUSABLE},
    )


def _rms_norm(bb: BlockBuilder, call: Call) -> Expr:
    if not _last_axis_only(call):
        return default(bb, call)
    epsilon = float(call.attrs.epsilon)
    return bb.call_te(
        lambda x, w: norm.rms_norm(x, w, epsilon),
        *call.args,
        primfunc_name_hint="rms_norm",
        primfunc_attrs={"op_pattern": OUT_FUSABLE},
    )


#: Operator name -> legalisation.
LEGALIZE: dict[str, Legalizer] = {
    "relax.nn.softmax": _softmax(log=False),
    "relax.nn.log_softmax": _softmax(log=True),
    "relax.nn.layer_norm": _layer_norm,
    "relax.nn.rms_norm": _rms_norm,
}
