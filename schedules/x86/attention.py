"""Fused attention: softmax over blocks of keys, the score matrix never in memory.

See ``attention_nest`` for the loops and ``attention_planner`` for the blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uif_tvm.schedules._common.parallel import parallel_pays
from uif_tvm.schedules.x86.attention_nest import AttentionNest
from uif_tvm.schedules.x86.attention_planner import plan_attention
from uif_tvm.schedules.x86.attention_softmax import known
from uif_tvm.schedules.x86.conv2d_tir import finish

from uif_tvm.kernels.fused_attention import AttentionForm, form_of
from uif_tvm.target.schedule import OTHER_FAMILY, AttentionProblem, Scheduled
from uif_tvm.target.spec import Refusal

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from uif_tvm.target.spec import TargetSpec


class FusedAttention:
    """See the module text."""

    name = "fused-attention"
    version = 1
    kind = "hand-written"

    def apply(self, func: PrimFunc, target: TargetSpec) -> Scheduled | Refusal:
        """Replace the body of a kernel that carries an ``AttentionForm``."""
        form = form_of(func)
        if form is None:
            return Refusal(OTHER_FAMILY, "no fused attention in this kernel")
        if len(func.params) not in (4, 5):
            return Refusal("fused", f"{len(func.params)} parameters: something is fused to it")
        problem = _problem(func.params, form)
        plan = plan_attention(problem, target.machine)
        if isinstance(plan, Refusal):
            return plan
        lanes = target.machine.lanes("float32")
        rows = problem.batch * problem.heads * problem.queries
        steps = rows * problem.keys * (form.depth + form.width) / lanes / 2
        parallel = not steps or parallel_pays(steps, target.machine.cores)
        body = AttentionNest(func, form, plan, lanes).body(parallel)
        note = (
            f"register tile {plan.tile_rows}x{plan.panel}, blocks of {plan.row_block} queries "
            f"and {plan.key_block} keys"
        )
        return Scheduled(finish(func, body), note)


def _problem(params: Any, form: AttentionForm) -> AttentionProblem:
    query, key = params[:2]
    batch, queries = query.shape[0], form.query.positions(query.shape)
    return AttentionProblem(
        batch=known(batch) or 0,
        heads=form.heads,
        groups=form.groups,
        queries=known(queries) or 0,
        keys=known(form.key.positions(key.shape)) or 0,
        depth=form.depth,
        width=form.width,
        dtype=str(query.dtype),
    )


RULES = (FusedAttention(),)
