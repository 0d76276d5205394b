"""Arithmetic and comparison of two operands, right at the edges of their types."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from uif_tvm.kernels import arithmetic
from uif_tvm.kernels.legalize.rules import (
    FLOATS,
    INTS,
    Legalizer,
    default,
    dtype_of,
    elementwise,
)
from uif_tvm.kernels.pointwise import pointwise

if TYPE_CHECKING:
    from tvm import te
    from tvm.ir import Call
    from tvm.relax import BlockBuilder, Expr

Formula = Callable[[Any, Any], Any]


def _binary(name: str, formula: Formula, dtypes: tuple[str, ...]) -> Legalizer:
    """``formula`` for elements of ``dtypes``; a constant number becomes an immediate of it."""

    def legalize(bb: BlockBuilder, call: Call) -> Expr:
        dtype = dtype_of(call.args[0])
        if dtype not in dtypes:
            return default(bb, call)
        left, right = (_immediate(arg) for arg in call.args)
        if left is not None and right is not None:
            left = None
        given = [None if left is not None else call.args[0], call.args[1]]
        if right is not None:
            given[1] = None

        def kernel(*tensors: te.Tensor) -> te.Tensor:
            if left is not None:
                return pointwise(lambda b: formula(left, b), name)(*tensors)
            if right is not None:
                return pointwise(lambda a: formula(a, right), name)(*tensors)
            return pointwise(formula, name)(*tensors)

        return bb.call_te(
            kernel, *[arg for arg in given if arg is not None], primfunc_name_hint=name
        )

    return legalize


def _immediate(arg: Any) -> Any:
    """A constant of rank 0 as an immediate; ``None`` for all else."""
    from tvm import tirx

    from uif_tvm.relax_util import constant_array

    value = constant_array(arg)
    if value is None or value.ndim:
        return None
    return tirx.const(value.item(), dtype_of(arg))


def _power(bb: BlockBuilder, call: Call) -> Expr:
    """x^2 and x^3 by multiplication; any other power of floats by TVM's default."""
    from uif_tvm.relax_util import constant_array

    base, exponent = call.args
    if dtype_of(base) not in ("float32", "float64"):
        return _binary("power", arithmetic.power, (*FLOATS, *INTS))(bb, call)
    value = constant_array(exponent)
    if value is None or value.size != 1 or value.ndim:
        return default(bb, call)
    power = float(value.reshape(()))
    if power == 2.0:
        return elementwise("square", lambda v: v * v)(bb, call)
    if power == 3.0:
        return elementwise("cube", lambda v: v * v * v)(bb, call)
    return default(bb, call)


def _division(op: str, formula: Formula, on_floats: bool) -> Legalizer:
    """Division that never traps.

    A zero divisor of floats stays in memory: as an immediate, TVM refuses to divide by it.
    """

    def legalize(bb: BlockBuilder, call: Call) -> Expr:
        from uif_tvm.relax_util import constant_array, make_constant

        x, divisor = call.args
        dtypes = (*FLOATS, *INTS) if on_floats else INTS
        if dtype_of(x) not in FLOATS:
            return _binary(op, formula, dtypes)(bb, call)
        value = constant_array(divisor)
        if value is None or value.ndim or value != 0:
            return _binary(op, formula, dtypes)(bb, call)

        def kernel(x: te.Tensor, z: te.Tensor) -> te.Tensor:
            return pointwise(lambda a: formula(a, z[0].asobject()), op)(x)

        return bb.call_te(kernel, x, make_constant(value.reshape(1)), primfunc_name_hint=op)

    return legalize


#: Operator name -> legalisation.
LEGALIZE: dict[str, Legalizer] = {
    "relax.add": _binary("add", arithmetic.add, INTS),
    "relax.subtract": _binary("subtract", arithmetic.subtract, (*FLOATS, *INTS)),
    "relax.multiply": _binary("multiply", arithmetic.multiply, INTS),
    "relax.power": _power,
    "relax.divide": _division("divide", arithmetic.divide, on_floats=False),
    "relax.floor_divide": _division("floor_divide", arithmetic.floor_divide, on_floats=True),
    "relax.mod": _division("mod", arithmetic.remainder, on_floats=True),
    "relax.floor_mod": _division("floor_mod", arithmetic.floor_remainder, on_floats=True),
    "relax.maximum": _binary("maximum", arithmetic.maximum, (*FLOATS, *INTS)),
    "relax.minimum": _binary("minimum", arithmetic.minimum, (*FLOATS, *INTS)),
    "relax.not_equal": _binary("not_equal", arithmetic.not_equal, FLOATS),
    "relax.equal": _binary("equal", arithmetic.equal, FLOATS),
    "relax.logical_or": _binary("logical_or", arithmetic.either, ("bool",)),
    "relax.logical_not": elementwise("logical_not", arithmetic.negation, ("bool",)),
    "relax.left_shift": _binary("left_shift", arithmetic.shift_left, INTS),
    "relax.right_shift": _binary("right_shift", arithmetic.shift_right, INTS),
}
