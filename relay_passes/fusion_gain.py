"""What it saves to compute a value inside of the kernels that read it.

A value that stays inside a merged kernel is neither written nor read again, and one launch less is
needed. Against that stands repeated work: a kernel that reads each element ``k`` times computes it
``k`` times, when its schedule folds the producer into it. Schedules do not repeat costly work; they
keep the value in a buffer of the kernel then, which saves the launch alone.
"""

from __future__ import annotations

from uif_tvm.relay_passes.fusion_facts import ROW
from uif_tvm.relay_passes.fusion_graph import Node

from uif_tvm.compiler.gain import Gain

#: Operations per element up to which a schedule computes a value again rather than keep it.
CHEAP_OPERATIONS = 4


def joining(producer: Node, readers: list[Node], repeats: float, anchored: bool) -> Gain:
    """The gain of computing ``producer`` where its ``readers``, all of them, are computed.

    Args:
        repeats: how often the readers' kernel reads each element, at different points.
        anchored: the kernel has a schedule of its own, which keeps no element-wise value.
    """
    moved = producer.bytes * (1 + min(1.0, repeats) * len(readers))
    elements = producer.bytes / element_bytes(producer)
    if elements <= 1:
        repeats = 1.0  # the same in every iteration: compilers compute it in front of the loops
    costly = producer.facts.operations > CHEAP_OPERATIONS
    if costly and not anchored and (repeats > 1 or len(readers) > 1):
        return Gain(launches=1)
    work = (repeats - 1) * producer.facts.operations * elements
    return Gain(bytes=moved, launches=1, flops=-work, dtype=element_type(producer))


def repeats_of(producer: Node, readers: list[Node]) -> float:
    """How often each element of ``producer`` is read at different points.

    Readers at the same point share one computation, so the largest of their figures counts.
    """
    return max(reading.repeats for node in readers for reading in node.readings(producer))


def row_repeats(producer: Node, rows: tuple[int | None, ...]) -> float:
    """How often a kernel that walks ``rows`` computes ``producer``: once a row, unless shared."""
    shape = producer.shape
    if shape[: len(rows)] == rows:
        return 1.0
    walked, own = 1, 1
    for at, extent in enumerate(rows):
        walked *= extent or 1
        own *= (shape[at] or 1) if at < len(shape) - 1 else 1
    return max(1.0, walked / max(1, own))


def rows_of(anchor: Node) -> tuple[int | None, ...] | None:
    """Extents of the axes that number a row kernel's rows; ``None`` for other kernels."""
    if anchor.facts.family != ROW or not anchor.operands:
        return None
    from uif_tvm.relay_passes.fusion_graph import extents_of

    read, written = extents_of(anchor.operands[0].ty), anchor.shape
    shared = 0
    while shared < min(len(read), len(written)) and read[shared] == written[shared]:
        shared += 1
    return read[: min(shared, len(read) - 1)] if read else None


def element_type(node: Node) -> str:
    """Element type of a node's first result."""
    dtype = node.fields[0].dtype
    return str(dtype.dtype if hasattr(dtype, "dtype") else dtype)


def element_bytes(node: Node) -> int:
    """Bytes of one element of a node's first result."""
    from uif_tvm.target.spec import dtype_bytes

    return max(1, dtype_bytes(element_type(node)))
