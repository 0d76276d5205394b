"""Sliding windows in plain layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uif_tvm.kernels import window
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


def _max_pool(bb: BlockBuilder, call: Call) -> Expr:
    data, attrs = call.args[0], call.attrs
    plain = str(attrs.layout)[:2] == "NC" and attrs.layout == attrs.out_layout
    shape = shape_of(call)
    if not plain or not shape or dtype_of(data) not in FLOATS:
        return default(bb, call)
    spatial = len(shape) - 2
    lists = [
        [int(v) for v in values]
        for values in (attrs.pool_size, attrs.strides, attrs.padding[:spatial], attrs.dilation)
    ]
    return bb.call_te(
        lambda x: window.max_pool(x, shape[2:], *lists),
        data,
        primfunc_name_hint=f"max_pool{spatial}d",
        primfunc_attrs={"op_pattern": OUT_FUSABLE},
    )


#: Operator name -> legalisation.
LEGALIZE: dict[str, Legalizer] = {
    "relax.nn.max_pool1d": _max_pool,
    "relax.nn.max_pool2d": _max_pool,
    "relax.nn.max_pool3d": _max_pool,
}
