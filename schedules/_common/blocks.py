"""Verbs over the blocks of one fused kernel: find the anchor, inline what surrounds it.

Every hand-written rule starts the same way: turn the function into a schedule, find the block
that carries the family annotation, and fold the element-wise blocks of the prologue and epilogue
into as few blocks as possible.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uif_tvm.target.schedule import FAMILY_ATTR, OTHER_FAMILY
from uif_tvm.target.spec import Refusal

if TYPE_CHECKING:
    from tvm.s_tir import Schedule
    from tvm.tirx import PrimFunc


@dataclass(frozen=True)
class BlockFacts:
    """What rules ask about one block.

    Args:
        rv: the schedule's handle.
        name: unique block name.
        family: value of the family annotation, or ``None``.
        spatial: every iteration variable is data parallel and there is no initial value.
        reduction: every variable is data parallel or a reduction, with at least one of these.
        simple: the body is one store (not an opaque region, not several statements).
        writes: the buffer written (the first, should there be several).
    """

    rv: Any
    name: str
    family: str | None
    spatial: bool
    reduction: bool
    simple: bool
    writes: Any


def open_schedule(func: PrimFunc) -> Schedule | Refusal:
    """A schedule over ``func`` as ``main``, or a refusal when it is not schedulable TIR."""
    import tvm
    from tvm import s_tir

    body = func.body
    if not isinstance(body, s_tir.SBlockRealize):
        return Refusal("not-schedulable", "the function has no root block")
    try:
        return s_tir.Schedule(tvm.IRModule({"main": func}), debug_mask="none")
    except Exception as error:
        return Refusal("not-schedulable", str(error).splitlines()[-1][:200])


def child_blocks(sch: Schedule) -> list[BlockFacts]:
    """All blocks directly below the root, in program order.

    The root of a function that is one opaque region carries that region's name.
    """
    root = str(sch.mod["main"].body.block.name_hint)
    return [_facts(sch, rv) for rv in sch.get_child_blocks(sch.get_sblock(root))]


def _facts(sch: Schedule, rv: Any) -> BlockFacts:
    from tvm import tirx

    block = sch.get(rv)
    kinds = [var.iter_type for var in block.iter_vars]
    spatial_kind, reduce_kind = tirx.IterVar.DataPar, tirx.IterVar.CommReduce
    family = block.annotations.get(FAMILY_ATTR)
    return BlockFacts(
        rv=rv,
        name=str(block.name_hint),
        family=None if family is None else str(family),
        spatial=block.init is None and all(kind == spatial_kind for kind in kinds),
        reduction=block.init is not None
        and reduce_kind in kinds
        and all(kind in (spatial_kind, reduce_kind) for kind in kinds),
        simple=isinstance(block.body, tirx.BufferStore) and not block.match_buffers,
        writes=block.writes[0].source if len(block.writes) else None,
    )


def find_anchor(sch: Schedule, family: str) -> BlockFacts | Refusal:
    """The only block of ``family``; a kernel with none or several is refused."""
    found = [facts for facts in child_blocks(sch) if facts.family == family]
    if len(found) != 1:
        return Refusal(OTHER_FAMILY, f"{len(found)} blocks of family {family!r}, need 1")
    return found[0]


def family_of(func: PrimFunc) -> str | None:
    """The family annotation found in ``func`` (the first, in program order), or ``None``.

    Cheap: looks at annotations only, so that rules can decline before they build a schedule.
    """
    import tvm_ffi
    from tvm import s_tir

    found: list[str] = []

    def visit(block: Any) -> None:
        if FAMILY_ATTR in block.annotations:
            found.append(str(block.annotations[FAMILY_ATTR]))

    tvm_ffi.structural_walk(func.body, [(s_tir.SBlock, visit)], order="pre")
    return found[0] if found else None


def inline_epilogue(sch: Schedule, anchor: Any) -> Any | Refusal:
    """Fold all element-wise blocks after ``anchor`` into the kernel's one result block.

    Returns:
        the result block, which reads the anchor's buffer (directly, or through the family's own
        copy-out stage folded into it); or a refusal when the kernel has several results, or a
        block in between that cannot be folded.
    """
    from tvm.s_tir.schedule import ScheduleError

    name = sch.get(anchor).name_hint
    outputs = sch.get_output_blocks(sch.get_sblock("root"))
    if len(outputs) != 1:
        return Refusal("several-results", f"{len(outputs)} result blocks, need 1")
    result = sch.get(outputs[0]).name_hint
    order = [facts.name for facts in child_blocks(sch)]
    for facts in child_blocks(sch)[order.index(name) + 1 :]:
        if facts.name == result:
            continue
        if not (facts.spatial and facts.simple):
            return Refusal("epilogue", f"block {facts.name!r} is not element-wise")
        try:
            sch.compute_inline(facts.rv)
        except ScheduleError as error:
            return Refusal("epilogue", f"{facts.name!r}: {str(error).splitlines()[-1][:160]}")
    return sch.get_sblock(result)


def static_extents(sch: Schedule, loops: list[Any]) -> list[int] | None:
    """Extents of ``loops``, or ``None`` when one of them is symbolic."""
    from tvm import tirx

    extents = [sch.get(loop).extent for loop in loops]
    if not all(isinstance(extent, tirx.IntImm) for extent in extents):
        return None
    return [int(extent) for extent in extents]
