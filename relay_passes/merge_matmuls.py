"""Matmuls that share their left-hand side become one.

    y_i = matmul(x, W_i) + b_i   ->   y = matmul(x, [W_1 | W_2 ..]) + [b_1 | b_2 ..]
                                      y_i = strided_slice(y, the columns of W_i)

for constant weights: queries, keys and values of attention, for instance. Saved are the readings
of ``x`` but one, and launches. A slice costs nothing where its reader takes columns in place:
attention, or a kernel that rearranges or rotates its operand anyway. Elsewhere it is a copy, and
an epilogue that had the result in registers reads it from memory; where that costs more, the
products stay apart.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import PyExprMutator, mutator
from uif_tvm.relay_passes.attention_views import bound_to, extents
from uif_tvm.relay_passes.uses import User, consumers

from uif_tvm.compiler.gain import Gain, consider
from uif_tvm.compiler.graph_pass import GraphPass
from uif_tvm.relax_util import bindings, calls, constant_array, make_constant, op_name
from uif_tvm.target.spec import dtype_bytes

if TYPE_CHECKING:
    from uif_tvm.compiler.context import CompileContext

#: Operators whose kernels read a slice of columns as cheaply as a tensor of its own.
_READ_IN_PLACE = frozenset({"uif.rope", "relax.permute_dims", "relax.concat"})
#: Operators that change the shape only: who reads them decides.
_VIEWS = frozenset({"relax.reshape", "relax.expand_dims", "relax.squeeze"})
#: Element-wise operators. On a product they are its epilogue; on its features split into heads
#: they are a kernel of their own, which may as well read a slice.
_POINTWISE = frozenset(
    f"relax.{name}"
    for name in ("add", "subtract", "multiply", "divide", "negative", "astype", "strided_slice")
)
#: Rows assumed in estimates where their number is known at run time only.
_UNKNOWN = 128


@dataclass(frozen=True)
class Branch:
    """One product of a group.

    Args:
        product: variable of the matmul.
        result: variable of the matmul with its bias; the same where there is none.
        weight: ``[K, N]``.
        bias: ``[N]``, or ``None``.
    """

    product: Any
    result: Any
    weight: np.ndarray[Any, Any]
    bias: np.ndarray[Any, Any] | None

    @property
    def columns(self) -> int:
        """N."""
        return int(self.weight.shape[1])


class Graph:
    """What passes over products ask about ``main``.

    Attributes:
        bound: variable -> its value.
        uses: variable -> its readers.
    """

    def __init__(self, func: relax.Function) -> None:
        self.bound = {b.var: b.value for b in bindings(func) if hasattr(b, "value")}
        self.uses = consumers(func)

    def groups(self) -> dict[Any, list[Branch]]:
        """Left-hand side -> products with constant weights of one type, if several."""
        found: dict[Any, list[Branch]] = defaultdict(list)
        for var, value in self.bound.items():
            branch = self._branch(var, value)
            if branch is not None:
                found[value.args[0], str(branch.weight.dtype)].append(branch)
        return {x: group for (x, _), group in found.items() if len(group) > 1}

    def _branch(self, var: Any, value: Any) -> Branch | None:
        if not isinstance(value, Call) or op_name(value) != "relax.matmul":
            return None
        x, weight = value.args[0], self.matrix(value.args[1])
        if not isinstance(x, relax.Var) or weight is None or not isinstance(var, relax.DataflowVar):
            return None
        if {str(item.ty.dtype) for item in (x, var)} != {str(weight.dtype)}:
            return None
        if len(extents(x) or ()) < 2:
            return None
        users = self.uses.get(var, [])
        result, add = users[0] if len(users) == 1 else (None, None)
        if add is not None and op_name(add) == "relax.add":
            for operand in add.args:
                bias = constant_array(bound_to(operand, self.bound.get))
                fits = bias is not None and bias.shape == (weight.shape[1],)
                if fits and isinstance(result, relax.DataflowVar):
                    return Branch(var, result, weight, bias)
        return Branch(var, var, weight, None)

    def matrix(self, expr: Any) -> np.ndarray[Any, Any] | None:
        """A constant right-hand side ``[K, N]``, also one that is transposed first."""
        bound = bound_to(expr, self.bound.get)
        if isinstance(bound, Call) and op_name(bound) == "relax.permute_dims":
            array = constant_array(bound_to(bound.args[0], self.bound.get))
            axes = bound.attrs.axes
            swapped = axes is None or [int(axis) % 2 for axis in axes] == [1, 0]
            return array.T if array is not None and array.ndim == 2 and swapped else None
        array = constant_array(bound)
        return array if array is not None and array.ndim == 2 else None

    def in_place(self, var: Any, viewed: bool = False) -> bool:
        """Whether all readers of ``var`` would read some columns of a wider tensor as well.

        Args:
            viewed: ``var`` is a product in another shape, not the product itself.
        """
        users = self.uses.get(var, [])
        return bool(users) and all(self._reads_in_place(var, user, viewed) for user in users)

    def _reads_in_place(self, var: Any, user: User, viewed: bool) -> bool:
        name = None if user.call is None else op_name(user.call)
        if name in _VIEWS:
            return self.in_place(user.var, True)
        if name == "uif.attention":
            # Without a transposition in between only single positions lie in rows.
            return (extents(var) or [0] * 3)[2:3] == [1]
        return name in _READ_IN_PLACE or (viewed and name in _POINTWISE)


def gain_of(x: Any, group: list[Branch], copied: list[Branch]) -> Gain:
    """What one product saves over several.

    Args:
        copied: branches whose slices are copies: written once more, read once more, and launched.
    """
    element = dtype_bytes(str(group[0].weight.dtype))
    lead = [n if isinstance(n, int) else _UNKNOWN for n in (extents(x) or [])[:-1]]
    rows, depth = math.prod(lead), int(group[0].weight.shape[0])
    shared = float(rows * depth * element * (len(group) - 1))
    copies = 2.0 * rows * element * sum(branch.columns for branch in copied)
    return Gain(bytes=shared - copies, launches=len(group) - 1 - len(copied))


@mutator
class _Merge(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: tvm.IRModule, groups: list[tuple[Any, list[Branch]]]) -> None:
        super().__init__(mod)
        #: Result of a branch -> (its group, first column, columns).
        self._places: dict[Any, tuple[int, int, int]] = {}
        self._groups = groups
        self._merged: dict[int, Any] = {}
        for index, (_, group) in enumerate(groups):
            start = 0
            for branch in group:
                self._places[branch.result] = index, start, branch.columns
                start += branch.columns
        self._place: tuple[int, int, int] | None = None

    def visit_var_binding_(self, binding: Any) -> None:
        self._place = self._places.get(binding.var)
        super().visit_var_binding_(binding)

    def visit_call_(self, call: Call) -> Any:
        place, self._place = self._place, None
        if place is None:
            return self.visit_expr_post_order(call)
        index, start, columns = place
        merged = self._merged.get(index)
        if merged is None:
            merged = self._merged[index] = self._product(*self._groups[index])
        axis = len(merged.ty.shape.values) - 1
        return relax.op.strided_slice(merged, [axis], [start], [start + columns])

    def _product(self, x: Any, group: list[Branch]) -> Any:
        emit = self.builder_.emit
        weight = np.concatenate([branch.weight for branch in group], 1)
        name = "_".join(str(branch.product.name) for branch in group[:3])
        value = emit(relax.op.matmul(self.visit_expr(x), make_constant(weight)), name)
        if all(branch.bias is None for branch in group):
            return value
        zeros = [np.zeros(branch.columns, weight.dtype) for branch in group]
        biases = [
            zero if branch.bias is None else branch.bias
            for branch, zero in zip(group, zeros, strict=True)
        ]
        return emit(relax.op.add(value, make_constant(np.concatenate(biases))), name)


class MergeMatmuls(GraphPass):
    """Multiply one left-hand side by all of its constant weights at once."""

    name = "merge-matmuls"

    def apply(self, mod: tvm.IRModule, ctx: CompileContext) -> tvm.IRModule:
        """See the module text."""
        if sum(op_name(call) == "relax.matmul" for _, call in calls(mod)) < 2:
            return mod
        # Names for names would hide who reads what.
        mod = relax.transform.CanonicalizeBindings()(mod)
        graph = Graph(mod["main"])
        chosen = [
            (x, group) for x, group in graph.groups().items() if self._pays(graph, x, group, ctx)
        ]
        if not chosen:
            return mod
        merge = _Merge(mod, chosen)
        main = merge.visit_expr(mod["main"])
        out = merge.builder_.get()
        out.update_func(out.get_global_var("main"), main)
        return relax.transform.DeadCodeElimination(["main"])(out)

    def _pays(self, graph: Graph, x: Any, group: list[Branch], ctx: CompileContext) -> bool:
        subject = ", ".join(str(branch.product.name) for branch in group)
        copied = [branch for branch in group if not graph.in_place(branch.result)]
        widths = " + ".join(str(branch.columns) for branch in group)
        why = f"{len(copied)} of {len(group)} slices would be copies"
        gain = gain_of(x, group, copied)
        return consider(ctx, self.name, subject, gain, f"one product of {widths} columns", why)


PASS = MergeMatmuls()
