"""Quantised operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uif_tvm.kernels import quantization
from uif_tvm.kernels.legalize.rules import Legalizer, standard

if TYPE_CHECKING:
    from tvm.ir import Call
    from tvm.relax import BlockBuilder, Expr


def _dynamic_quantize(bb: BlockBuilder, call: Call) -> Expr:
    """The range by reductions, then scale, zero point and the numbers."""
    import numpy as np
    from tvm import relax

    from uif_tvm.ops.build import numpy_dtype
    from uif_tvm.relax_util import make_constant

    (x,) = call.args
    zero = make_constant(np.zeros((), numpy_dtype("float32")))
    high = bb.emit(relax.op.maximum(bb.emit(relax.op.max(x)), zero))
    low = bb.emit(relax.op.minimum(bb.emit(relax.op.min(x)), zero))

    def made(function: object, *args: object, name: str) -> Expr:
        return bb.emit(bb.call_te(function, *args, primfunc_name_hint=name))

    scale = made(quantization.quantize_scale, high, low, name="quantize_scale")
    point = made(quantization.quantize_zero_point, low, scale, name="quantize_zero_point")
    numbers = made(quantization.quantize_by_range, x, scale, point, name="dynamic_quantize")
    return relax.Tuple([numbers, scale, point])


#: Operator name -> legalisation.
LEGALIZE: dict[str, Legalizer] = {
    "uif.quantize": standard(quantization.quantize),
    "uif.dequantize": standard(quantization.dequantize),
    "uif.dynamic_quantize": _dynamic_quantize,
}
