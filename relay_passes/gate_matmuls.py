"""Gated linear layers as one kernel.

    multiply(f(matmul(x, W) + b), matmul(x, V) + c)
        ->  gated_matmul(x, pack(W | V), b, c)            W, V: [K, N] constant

with ``f`` one of SiLU, GELU (both forms), sigmoid and ReLU. A panel of the packed weights holds as
many columns of ``W`` as of ``V``, so that a register tile ends up with both factors and neither
product is ever in memory. Whatever is element-wise after it fuses to it as to any matmul.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import PyExprMutator, mutator
from uif_tvm.relay_passes.attention_views import extents
from uif_tvm.relay_passes.merge_matmuls import Branch, Graph

from uif_tvm.compiler.gain import Gain, consider
from uif_tvm.compiler.graph_pass import GraphPass
from uif_tvm.kernels.gated_matmul import ACTIVATIONS, gated_matmul, pack_pair
from uif_tvm.kernels.matmul import OUT_FUSABLE
from uif_tvm.relax_util import bindings, make_constant, op_name
from uif_tvm.target.schedule import MatmulPlan, MatmulProblem
from uif_tvm.target.spec import Refusal, dtype_bytes

if TYPE_CHECKING:
    from uif_tvm.compiler.context import CompileContext

#: Rows assumed in estimates where their number is known at run time only.
_UNKNOWN = 128
#: Batches with fewer rows than this are multiplied together, as one matrix.
MIN_ROWS = 8


@dataclass(frozen=True)
class Gate:
    """One gated layer.

    Args:
        x: the left-hand side of both products.
        gate: the product that the activation is applied to; ``up``: the other one.
        activation: name of a Relax operator.
    """

    x: Any
    gate: Branch
    up: Branch
    activation: str

    @property
    def problem(self) -> MatmulProblem:
        """Both products as one; rows are 0 where they are known at run time only."""
        depth, width = self.gate.weight.shape
        rows = math.prod(self.lead) if self.flat else self.lead[-1]
        dtype = str(self.gate.weight.dtype)
        m = rows if isinstance(rows, int) else 0
        return MatmulProblem(m, 2 * width, depth, dtype, paired=True)

    @property
    def lead(self) -> list[Any]:
        """Extents of the left-hand side but the last."""
        return (extents(self.x) or [1, 1])[:-1]

    @property
    def flat(self) -> bool:
        """Whether batches have too few rows for a register tile: together they make one."""
        known = all(isinstance(n, int) for n in self.lead)
        return len(self.lead) > 1 and known and self.lead[-1] < MIN_ROWS

    def gain(self) -> Gain:
        """One product is neither written nor read, the left-hand side is read once."""
        lead = [n if isinstance(n, int) else _UNKNOWN for n in self.lead]
        depth, width = self.gate.weight.shape
        element = dtype_bytes(str(self.gate.weight.dtype))
        return Gain(bytes=float(math.prod(lead) * (depth + 2 * width) * element), launches=1)


def gates(func: relax.Function) -> dict[Any, Gate]:
    """Variable of the multiplication -> the gated layer that ends in it."""
    graph = Graph(func)
    branches = {
        branch.result: (x, branch) for x, group in graph.groups().items() for branch in group
    }
    found = {}
    for binding in bindings(func):
        call = getattr(binding, "value", None)
        if not isinstance(call, Call) or op_name(call) != "relax.multiply":
            continue
        for left, right in (call.args, list(call.args)[::-1]):
            gate = _gate(graph, branches, left, right)
            if gate is not None:
                found[binding.var] = gate
                break
    return found


def _gate(graph: Graph, branches: dict[Any, Any], left: Any, right: Any) -> Gate | None:
    acted = graph.bound.get(left)
    if not isinstance(acted, Call) or op_name(acted) not in ACTIVATIONS:
        return None
    first, second = branches.get(acted.args[0]), branches.get(right)
    if first is None or second is None or not first[0].same_as(second[0]):
        return None
    if first[1].weight.shape != second[1].weight.shape or first[1] is second[1]:
        return None
    if any(len(graph.uses.get(var, [])) != 1 for var in (left, acted.args[0], right)):
        return None
    return Gate(first[0], first[1], second[1], op_name(acted) or "")


@mutator
class _Fuse(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: tvm.IRModule, chosen: dict[Any, tuple[Gate, MatmulPlan]]) -> None:
        super().__init__(mod)
        self._chosen = chosen
        self._here: Any = None

    def visit_var_binding_(self, binding: Any) -> None:
        self._here = self._chosen.get(binding.var)
        super().visit_var_binding_(binding)

    def visit_call_(self, call: Call) -> Any:
        here, self._here = self._here, None
        if here is None:
            return self.visit_expr_post_order(call)
        gate, plan = here
        packed = pack_pair(gate.gate.weight, gate.up.weight, plan.n_block)
        biases = [branch.bias for branch in (gate.gate, gate.up)]
        given = [make_constant(np.ascontiguousarray(b)) for b in biases if b is not None]
        width = gate.gate.columns

        def build(x: Any, w: Any, *rest: Any) -> Any:
            more = iter(rest)
            b, c = (None if bias is None else next(more) for bias in biases)
            return gated_matmul(x, w, b, c, width, plan.m_block, gate.activation)

        x = self.visit_expr(gate.x)
        if gate.flat:
            x = self.builder_.emit(relax.op.reshape(x, (-1, gate.gate.weight.shape[0])))
        result = self.builder_.call_te(
            build,
            x,
            make_constant(packed),
            *given,
            primfunc_name_hint="gated_matmul",
            primfunc_attrs={"op_pattern": OUT_FUSABLE},
        )
        if not gate.flat:
            return result
        return relax.op.reshape(self.builder_.emit(result), (*gate.lead, width))


class GateMatmuls(GraphPass):
    """Compute both factors of a gated layer in one register tile."""

    name = "gate-matmuls"

    def apply(self, mod: tvm.IRModule, ctx: CompileContext) -> tvm.IRModule:
        """See the module text."""
        # Names for names would hide who reads what.
        mod = relax.transform.CanonicalizeBindings()(mod)
        chosen = {}
        for var, gate in gates(mod["main"]).items():
            plan = self._plan(gate, ctx)
            subject = f"{gate.gate.product.name}, {gate.up.product.name}"
            if isinstance(plan, Refusal):
                ctx.report.decide(self.name, subject, False, str(plan))
                continue
            name = gate.activation.rsplit(".", 1)[-1]
            fired = f"{name}(gate) * up in one tile of {plan.m_block}x{plan.n_block}"
            if consider(ctx, self.name, subject, gate.gain(), fired, "one kernel"):
                chosen[var] = gate, plan
        if not chosen:
            return mod
        fuse = _Fuse(mod, chosen)
        main = fuse.visit_expr(mod["main"])
        out = fuse.builder_.get()
        out.update_func(out.get_global_var("main"), main)
        return relax.transform.DeadCodeElimination(["main"])(out)

    @staticmethod
    def _plan(gate: Gate, ctx: CompileContext) -> MatmulPlan | Refusal:
        planner = ctx.target.planner
        if planner is None:
            return Refusal("no-planner", f"target {ctx.target.id} plans no packed kernels")
        return planner.matmul(gate.problem, ctx.target.machine)


PASS = GateMatmuls()
