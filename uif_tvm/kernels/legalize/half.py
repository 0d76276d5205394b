"""Sums of products of 16-bit floats run in float32 and are rounded once, at the end.

    conv(x, w)  ->  cast(conv(x, w, out_dtype="float32"), dtype)

TVM's own kernels would round after every addition: 2304 taps leave about 4 significant bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uif_tvm.kernels.legalize.rules import Legalizer, default, dtype_of

if TYPE_CHECKING:
    from tvm.ir import Call
    from tvm.relax import BlockBuilder, Expr

HALVES = ("float16", "bfloat16")
WIDE = "float32"


def _cast(bb: BlockBuilder, expr: Any, dtype: str) -> Expr:
    from tvm import topi

    return bb.call_te(lambda x: topi.cast(x, dtype), expr, primfunc_name_hint="cast")


def _convolution(rank: int) -> Legalizer:
    def legalize(bb: BlockBuilder, call: Call) -> Expr:
        from tvm import relax

        dtype = dtype_of(call.args[0])
        if dtype not in HALVES or dtype_of(call) != dtype:
            return default(bb, call)
        attrs = call.attrs
        wide = getattr(relax.op.nn, f"conv{rank}d")(
            *call.args,
            strides=list(attrs.strides),
            padding=list(attrs.padding),
            dilation=list(attrs.dilation),
            groups=int(attrs.groups),
            data_layout=attrs.data_layout,
            kernel_layout=attrs.kernel_layout,
            out_layout=attrs.out_layout,
            out_dtype=WIDE,
        )
        return _cast(bb, bb.emit(default(bb, bb.normalize(wide))), dtype)

    return legalize


def _einsum(bb: BlockBuilder, call: Call) -> Expr:
    from tvm import relax, topi

    operands = call.args[0]
    if not isinstance(operands, relax.Tuple) or dtype_of(call) not in HALVES:
        return default(bb, call)
    subscripts = str(call.attrs.subscripts)

    def kernel(*tensors: Any) -> Any:
        return topi.einsum(subscripts, *[topi.cast(tensor, WIDE) for tensor in tensors])

    wide = bb.emit(bb.call_te(kernel, *operands.fields, primfunc_name_hint="einsum"))
    return _cast(bb, wide, dtype_of(call))


#: Operator name -> legalisation.
LEGALIZE: dict[str, Legalizer] = {
    **{f"relax.nn.conv{rank}d": _convolution(rank) for rank in (1, 2, 3)},
    "relax.einsum": _einsum,
}
