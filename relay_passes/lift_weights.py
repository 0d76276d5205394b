"""Weights out of the code: ``main(x) { f(x, W) }  ->  main(x, ws) { f(x, ws[i]) }``.

Every tensor constant becomes an element of one trailing parameter, so that weights live in the
artifact's mapped file and not inside the library. Elements are fetched by a runtime builtin with
a declared type, because a typed tuple parameter would be re-checked element by element on every
run. Equal constants share one element.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
from blake3 import blake3
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from uif_tvm.compiler.graph_pass import GraphPass
from uif_tvm.relax_util import constant_array

if TYPE_CHECKING:
    from uif_tvm.compiler.context import CompileContext

#: Attribute of the module: the lifted arrays, in the order of the trailing tuple.
WEIGHTS_ATTR = "uif.weights"


@mutator
class _Lift(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: tvm.IRModule, params: relax.Var) -> None:
        super().__init__(mod)
        self.params = params
        self.tensors: list[Any] = []
        self._index: dict[tuple[str, tuple[int, ...], bytes], int] = {}

    def visit_generic_const_(self, op: GenericConst) -> Any:
        array = constant_array(op)
        if array is None:
            return op
        key = (str(array.dtype), array.shape, _digest(array))
        index = self._index.setdefault(key, len(self.tensors))
        if index == len(self.tensors):
            self.tensors.append(op.value)
        # Scope of a fetched element is the block at hand, so fetch it where it is used.
        return self.builder_.emit(
            relax.call_pure_packed(
                "vm.builtin.tuple_getitem",
                self.params,
                relax.prim_value(index),
                ty_args=[op.ty],
            ),
            name_hint=f"w{index}",
        )


def _digest(array: np.ndarray[Any, Any]) -> bytes:
    flat = np.asarray(array, order="C").reshape(-1)
    return blake3(flat.view(np.uint8).data).digest()


class LiftWeights(GraphPass):
    """Move tensor constants into main's trailing parameter."""

    name = "lift-weights"
    requires = frozenset({"kernels-only"})
    ensures = frozenset({"weights-lifted"})
    optional = False

    def apply(self, mod: tvm.IRModule, ctx: CompileContext) -> tvm.IRModule:
        """See the module text."""
        main = mod["main"]
        weights = relax.Var("weights", relax.AnyType())
        lift = _Lift(mod, weights)
        body = lift.visit_expr(main.body)
        function = relax.Function(
            [*main.params, weights], body, main.ret_ty, main.is_pure, main.attrs
        )
        mod = tvm.IRModule(dict(mod.functions), attrs=mod.attrs)
        mod["main"] = function
        return mod.with_attr(WEIGHTS_ATTR, lift.tensors)


PASS = LiftWeights()
