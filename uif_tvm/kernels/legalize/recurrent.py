"""The inner loops of recurrent layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from uif_tvm.kernels import recurrent
from uif_tvm.kernels.gates import activation, clipping
from uif_tvm.kernels.legalize.rules import Legalizer
from uif_tvm.kernels.legalize.whole import call_function
from uif_tvm.kernels.norm import accumulator

if TYPE_CHECKING:
    from tvm.ir import Call
    from tvm.relax import BlockBuilder, Expr

#: (steps, batch, hidden, dtype, reverse, activations, clip, the kind's flag) -> function.
Kernel = Callable[..., Any]


def _zeros(bb: BlockBuilder, shape: Sequence[Any], dtype: str) -> Expr:
    from tvm import relax

    from uif_tvm.relax_util import make_constant

    if all(isinstance(extent, int) for extent in shape):
        return make_constant(np.zeros(shape, dtype))
    return bb.emit(relax.op.zeros(relax.ShapeExpr(list(shape)), dtype))


def _lengths(bb: BlockBuilder, given: Any, projected: Any) -> Expr:
    """Steps of each sequence, within 0 .. steps; all of them where none are given."""
    from tvm import te, tirx

    from uif_tvm.relax_util import make_constant, static_shape

    shape = static_shape(projected)
    if given is None and shape is not None:
        return make_constant(np.full(shape[1], shape[0], np.int64))

    def full(x: te.Tensor) -> te.Tensor:
        return te.compute((x.shape[1],), lambda b: x.shape[0].astype("int64"), name="lengths")

    def bounded(x: te.Tensor, lengths: te.Tensor) -> te.Tensor:
        def at(b: Any) -> Any:
            least = tirx.max(lengths(b).astype("int64"), tirx.const(0, "int64"))
            return tirx.min(least, x.shape[0].astype("int64"))

        return te.compute(lengths.shape, at, name="lengths")

    if given is None:
        return bb.emit(bb.call_te(full, projected, primfunc_name_hint="lengths"))
    return bb.emit(bb.call_te(bounded, projected, given, primfunc_name_hint="lengths"))


def _dim(extent: Any, name: str) -> Any:
    """An extent for a kernel: the integer, or a variable that the buffer's shape binds."""
    from tvm import tirx

    return tirx.IntImm("int64", extent) if isinstance(extent, int) else tirx.Var(name, "int64")


def _scan(kernel: Kernel, states: int, extra: Sequence[int], flag: str | None) -> Legalizer:
    """Legalisation of one kind of scan.

    Args:
        states: operands after the weight that are initial states.
        extra: rows of the operand after the lengths, empty where there is none; 1 is a vector.
        flag: the attribute that the kernel takes last.
    """

    def legalize(bb: BlockBuilder, call: Call) -> Expr:
        from tvm import relax

        from uif_tvm.standard_ops import read, type_of

        found = read(call)
        if found is None:
            return call
        _, operands, attrs = found
        operands = [*operands, *[None] * 6]
        projected, weight = operands[:2]
        (steps, batch, _), hidden = type_of(projected).shape, type_of(weight).shape[0]
        dtype = type_of(projected).dtype
        wide = accumulator(dtype)

        def widened(value: Any, shape: Sequence[Any]) -> Any:
            if value is None:
                return _zeros(bb, shape, wide)
            return value if wide == dtype else bb.emit(relax.op.astype(value, wide))

        args = [widened(projected, ()), widened(weight, ())]
        args += [widened(state, (batch, hidden)) for state in operands[2 : 2 + states]]
        args.append(_lengths(bb, operands[2 + states], projected))
        for rows in extra:
            shape = (hidden,) if rows == 1 else (rows, hidden)
            args.append(widened(operands[3 + states], shape))
        rows_ = zip(attrs["activations"], attrs["alphas"], attrs["betas"], strict=True)
        function = kernel(
            _dim(steps, "steps"),
            _dim(batch, "batch"),
            hidden,
            wide,
            attrs["reverse"],
            tuple(activation(*row) for row in rows_),
            clipping(attrs["clip"]),
            *([attrs[flag]] if flag else []),
        )
        fields = [relax.TensorType(field.shape, wide) for field in call.ty.fields]
        result = call_function(bb, function, args, relax.TupleType(fields), call.op.name[4:])
        if wide == dtype:
            return result
        parts = bb.emit(result)
        return relax.Tuple(
            [
                bb.emit(relax.op.astype(bb.emit(relax.TupleGetItem(parts, index)), dtype))
                for index in range(len(fields))
            ]
        )

    return legalize


#: Operator name -> legalisation.
LEGALIZE: dict[str, Legalizer] = {
    "uif.lstm_scan": _scan(recurrent.lstm_kernel, 2, (3,), "input_forget"),
    "uif.gru_scan": _scan(recurrent.gru_kernel, 1, (1,), "linear_before_reset"),
    "uif.rnn_scan": _scan(recurrent.rnn_kernel, 1, (), None),
}
