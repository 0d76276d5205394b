"""Which kernels become one: groups that grow along edges as long as it pays.

Two rules, over the calls of one block, each group with one result:

1. *Anchors* (convolutions, products, normalisations, reductions), in order, take what follows:
   the smallest set of readers behind which a single result is left, again and again. Kernels of
   the row family also take reductions of the same rows, so that a softmax or a normalisation
   written in primitive operations becomes one kernel. The target's schedules have the last word
   (``fusion_trial``); a group they refuse is cut back.
2. *Producers*, from the last to the first, join the kernel that reads them, when it is the only
   one and computing the value there saves more than it repeats (``fusion_gain``).

No cycle can arise: a group is entered from anywhere but left through its result alone, which
comes after all that its members read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from uif_tvm.relay_passes import fusion_gain
from uif_tvm.relay_passes.fusion_facts import BROADCAST, INJECTIVE, REDUCTION, ROW
from uif_tvm.relay_passes.fusion_graph import Node

from uif_tvm.compiler.gain import Gain

if TYPE_CHECKING:
    from uif_tvm.target.spec import TargetSpec

#: Readers named in a reason.
SHOWN = 2
#: Kernels of one group; code generators take long over longer chains.
MAX_MEMBERS = 256
#: Operands of one kernel.
MAX_ARGUMENTS = 96
#: Operations of one element's formula: where each operator reads its operand several times, the
#: written-out formula grows by that factor with every one of them, and compilers never end.
MAX_FORMULA = 3000

#: ``(members, anchor) -> why the target has no schedule for them together``, empty if it has.
Trial = Callable[[list[Node], Node], str]


@dataclass(eq=False)
class Group:
    """Kernels that become one.

    Args:
        members: in order; the last has the result.
        anchor: the member whose schedule the kernel has; ``None`` for element-wise chains.
        gain: what the merge saves.
    """

    members: list[Node]
    anchor: Node | None = None
    gain: Gain = field(default_factory=Gain)

    @property
    def output(self) -> Node:
        """The member whose result leaves the group."""
        return self.members[-1]


class Grouping:
    """Groups over the nodes of one block, and why each edge between groups was not taken."""

    def __init__(self, nodes: list[Node], target: TargetSpec, trial: Trial) -> None:
        self._nodes = nodes
        self._target = target
        self._trial = trial
        self._group = {node: Group([node], node if _is_anchor(node) else None) for node in nodes}
        #: (producer, reader) -> why they are not one kernel, in the order of the decisions.
        self._declined: dict[tuple[Node, Node], tuple[str, Gain | None]] = {}

    def run(self) -> list[Group]:
        """Form the groups; those of one member included, in the order of their results."""
        for node in self._nodes:
            if _is_anchor(node) and len(self._group[node].members) == 1:
                self._grow(self._group[node])
        for node in reversed(self._nodes):
            group = self._group[node]
            if group.output is node and node.readers:
                self._join(group)
        groups = dict.fromkeys(self._group[node] for node in self._nodes)
        return sorted(groups, key=lambda group: group.output.index)

    def why_apart(self, producer: Node, reader: Node) -> tuple[str, Gain | None]:
        """Why two kernels, one of which reads the other's result, did not become one."""
        known = self._declined.get((producer, reader))
        if known is not None:
            return known
        if producer.alone or reader.alone:
            return producer.alone or reader.alone, None
        group = self._group[producer]
        if group is self._group[reader]:
            return "a reshape at the rim of a kernel is a view when it stands alone", None
        if producer.outside:
            return _written_anyway(producer.outside), None
        others = [node.source for node in producer.readers if node is not reader]
        if others:
            return _written_anyway(", ".join(others[:3])), None
        return f"{producer.facts.name} is {producer.facts.kind}, {reader.facts.name} is " \
               f"{reader.facts.kind}", None  # fmt: skip

    # Anchors and what follows them.

    def _grow(self, group: Group) -> None:
        """Let an anchor take what follows, as far as the target has a schedule for it."""
        states = [(list(group.members), Gain())]
        while True:
            step = self._widen(states[-1][0], group.anchor)
            if step is None:
                break
            saved = self._saved_by_growing(states[-1][0], step)
            states.append((sorted([*states[-1][0], *step], key=_index), states[-1][1] + saved))
        for members, gain in reversed(states[1:]):
            refusal = self._trial(members, group.anchor or group.output)
            if not refusal:
                group.members, group.gain = members, gain
                for node in members:
                    self._group[node] = group
                return
            self._decline_entry(members, states, refusal)

    def _decline_entry(
        self, members: list[Node], states: list[tuple[list[Node], Gain]], refusal: str
    ) -> None:
        """Note a refusal at the edges into what the refused state had added."""
        at = next(i for i, state in enumerate(states) if state[0] is members)
        before = states[at - 1][0]
        for reader in before[-1].readers:
            self._decline(before[-1], reader, refusal)

    def _widen(self, members: list[Node], anchor: Node | None) -> list[Node] | None:
        """The readers to add so that one result is left again; ``None`` when that fails."""
        inside, added = set(members), []
        output = members[-1]
        if output.outside or not output.readers:
            return None
        pending = set(output.readers)
        while pending:
            node = min(pending, key=_index)
            pending.discard(node)
            reason = self._no_follower(node, inside, anchor)
            if not reason and len(inside) >= MAX_MEMBERS:
                reason = f"the kernel has {MAX_MEMBERS} parts already"
            if not reason:
                reason = _too_long([*inside, node])
            if not reason and node.outside and pending:
                reason = f"{node.source} is also read by {node.outside}"
            if reason:
                for producer in _producers(node):
                    if producer in inside:
                        self._decline(producer, node, reason)
                return None
            inside.add(node)
            added.append(node)
            if pending:
                pending |= set(node.readers) - inside
        return added

    def _no_follower(self, node: Node, inside: set[Node], anchor: Node | None) -> str:
        """Why ``node`` cannot follow an anchor in its kernel; empty when it can."""
        if node.alone or not node.facts.fusable:
            return node.alone or f"{node.facts.name} is {node.facts.kind}"
        if len(self._group[node].members) > 1:
            where = self._group[node]
            return f"{node.source} is in the kernel of {(where.anchor or where.output).source}"
        rows = fusion_gain.rows_of(anchor) if anchor is not None else None
        if rows is not None:
            return _no_row_stage(node, rows)
        if node.facts.pattern > BROADCAST:
            return f"{node.facts.name} is {node.facts.kind}, not element-wise"
        for producer in _producers(node):
            if producer in inside and not _reads_in_place(node, producer):
                return f"{node.facts.name} reads it at other points than it is written at"
        return ""

    @staticmethod
    def _saved_by_growing(members: list[Node], added: list[Node]) -> Gain:
        total = Gain()
        for node in [members[-1], *added[:-1]]:
            total += Gain(bytes=node.bytes * (1 + len(node.readers)), launches=1)
        return total

    # Producers and the kernel that reads them.

    def _join(self, group: Group) -> None:
        """Put a group of element-wise kernels into the kernel that reads its result."""
        output = group.output
        homes = list(dict.fromkeys(self._group[reader] for reader in output.readers))
        refusal, gain = self._no_join(group, homes)
        if refusal:
            for reader in output.readers:
                self._decline(output, reader, refusal, gain)
            return
        (home,) = homes
        members = sorted([*group.members, *home.members], key=_index)
        if home.anchor is not None:
            refusal = self._trial(members, home.anchor)
            if refusal:
                for reader in output.readers:
                    self._decline(output, reader, refusal)
                return
        home.members, home.gain = members, home.gain + group.gain + (gain or Gain())
        for node in group.members:
            self._group[node] = home

    def _no_join(self, group: Group, homes: list[Group]) -> tuple[str, Gain | None]:
        """Why the group cannot join its reader, or what it gains."""
        output = group.output
        if any(node.alone or not node.facts.fusable for node in group.members):
            return output.alone or f"{output.facts.name} is {output.facts.kind}", None
        if output.outside:
            return _written_anyway(output.outside), None
        if len(homes) > 1:
            readers = list(dict.fromkeys(home.output.source for home in homes))
            more = f" and {len(readers) - SHOWN} more" if len(readers) > SHOWN else ""
            who = ", ".join(readers[:SHOWN]) + more
            return f"{len(homes)} kernels read its result, so it is written anyway: {who}", None
        (home,) = homes
        if len(group.members) + len(home.members) > MAX_MEMBERS:
            return f"the kernel would have more than {MAX_MEMBERS} parts", None
        if self._arguments(group, home) > MAX_ARGUMENTS:
            return f"the kernel would have more than {MAX_ARGUMENTS} operands", None
        long = _too_long([*group.members, *home.members])
        if long:
            return long, None
        if group.anchor is not None:
            return f"{group.anchor.facts.name} is {group.anchor.facts.kind}", None
        return self._priced_join(group, home)

    def _priced_join(self, group: Group, home: Group) -> tuple[str, Gain | None]:
        output, readers = group.output, group.output.readers
        table = _gathered_table(group)
        if home.anchor is not None and table is not None:
            return f"{table.source}, which it gathers from, is computed for the read elements " \
                   "alone when the two are one kernel", None  # fmt: skip
        for reader in readers:
            reason = reader.alone or _read_apart(reader, output) or _no_reader(reader, output, home)
            if reason:
                return reason, None
        repeats = fusion_gain.repeats_of(output, readers)
        rows = fusion_gain.rows_of(home.anchor) if home.anchor is not None else None
        if rows is not None:
            repeats = fusion_gain.row_repeats(output, rows)
        anchored = home.anchor is not None and home.anchor.facts.family is not None
        gain = fusion_gain.joining(output, readers, repeats, anchored)
        saved = gain.microseconds(self._target)
        if saved <= 0:
            return (
                f"does not pay: each element would be computed {repeats:.4g} times, "
                f"{-saved:.3g} us lost"
            ), gain
        return "", gain

    @staticmethod
    def _arguments(group: Group, home: Group) -> int:
        inside = {*group.members, *home.members}
        return sum(
            made is None or made[0] not in inside for node in inside for made in node.producers
        )

    def _decline(self, producer: Node, reader: Node, reason: str, gain: Gain | None = None) -> None:
        self._declined.setdefault((producer, reader), (reason, gain))


def _too_long(members: list[Node]) -> str:
    """Why the kernel of ``members`` would have too long a formula; empty where it has not."""
    lengths: dict[Node, float] = {}
    longest = 0.0
    for node in sorted(members, key=_index):
        length, counts = node.facts.formula
        for position, made in enumerate(node.producers):
            if made is not None:
                length += counts[position] * lengths.get(made[0], 0.0)
        longest = max(longest, length)
        # What an anchor computes is stored: its readers load one value.
        lengths[node] = 1.0 if _is_anchor(node) else length
    if longest <= MAX_FORMULA:
        return ""
    return f"the formula of one element would have {longest:.3g} operations, {MAX_FORMULA} at most"


def _written_anyway(who: str) -> str:
    return f"its result is also read by {who}, so it is written anyway"


def _index(node: Node) -> int:
    return node.index


def _is_anchor(node: Node) -> bool:
    return node.facts.fusable and not node.alone and node.facts.pattern >= REDUCTION


def _producers(node: Node) -> list[Node]:
    return list(dict.fromkeys(made[0] for made in node.producers if made is not None))


def _reads_in_place(node: Node, producer: Node) -> bool:
    return all(reading.same_point for reading in node.readings(producer))


def _no_row_stage(node: Node, rows: tuple[int | None, ...]) -> str:
    """Why ``node`` is no stage of a kernel that walks ``rows``; empty when it may be one."""
    if node.facts.pattern > BROADCAST and node.facts.family != ROW:
        return f"{node.facts.name} is {node.facts.kind}, not a stage over rows"
    own = fusion_gain.rows_of(node) if node.facts.family == ROW else node.shape[: len(rows)]
    if own != rows or len(node.shape) > len(rows) + 1:
        return f"{node.facts.name} walks {list(node.shape)}, not rows of {list(rows)}"
    return ""


def _read_apart(reader: Node, producer: Node) -> str:
    """Why a result may not be computed where it is read: as two operands, at different points.

    Joining kernels makes the operands one buffer, of which TVM then records only what the first
    operand reads; a schedule that computes what is recorded leaves the rest unwritten.
    """
    readings = reader.readings(producer)
    if len(readings) > 1 and not all(reading.same_point for reading in readings):
        return f"{reader.facts.name} reads it as {len(readings)} operands, at different points"
    return ""


def _no_reader(reader: Node, producer: Node, home: Group) -> str:
    """Why ``reader`` cannot compute what it reads; empty when it can."""
    if not reader.facts.fusable:
        return f"{reader.facts.name} is {reader.facts.kind}"
    anchor = home.anchor
    if anchor is None:
        return ""
    if any(reading.gathered for reading in reader.readings(producer)):
        return f"{reader.facts.name} gathers from it: {anchor.facts.name} would compute all of it"
    whole_rows = anchor.facts.family == ROW and producer.facts.keeps_last_axis
    if producer.facts.pattern > BROADCAST and not whole_rows:
        return f"{producer.facts.name} is {producer.facts.kind}: {anchor.facts.name} would read " \
               "its operands out of order"  # fmt: skip
    if not _feeds(reader, anchor) or anchor.facts.family == ROW:
        return ""
    if anchor.facts.pattern == REDUCTION:
        return ""
    repeats = fusion_gain.repeats_of(producer, [reader])
    return (
        f"{anchor.facts.name} reads each element {repeats:.4g} times and would compute it as often"
    )


def _gathered_table(group: Group) -> Node | None:
    """A value that the group gathers from, if it could be computed where it is read."""
    for node in group.members:
        for producer in _producers(node):
            joinable = producer.facts.fusable and not (producer.alone or producer.outside)
            gathered = any(reading.gathered for reading in node.readings(producer))
            only_here = producer.readers == [node] and producer.facts.pattern <= INJECTIVE
            if joinable and gathered and only_here:
                return producer
    return None


def _feeds(node: Node, anchor: Node) -> bool:
    """Whether ``node`` is the anchor or computes something that the anchor needs."""
    seen, pending = {anchor}, [anchor]
    while pending:
        for producer in _producers(pending.pop()):
            if producer not in seen and producer.index >= node.index:
                seen.add(producer)
                pending.append(producer)
    return node in seen
