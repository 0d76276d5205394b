"""Activations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uif_tvm.kernels import activation
from uif_tvm.kernels.legalize.rules import Legalizer, elementwise

if TYPE_CHECKING:
    from tvm.ir import Call
    from tvm.relax import BlockBuilder, Expr


def _softplus(bb: BlockBuilder, call: Call) -> Expr:
    beta, threshold = float(call.attrs.beta), float(call.attrs.threshold)
    formula = elementwise("softplus", lambda v: activation.softplus(v, beta, threshold))
    return formula(bb, call)


#: Operator name -> legalisation.
LEGALIZE: dict[str, Legalizer] = {
    "relax.nn.relu": elementwise("relu", activation.relu),
    "relax.nn.silu": elementwise("silu", activation.silu),
    "relax.nn.gelu": elementwise("gelu", activation.gelu),
    "relax.nn.gelu_tanh": elementwise("gelu_tanh", activation.gelu_tanh),
    "relax.nn.softplus": _softplus,
}
