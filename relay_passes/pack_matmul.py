"""Matmuls as register-tile kernels; constant right-hand sides packed at export.

    matmul(x, W)                      ->  packed_matmul(x, pack(W))         W: [K, N] constant
    matmul(x, permute_dims(W))        ->  packed_matmul(x, pack(W^T))       W: [N, K] constant
    matmul(x, y)                      ->  batch_matmul(x, y)                both made at run time
    matmul(x, permute_dims(y))        ->  batch_matmul(x, y, transpose_y)   last two axes swapped

with ``pack(W)[p, k, j] = W[k, p nb + j]``, zero past N. Panel width ``nb`` and row tile come from
the target's planner. The kernels take element-wise epilogues (bias, activation, residual).
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import PyExprMutator, mutator

from uif_tvm.compiler.graph_pass import GraphPass
from uif_tvm.kernels.legalize.rules import dtype_of
from uif_tvm.kernels.matmul import OUT_FUSABLE, batch_matmul, pack_weight, packed_matmul
from uif_tvm.relax_util import constant_array, make_constant, op_name, static_shape
from uif_tvm.target.schedule import MatmulPlan, MatmulProblem
from uif_tvm.target.spec import Refusal

if TYPE_CHECKING:
    from uif_tvm.compiler.context import CompileContext

#: Columns or depth assumed when they are only known at run time.
_UNKNOWN = 128
#: Batches with fewer rows than this are multiplied together, as one matrix.
_MIN_ROWS = 8


@mutator
class _Pack(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: tvm.IRModule, ctx: CompileContext, name: str) -> None:
        super().__init__(mod)
        self.ctx = ctx
        self.name = name
        self._packed: dict[tuple[Any, int, bool], Any] = {}
        self._subject = "matmul"

    def visit_var_binding_(self, binding: Any) -> None:
        self._subject = str(binding.var.name)
        super().visit_var_binding_(binding)

    def visit_call_(self, call: Call) -> Any:
        call = self.visit_expr_post_order(call)
        if op_name(call) != "relax.matmul":
            return call
        done = self._rewrite(call)
        if isinstance(done, Refusal):
            self.ctx.report.decide(self.name, self._subject, False, str(done))
            return call
        return done

    def _rewrite(self, call: Call) -> Any | Refusal:
        x, y = call.args
        dtypes = {dtype_of(x), dtype_of(y), dtype_of(call)}
        if len(dtypes) != 1:
            return Refusal("mixed-dtypes", f"operands and result are {', '.join(sorted(dtypes))}")
        left, right = _shape(x), _shape(y)
        if left is None or right is None or len(left) < 2 or len(right) < 2:
            return Refusal("rank", "both sides need a known rank of at least 2")
        if 0 in (*left, *right):
            return Refusal("empty", f"{left} x {right} has no elements")
        weight, transposed = self._constant_side(y)
        if weight is not None and len(right) == 2:
            return self._packed_call(x, left, weight, transposed, dtype_of(call))
        return self._batched_call(x, y, left, right, dtype_of(call))

    def _packed_call(
        self, x: Any, left: list[Any], weight: Any, transposed: bool, dtype: str
    ) -> Any | Refusal:
        array = constant_array(weight)
        if array is None:
            return Refusal("constant", "the right-hand side is no plain tensor")
        matrix = array.T if transposed else array
        depth, width = matrix.shape
        rows = left[-2]
        flat = len(left) > 2 and not (isinstance(rows, int) and rows >= _MIN_ROWS)
        if flat:
            # Too few rows per batch for a register tile: the batches together make one.
            rows = prod(left[:-1]) if all(isinstance(n, int) for n in left) else None
        m = rows if isinstance(rows, int) else 0
        plan = self._plan(MatmulProblem(m, width, depth, dtype))
        if isinstance(plan, Refusal):
            return plan
        key = (weight, plan.n_block, transposed)
        if key not in self._packed:
            self._packed[key] = make_constant(pack_weight(matrix, plan.n_block))
        self.ctx.report.decide(
            self.name,
            self._subject,
            True,
            f"[{depth}, {width}] packed in panels of {plan.n_block}, row tile {plan.m_block}",
        )
        if flat:
            x = self.builder_.emit(relax.op.reshape(x, (-1, depth)), self._subject)
        result = self.builder_.call_te(
            lambda a, w: packed_matmul(a, w, width, plan.m_block),
            x,
            self._packed[key],
            primfunc_name_hint="matmul",
            primfunc_attrs={"op_pattern": OUT_FUSABLE},
        )
        if not flat:
            return result
        return relax.op.reshape(
            self.builder_.emit(result, self._subject), relax.ShapeExpr([*left[:-1], width])
        )

    def _batched_call(
        self, x: Any, y: Any, left: list[Any], right: list[Any], dtype: str
    ) -> Any | Refusal:
        source, swapped = self._swapped_source(y)
        rows, depth, width = left[-2], left[-1], right[-1]
        m = rows if isinstance(rows, int) else 0
        n, k = (size if isinstance(size, int) else _UNKNOWN for size in (width, depth))
        plan = self._plan(MatmulProblem(m, n, k, dtype))
        if isinstance(plan, Refusal):
            return plan
        tile = (plan.m_block, plan.n_block)
        how = "right-hand side read transposed" if swapped else "right-hand side packed on the way"
        self.ctx.report.decide(
            self.name, self._subject, True, f"batched, tile {tile[0]}x{tile[1]}, {how}"
        )
        return self.builder_.call_te(
            lambda a, b: batch_matmul(a, b, tile, swapped),
            x,
            source,
            primfunc_name_hint="batch_matmul",
            primfunc_attrs={"op_pattern": OUT_FUSABLE},
        )

    def _plan(self, problem: MatmulProblem) -> MatmulPlan | Refusal:
        planner = self.ctx.target.planner
        if planner is None:
            return Refusal("no-planner", f"target {self.ctx.target.id} plans no packed kernels")
        return planner.matmul(problem, self.ctx.target.machine)

    def _bound(self, expr: Any) -> Any:
        """What a variable stands for, through aliases."""
        while isinstance(expr, relax.Var):
            value = self.lookup_binding(expr)
            if value is None:
                return expr
            expr = value
        return expr

    def _constant_side(self, y: Any) -> tuple[Any, bool]:
        """(constant, whether it is used transposed), or (None, False)."""
        bound = self._bound(y)
        if constant_array(bound) is not None:
            return bound, False
        source, swapped = self._swapped_source(y)
        inner = self._bound(source)
        if swapped and constant_array(inner) is not None:
            return inner, True
        return None, False

    def _swapped_source(self, y: Any) -> tuple[Any, bool]:
        """(what ``y`` is a transposition of, True) when it swaps just the last two axes."""
        bound = self._bound(y)
        if not isinstance(bound, Call) or op_name(bound) != "relax.permute_dims":
            return y, False
        rank = len(_shape(y) or ())
        swap = [*range(rank - 2), rank - 1, rank - 2]
        axes = bound.attrs.axes
        order = [int(a) % rank for a in axes] if axes is not None else list(range(rank))[::-1]
        return (bound.args[0], True) if order == swap else (y, False)


def _shape(expr: Any) -> list[Any] | None:
    """Extents (ints where known), or ``None`` for an unknown rank."""
    known = static_shape(expr)
    if known is not None:
        return list(known)
    values = getattr(getattr(expr.ty, "shape", None), "values", None)
    if values is None:
        return None
    return [int(n) if isinstance(n, tvm.tirx.IntImm) else n for n in values]


class PackMatmul(GraphPass):
    """Replace matrix products by kernels with a register tile."""

    name = "pack-matmul"

    def apply(self, mod: tvm.IRModule, ctx: CompileContext) -> tvm.IRModule:
        """See the module text."""
        pack = _Pack(mod, ctx, self.name)
        main = pack.visit_expr(mod["main"])
        out = pack.builder_.get()
        out.update_func(out.get_global_var("main"), main)
        return out


PASS = PackMatmul()
