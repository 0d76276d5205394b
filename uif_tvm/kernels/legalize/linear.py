"""Matrix products."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uif_tvm.kernels import linear
from uif_tvm.kernels.legalize.rules import Legalizer, default, dtype_of, shape_of
from uif_tvm.kernels.legalize.whole import whole
from uif_tvm.kernels.norm import accumulator

if TYPE_CHECKING:
    from tvm.ir import Call
    from tvm.relax import BlockBuilder, Expr


def _matmul(bb: BlockBuilder, call: Call) -> Expr:
    """Sums of 16-bit floats in float32, rounded once; an empty sum is zero."""
    from tvm import relax, tirx

    dtype, result = dtype_of(call.args[0]), dtype_of(call)
    shape, depth = shape_of(call), shape_of(call.args[0])
    if shape is not None and depth and isinstance(depth[-1], tirx.IntImm) and not int(depth[-1]):
        return bb.normalize(relax.op.zeros(relax.ShapeExpr(shape), result))
    wide = accumulator(dtype)
    if wide == dtype or dtype_of(call.args[1]) != dtype or result != dtype:
        return default(bb, call)
    operands = [bb.emit(relax.op.astype(operand, wide)) for operand in call.args]
    return bb.normalize(relax.op.astype(bb.emit(relax.op.matmul(*operands)), dtype))


#: Operator name -> legalisation.
LEGALIZE: dict[str, Legalizer] = {
    "relax.matmul": _matmul,
    "uif.det": whole(linear.det),
}
