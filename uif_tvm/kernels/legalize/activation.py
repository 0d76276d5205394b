"""Activations."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from uif_tvm.kernels import activation
from uif_tvm.kernels.functions import wide
from uif_tvm.kernels.legalize.rules import (
    FLOATS,
    Legalizer,
    default,
    dtype_of,
    elementwise,
    formulas,
    standard,
)
from uif_tvm.kernels.pointwise import pointwise

if TYPE_CHECKING:
    from tvm.ir import Call
    from tvm.relax import BlockBuilder, Expr


def _softplus(bb: BlockBuilder, call: Call) -> Expr:
    beta, threshold = float(call.attrs.beta), float(call.attrs.threshold)
    formula = elementwise("softplus", lambda v: activation.softplus(v, beta, threshold))
    return formula(bb, call)


def _leaky_relu(bb: BlockBuilder, call: Call) -> Expr:
    alpha = float(call.attrs.alpha)
    return elementwise("leaky_relu", wide(lambda v: activation.leaky_relu(v, alpha)))(bb, call)


def _clip(bb: BlockBuilder, call: Call) -> Expr:
    """One kernel a bound, so that none repeats the other's expression."""
    x, *bounds = call.args
    dtype = dtype_of(x)
    for bound, low in zip(bounds, (True, False), strict=True):
        number = getattr(bound, "value", None)
        if number is None:
            return default(bb, call)
        number = float(number) if dtype in FLOATS else int(number)
        if not _is_bound(number, dtype, low):
            continue
        limits = (number, None) if low else (None, number)
        formula = partial(_limited, limits=limits)
        # The last call stays unbound: it takes the operator's own variable.
        x = x if x is call.args[0] else bb.emit(x)
        x = bb.call_te(pointwise(formula, "clip"), x, primfunc_name_hint="clip")
    return x


def _limited(v: Any, limits: tuple[float | None, float | None]) -> Any:
    return activation.limited(v, *limits)


def _is_bound(number: float, dtype: str, low: bool) -> bool:
    """Whether a limit changes anything at all."""
    if dtype in FLOATS:
        return number != (-math.inf if low else math.inf)
    info = np.iinfo(dtype)
    return number > info.min if low else number < info.max


#: Operator name -> legalisation.
LEGALIZE: dict[str, Legalizer] = {
    "relax.nn.relu": elementwise("relu", activation.relu),
    "relax.nn.silu": elementwise("silu", activation.silu),
    "relax.nn.gelu": elementwise("gelu", activation.gelu),
    "relax.nn.gelu_tanh": elementwise("gelu_tanh", activation.gelu_tanh),
    "relax.nn.softplus": _softplus,
    "relax.nn.leakyrelu": _leaky_relu,
    "relax.clip": _clip,
    "uif.glu": standard(activation.glu),
    **formulas(
        {
            name: wide(getattr(activation, name))
            for name in (
                "celu",
                "elu",
                "hard_sigmoid",
                "hard_swish",
                "mish",
                "prelu",
                "quick_gelu",
                "selu",
                "shrink",
                "softsign",
                "thresholded_relu",
            )
        }
    ),
}
