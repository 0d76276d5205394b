"""Resampling, sampling and regions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uif_tvm.kernels import sampling
from uif_tvm.kernels.legalize.rules import Legalizer, standard
from uif_tvm.kernels.legalize.whole import call_function
from uif_tvm.kernels.nms import nms_kernel
from uif_tvm.kernels.roi import roi_align_kernel

if TYPE_CHECKING:
    from tvm.ir import Call
    from tvm.relax import BlockBuilder, Expr


def _in(bb: BlockBuilder, value: Any, dtype: str) -> Any:
    from tvm import relax

    return value if str(value.ty.dtype) == dtype else bb.emit(relax.op.astype(value, dtype))


def _roi_align(bb: BlockBuilder, call: Call) -> Expr:
    """In float32; the number of regions may be settled at run time."""
    from tvm import relax, tirx

    from uif_tvm.standard_ops import read, type_of

    found = read(call)
    if found is None:
        return call
    _, (x, rois, index), attrs = found
    regions = type_of(rois).shape[0]
    function = roi_align_kernel(
        type_of(x).shape,
        regions if isinstance(regions, int) else tirx.Var("regions", "int64"),
        tuple(attrs["output_size"]),
        attrs["spatial_scale"],
        attrs["sampling_ratio"],
        attrs["half_pixel"],
        attrs["average"],
    )
    args = [_in(bb, x, "float32"), _in(bb, rois, "float32"), _in(bb, index, "int64")]
    wide = relax.TensorType(call.ty.shape, "float32")
    return _in(bb, bb.emit(call_function(bb, function, args, wide, "roi_align")), type_of(x).dtype)


def _non_max_suppression(bb: BlockBuilder, call: Call) -> Expr:
    import numpy as np
    from tvm import relax

    from uif_tvm.relax_util import make_constant
    from uif_tvm.standard_ops import read, type_of

    found = read(call)
    if found is None:
        return call
    _, operands, attrs = found
    defaults = (0, "int64"), (0.0, "float32"), (float(np.finfo(np.float32).min), "float32")

    def one(value: Any, default: float, dtype: str) -> Any:
        if value is None:
            return make_constant(np.full(1, default, dtype))
        return bb.emit(relax.op.reshape(_in(bb, value, dtype), relax.ShapeExpr([1])))

    boxes, scores = (_in(bb, item, "float32") for item in operands[:2])
    limits = [*operands[2:], None, None, None][:3]
    args = [boxes, scores, *[one(v, *d) for v, d in zip(limits, defaults, strict=True)]]
    batch, classes, count = type_of(scores).shape
    function = nms_kernel(batch, classes, count, attrs["centred"])
    return call_function(bb, function, args, call.ty, "non_max_suppression")


#: Operator name -> legalisation.
LEGALIZE: dict[str, Legalizer] = {
    "uif.resample": standard(sampling.resample, "resize_axis"),
    "uif.grid_sample": standard(sampling.grid_sample),
    "uif.roi_align": _roi_align,
    "uif.non_max_suppression_padded": _non_max_suppression,
}
