"""Elementwise arithmetic and comparison of two operands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uif_tvm.kernels.legalize.rules import (
    FLOATS,
    Legalizer,
    default,
    dtype_of,
    elementwise,
)

if TYPE_CHECKING:
    from tvm import te
    from tvm.ir import Call
    from tvm.relax import BlockBuilder, Expr


def _power(bb: BlockBuilder, call: Call) -> Expr:
    """x^2 and x^3 by multiplication; any other power by TVM's default."""
    from uif_tvm.relax_util import constant_array

    base, exponent = call.args
    value = constant_array(exponent)
    if value is None or value.size != 1 or dtype_of(base) not in FLOATS or value.ndim:
        return default(bb, call)
    power = float(value.reshape(()))
    if power == 2.0:
        return elementwise("square", lambda v: v * v)(bb, call)
    if power == 3.0:
        return elementwise("cube", lambda v: v * v * v)(bb, call)
    return default(bb, call)


def _division(op: str) -> Legalizer:
    """A zero divisor stays in memory: as an immediate, TVM refuses to divide by it."""

    def legalize(bb: BlockBuilder, call: Call) -> Expr:
        from tvm import te, topi

        from uif_tvm.relax_util import constant_array, make_constant

        x, divisor = call.args
        value = constant_array(divisor)
        if value is None or value.ndim or value != 0 or dtype_of(x) not in FLOATS:
            return default(bb, call)
        zero = make_constant(value.reshape(1))
        divide = getattr(topi, op)

        def kernel(x: te.Tensor, z: te.Tensor) -> te.Tensor:
            if len(x.shape):
                return divide(x, z)
            wide = divide(te.compute((1,), lambda i: x(), name="wide"), z)
            return te.compute((), lambda: wide[0], name=op)

        return bb.call_te(kernel, x, zero, primfunc_name_hint=op)

    return legalize


#: Operator name -> legalisation.
LEGALIZE: dict[str, Legalizer] = {
    "relax.power": _power,
    "relax.divide": _division("divide"),
    "relax.floor_divide": _division("floor_divide"),
    "relax.mod": _division("mod"),
    "relax.floor_mod": _division("floor_mod"),
}
