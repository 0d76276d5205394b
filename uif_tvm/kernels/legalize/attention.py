"""Attention's own operators; attention itself is composed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from uif_tvm.kernels import attention
from uif_tvm.kernels.legalize.rules import Legalizer, standard
from uif_tvm.kernels.legalize.whole import call_function

if TYPE_CHECKING:
    from tvm.ir import Call
    from tvm.relax import BlockBuilder, Expr


def _linear_attention(bb: BlockBuilder, call: Call) -> Expr:
    """Operands left out become one element that the function never reads."""
    from uif_tvm.ops.build import numpy_dtype
    from uif_tvm.relax_util import make_constant
    from uif_tvm.standard_ops import read, type_of

    found = read(call)
    if found is None:
        return call
    _, operands, attrs = found
    nothing = make_constant(np.zeros(1, numpy_dtype(type_of(operands[0]).dtype)))
    given = [nothing if operand is None else operand for operand in operands]
    given += [nothing] * (6 - len(given))
    query, key, value, state, decay, beta = map(type_of, given)
    function = attention.linear_attention(query, key, value, state, decay, beta, attrs["scale"])
    return call_function(bb, function, given, call.ty, "linear_attention")


#: Operator name -> legalisation.
LEGALIZE: dict[str, Legalizer] = {
    "uif.rope": standard(attention.rope),
    "uif.cache_scatter": standard(attention.cache_scatter),
    "uif.linear_attention": _linear_attention,
}
