"""The orders in which a graph's operators compute, so that transposes cost least.

Every operator that may compute in several orders has a label (see :mod:`.transpose_rules`); all
others, inputs and results have the order they were written in. A tensor is transposed once for
each order in which somebody reads it and that it is not made in:

    cost = sum over tensors v, orders b read and not made:  2 bytes(v) / bandwidth + launch

From the graph as written, moves are made while any lowers the cost. A move starts at one
transpose: the operator after it takes the order of what it reads, or the one before it makes what
is asked for, and that label is carried on through the region. Which of the region's operators then
take theirs is a minimum cut over costs of pairs; the true cost of the answer decides.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from uif_tvm.relay_passes.transpose_graph import Graph, Node, Use, Value
from uif_tvm.relay_passes.transpose_rules import Order, compose, essential, identity, inverse

from uif_tvm.compiler.gain import Gain
from uif_tvm.compiler.min_cut import Choices

if TYPE_CHECKING:
    from uif_tvm.target.spec import TargetSpec

#: Operators that a label is carried to in one move, at most.
_REGION = 512

Labels = dict[Node, Order]


class Plan(Graph):
    """Graph of one binding block, and the labels found for it; see the module text."""

    def __init__(self, block: Any, outside: set[Any], target: TargetSpec) -> None:
        """As for :class:`Graph`; times are those of ``target``."""
        super().__init__(block, outside)
        self.target = target
        self.labels: Labels = {}

    def moved(self, node: Node) -> bool:
        """Whether ``node`` computes in another order than it was written in."""
        return self.labels.get(node, identity(node.rule.rank)) != identity(node.rule.rank)

    def written(self) -> Gain:
        """What the transposes cost as the graph has them, as a negative gain."""
        total = Gain()
        for var, (axes, shape) in self.transposes.items():
            moving = essential(axes, shape)
            if list(moving) != sorted(moving):
                total += Gain(bytes=-2.0 * self.views[var][0].size, launches=-1)
        return total

    def stored(self, value: Value, labels: Labels) -> Order:
        """The order in which ``value`` is made."""
        if value.maker is None or value.maker not in labels:
            return identity(len(value.shape))
        return value.maker.rule.gives(labels[value.maker])

    def changes(self, value: Value, labels: Labels) -> dict[Order, list[Use]]:
        """Orders that ``value`` has to be transposed to -> who reads it so."""
        made = essential(self.stored(value, labels), value.shape)
        found: dict[Order, list[Use]] = defaultdict(list)
        for use in value.uses:
            wanted = use.wanted(labels.get(use.reader) if use.reader else None)
            order = essential(wanted or (), value.shape)
            if order != made and not (use.swaps and _swapped(order) == made):
                found[order].append(use)
        return found

    def gain(self, value: Value, labels: Labels) -> Gain:
        """What the transposes of ``value`` cost, as a negative gain."""
        found = self.changes(value, labels)
        return Gain(bytes=-2.0 * value.size * len(found), launches=-len(found))

    def cost(self, values: set[Value], labels: Labels) -> float:
        """Microseconds that the transposes of ``values`` take."""
        return -sum(self.gain(value, labels).microseconds(self.target) for value in values)

    def improve(self) -> Iterator[tuple[Use, set[Node], Gain]]:
        """Make moves while they pay; yields where each started, what it moved and its gain."""
        pending = deque(self._mismatches())
        while pending:
            use = pending.popleft()
            move = self._best(use)
            if move is None:
                continue
            changed, labels = move
            near = self._near(changed)
            before = sum((self.gain(v, self.labels) for v in near), Gain())
            self.labels = labels
            after = sum((self.gain(v, labels) for v in near), Gain())
            saved = Gain(after.bytes - before.bytes, after.launches - before.launches)
            yield use, changed, saved
            again = [u for v in near for us in self.changes(v, labels).values() for u in us]
            pending = deque([*again, *(u for u in pending if u not in again)])

    def _mismatches(self) -> list[Use]:
        return [
            use
            for value in self.values.values()
            for uses in self.changes(value, self.labels).values()
            for use in uses
        ]

    def _best(self, use: Use) -> tuple[set[Node], Labels] | None:
        """The cheapest labels that some move at ``use`` leads to, ``None`` if none is cheaper."""
        best, least = None, -1e-9
        for start, label in self._starts(use):
            region = self._carry(start, label)
            for chosen in (self._cut(region), set(region), {start}):
                if not chosen:
                    continue
                labels = self.labels | {node: region[node] for node in chosen}
                near = self._near(chosen)
                delta = self.cost(near, labels) - self.cost(near, self.labels)
                if delta < least:
                    best, least = (chosen, labels), delta
        return best

    def _starts(self, use: Use) -> Iterator[tuple[Node, Order]]:
        value = use.value
        if use.reader is not None:
            yield from self._label_for_use(use, self.stored(value, self.labels))
        if value.maker is not None:
            wanted = use.wanted(self.labels.get(use.reader) if use.reader else None)
            label = None if wanted is None else value.maker.rule.from_result(wanted)
            if label is not None and value.maker.rule.refuses(label) is None:
                yield value.maker, label

    def _label_for_use(self, use: Use, stored: Order) -> Iterator[tuple[Node, Order]]:
        """The reader with the label under which ``use`` reads what is ``stored``."""
        if use.reader is None:
            return
        label = use.reader.rule.from_operand(use.index, compose(inverse(use.order), stored))
        if label is not None and use.reader.rule.refuses(label) is None:
            yield use.reader, label

    def _carry(self, start: Node, label: Order) -> Labels:
        """Labels for the region around ``start`` under which nothing inside is transposed."""
        found = {start: label}
        pending = deque([start])
        while pending and len(found) < _REGION:
            node = pending.popleft()
            steps: list[tuple[Node, Order]] = []
            for value in node.results:
                made = node.rule.gives(found[node])
                for use in value.uses:
                    steps += self._label_for_use(use, made)
            for use in node.uses:
                wanted, maker = use.wanted(found[node]), use.value.maker
                if maker is None or wanted is None:
                    continue
                carried = maker.rule.from_result(wanted)
                if carried is not None and maker.rule.refuses(carried) is None:
                    steps.append((maker, carried))
            for other, carried in steps:
                if other not in found and self._differs(other, carried):
                    found[other] = carried
                    pending.append(other)
        return found

    def _differs(self, node: Node, label: Order) -> bool:
        """Whether ``label`` is another one than that of ``node``, axes of 1 aside."""
        present = self.labels.get(node, identity(node.rule.rank))
        shape = node.results[0].shape if node.results else ()
        old, new = node.rule.gives(present), node.rule.gives(label)
        return label != present and essential(old, shape) != essential(new, shape)

    def _cut(self, region: Labels) -> set[Node]:
        """The part of ``region`` that takes its label, by a minimum cut over pairs."""
        choices = Choices()
        index = {node: choices.node() for node in region}
        for value in self._near(set(region)):
            maker = value.maker if value.maker in region else None
            for use in value.uses:
                reader = use.reader if use.reader in region else None
                self._pair(choices, index, value, use, maker, reader, region)
        solved = choices.solve()
        return {node for node in region if index[node] in solved}

    def _pair(
        self,
        choices: Choices,
        index: dict[Node, int],
        value: Value,
        use: Use,
        maker: Node | None,
        reader: Node | None,
        region: Labels,
    ) -> None:
        """Costs of one use under the four answers of its two ends."""
        once = Gain(bytes=2.0 * value.size, launches=1).microseconds(self.target)

        def cost(moved_maker: bool, moved_reader: bool) -> float:
            labels = dict(self.labels)
            if moved_maker and maker is not None:
                labels[maker] = region[maker]
            if moved_reader and reader is not None:
                labels[reader] = region[reader]
            made = essential(self.stored(value, labels), value.shape)
            wanted = use.wanted(labels.get(use.reader) if use.reader else None)
            order = essential(wanted or (), value.shape)
            return 0.0 if order == made or (use.swaps and _swapped(order) == made) else once

        if maker is None and reader is None:
            return
        if maker is None or reader is None or maker is reader:
            only = index[maker or reader]  # type: ignore[index]
            choices.cost(only, yes=cost(True, True), no=cost(False, False))
            return
        stay, both = cost(False, False), cost(True, True)
        up, down = cost(True, False), cost(False, True)
        # E = stay + (up - stay) m + (both - up) r + (down + up - stay - both) (1 - m) r
        for node, slope in ((maker, up - stay), (reader, both - up)):
            choices.cost(index[node], yes=max(slope, 0.0), no=max(-slope, 0.0))
        choices.apart(index[reader], index[maker], max(down + up - stay - both, 0.0))

    @staticmethod
    def _near(nodes: set[Node]) -> set[Value]:
        """Tensors that the nodes make or read."""
        return {value for node in nodes for value in node.results} | {
            use.value for node in nodes for use in node.uses
        }


def _swapped(order: Order) -> Order:
    return (*order[:-2], order[-1], order[-2]) if len(order) > 1 else order
