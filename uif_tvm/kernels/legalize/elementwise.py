"""Functions of one element that TVM lacks, computes inexactly, or gets wrong for NaN."""

from __future__ import annotations

from uif_tvm.kernels import functions
from uif_tvm.kernels.legalize.rules import FLOATS, INTS, Legalizer, elementwise
from uif_tvm.kernels.math import is_nan

_INEXACT = {
    "acosh": functions.acosh,
    "asinh": functions.asinh,
    "atan": functions.atan,
    "atanh": functions.atanh,
    "cosh": functions.cosh,
    "sinh": functions.sinh,
    "tan": functions.tan,
}
_EXACT = {
    "abs": functions.absolute,
    "negative": functions.negative,
    "sign": functions.sign,
}

#: Operator name -> legalisation.
LEGALIZE: dict[str, Legalizer] = {
    **{
        f"relax.{name}": elementwise(name, functions.wide(formula))
        for name, formula in _INEXACT.items()
    },
    **{
        f"relax.{name}": elementwise(name, formula, (*FLOATS, *INTS, "bool"))
        for name, formula in _EXACT.items()
    },
    "relax.round": elementwise("round", functions.round_half_even),
    "relax.isnan": elementwise("isnan", is_nan),
    "relax.isinf": elementwise("isinf", functions.is_infinite),
}
