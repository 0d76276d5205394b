"""The pipeline: a table of contents. Levels choose phases; passes hold the logic.

Level 0: one kernel per operator, every tensor can be tapped.
Level 1: + constant folding, dead code.
Level 2: + layouts by region, weight packing, kernel fusion, memory reuse (default).
Level 3: + operators reordered, algorithms that change rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uif_tvm.errors import TargetError

if TYPE_CHECKING:
    from collections.abc import Callable

    from uif_tvm.compiler.context import CompileContext
    from uif_tvm.compiler.graph_pass import GraphPass


@dataclass(frozen=True)
class Phase:
    """A named group of passes, each with the lowest level it runs at."""

    name: str
    passes: tuple[tuple[int, GraphPass], ...]


def phases() -> tuple[Phase, ...]:
    """All phases in order; imported late because passes need TVM."""
    from uif_tvm.relay_passes import (
        block_layout,
        common_subexpr,
        dead_code,
        elide_reshape,
        expand_attention,
        fold_affine,
        fold_constant,
        fold_input_scale,
        fold_pad,
        fuse_kernels,
        gate_matmuls,
        hoist_reshape,
        legalize,
        lift_weights,
        merge_matmuls,
        pack_matmul,
        plane_conv,
        push_transpose,
        recover_activation,
        recover_attention,
        recover_norm,
        recover_rope,
        recover_softmax,
        reorder_ops,
        safe_indexing,
        simplify_movement,
        standard_kernels,
        view_reshape,
        winograd,
    )

    return (
        Phase("make-safe", ((0, safe_indexing.PASS),)),
        Phase(
            "canonicalise",
            (
                (1, fold_constant.PASS),
                (1, dead_code.PASS),
                (2, fold_affine.PASS),
                (2, simplify_movement.PASS),
                (2, elide_reshape.PASS),
                (2, fold_pad.PASS),
                (2, common_subexpr.PASS),
            ),
        ),
        Phase(
            "recover",
            (
                (2, recover_softmax.PASS),
                (2, recover_norm.PASS),
                (2, recover_activation.PASS),
                (2, recover_rope.PASS),
                (2, recover_attention.PASS),
            ),
        ),
        Phase(
            "restructure",
            (
                (2, fold_input_scale.PASS),
                (2, hoist_reshape.PASS),
                (2, merge_matmuls.PASS),
                (expand_attention.LEVEL, expand_attention.PASS),
            ),
        ),
        Phase(
            "layout",
            (
                (2, push_transpose.PASS),
                (2, elide_reshape.PASS),
                (2, standard_kernels.PASS),
                (2, block_layout.PASS),
                (3, winograd.PASS),
                (2, plane_conv.PASS),
                (2, gate_matmuls.PASS),
                (2, pack_matmul.PASS),
                (2, dead_code.PASS),
            ),
        ),
        Phase(
            "kernels",
            (
                (0, legalize.PASS),
                (2, fuse_kernels.PASS),
                (1, view_reshape.PASS),
                (3, reorder_ops.PASS),
            ),
        ),
        Phase("weights", ((0, lift_weights.PASS),)),
    )


def passes_for(phase: Phase, ctx: CompileContext) -> list[GraphPass]:
    """The passes of ``phase`` at the context's level, then the target's own.

    Level 0 is what other levels are verified against: of the target's passes it has only those
    that nothing can do without.

    Raises:
        TargetError: what the target adds to the phase are no passes.
    """
    chosen = [graph_pass for level, graph_pass in phase.passes if level <= ctx.level]
    extra = ctx.target.phase_overrides.get(phase.name)
    own = _own_passes(phase, extra, ctx) if extra else []
    return chosen + [graph_pass for graph_pass in own if ctx.level > 0 or not graph_pass.optional]


def _own_passes(phase: Phase, factory: Callable[..., Any], ctx: CompileContext) -> list[GraphPass]:
    """What a target's factory makes for ``phase``, checked: a third party wrote it."""
    from uif_tvm.compiler.graph_pass import GraphPass

    try:
        made = list(factory(ctx))
        odd = [type(item).__name__ for item in made if not isinstance(item, GraphPass)]
        fault = f"made {', '.join(odd)} instead of passes" if odd else ""
    except Exception as error:  # whatever it is, the target is what the user must look at
        made, fault = [], f"failed: {type(error).__name__}: {error}"
    if fault:
        raise TargetError(
            f"phase_overrides[{phase.name!r}] of target {ctx.target.id!r} {fault}",
            code="UIF-TARGET-BROKEN",
            target=ctx.target.id,
            hint="give a function of the context that returns a list of GraphPass objects",
        )
    return made
