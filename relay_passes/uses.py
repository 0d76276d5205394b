"""Who reads what, over one Relax function."""

from __future__ import annotations

from typing import Any, NamedTuple

from tvm import relax
from tvm.ir import Call

from uif_tvm.relax_util import bindings


class User(NamedTuple):
    """A reader: the call and the variable bound to it; neither for a tuple or the result."""

    var: Any = None
    call: Any = None


def consumers(func: relax.Function) -> dict[Any, list[User]]:
    """Variable -> its readers, once for every operand."""
    found: dict[Any, list[User]] = {}

    def note(expr: Any, user: User) -> None:
        def visit(node: Any) -> None:
            if isinstance(node, relax.Var):
                found.setdefault(node, []).append(user)

        relax.analysis.post_order_visit(expr, visit)

    for binding in bindings(func):
        value = getattr(binding, "value", None)
        if value is not None:
            note(value, User(binding.var, value) if isinstance(value, Call) else User())
    note(func.body.body, User())
    return found
