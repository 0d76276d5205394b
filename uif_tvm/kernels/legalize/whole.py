"""Legalisation to whole TIR functions: loops that tensor expressions cannot say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from uif_tvm.kernels.legalize.rules import OPAQUE, Legalizer

if TYPE_CHECKING:
    from tvm.ir import Call
    from tvm.relax import BlockBuilder, Expr


def call_function(bb: BlockBuilder, function: Any, args: Sequence[Any], ty: Any, name: str) -> Expr:
    """Call a finished TIR function; it neither fuses nor is scheduled.

    Args:
        ty: type of the result, a tuple's for several.
    """
    from tvm import relax

    marked = function.with_attrs(
        {"tirx.noalias": True, "tirx.is_scheduled": True, "op_pattern": OPAQUE}
    )
    fields = list(ty.fields) if isinstance(ty, relax.TupleType) else ty
    return relax.call_tir(bb.add_func(marked, name), list(args), out_ty=fields)


def whole(build: Callable[..., Any]) -> Legalizer:
    """Legalisation to the function that ``build(*operand types, **attributes)`` makes.

    The function takes the operands that are given, in order, and then the results; types of
    operands left out are ``None``.
    """

    def legalize(bb: BlockBuilder, call: Call) -> Expr:
        from uif_tvm.standard_ops import read, type_of

        found = read(call)
        if found is None:
            return call
        spec, operands, attrs = found
        types = [None if operand is None else type_of(operand) for operand in operands]
        given = [operand for operand in operands if operand is not None]
        return call_function(bb, build(*types, **attrs), given, call.ty, spec.name)

    return legalize
