"""Ways to relieve a tier that is too full at some slot, each with its price.

- a value moves to another tier that kernels can address, with room, and is used there: it costs
  the difference of the bandwidths;
- weights move to a tier that kernels cannot address and are brought in for each use: a transfer
  for each;
- an activation that nobody uses for a while is moved out and back in: two transfers;
- or it is moved between two uses to a tier that kernels can address, and used there: one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from uif_tvm.compiler.memory.layout import Layout, Placed, price
from uif_tvm.compiler.memory.tiers import Value, reachable
from uif_tvm.target.spec import MemoryTier


@dataclass(frozen=True)
class Relief:
    """One way: the value's new stays, and what that costs per run, microseconds."""

    value: Value
    stays: tuple[Placed, ...]
    us: float


def cheapest(layout: Layout, tier: MemoryTier, slot: int) -> Relief | None:
    """The way that costs least for each byte that it frees in ``tier`` at ``slot``."""
    ways = [
        (way.us / way.value.size, way.value.name, index, way)
        for item in layout.stays(tier)
        if item.start <= slot < item.end
        for index, way in enumerate(_ways(layout, item, slot))
    ]
    return min(ways, key=lambda way: way[:3])[3] if ways else None


def _ways(layout: Layout, item: Placed, slot: int) -> Iterator[Relief]:
    for tier in layout.tiers:
        if tier is item.tier or item.value.kind not in tier.holds:
            continue
        if reachable(tier):
            yield from _moved(layout, item, tier)
        elif item.value.kind == "weights" and item.source is None:
            yield from _brought_in(layout, item, tier, slot)
        if item.value.kind == "activations":
            yield from _swapped(layout, item, tier, slot)
            if reachable(tier):
                yield from _handed_over(layout, item, tier, slot)


def _moved(layout: Layout, item: Placed, tier: MemoryTier) -> Iterator[Relief]:
    alone = len(layout.of(item.value)) == 1
    if alone and layout.room(tier, item.start, item.end) >= item.bytes:
        us = price(item.value.traffic, tier) - price(item.value.traffic, item.tier)
        reason = f"no room in {item.tier.name}"
        stay = Placed(item.value, tier, item.start, item.end, reason)
        yield Relief(item.value, (stay,), us)


def _brought_in(layout: Layout, item: Placed, tier: MemoryTier, slot: int) -> Iterator[Relief]:
    value = item.value
    home = Placed(value, tier, item.start, item.end, f"no room in {item.tier.name} all the time")
    windows: list[Placed] = []
    for use in value.uses:
        start, end = 2 * use, 2 * use + 2
        if windows and start <= windows[-1].end:
            windows[-1].end = end
        else:
            reason = f"brought in from {tier.name} for kernel {use}"
            windows.append(Placed(value, item.tier, start, end, reason, home))
    if any(window.start <= slot < window.end for window in windows):
        return
    if layout.room(tier, item.start, item.end) >= item.bytes:
        us = len(windows) * layout.transfer_us(value, tier, item.tier)
        yield Relief(value, (home, *windows), us)


def _swapped(layout: Layout, item: Placed, tier: MemoryTier, slot: int) -> Iterator[Relief]:
    for use, then in pairwise(item.uses):
        out, back = 2 * use + 2, 2 * then
        if not out < slot < back:
            continue
        if layout.room(tier, out, back + 1) < item.bytes:
            continue
        value = item.value
        why = f"not used between kernels {use} and {then}, and no room in {item.tier.name}"
        before = Placed(value, item.tier, item.start, out + 1, item.reason, item.source)
        away = Placed(value, tier, out, back + 1, why, before)
        reason = f"brought back from {tier.name} for kernel {then}"
        after = Placed(value, item.tier, back, item.end, reason, away)
        us = 2 * layout.transfer_us(value, tier, item.tier)
        yield Relief(value, _with_others(layout, item, after, (before, away, after)), us)


def _handed_over(layout: Layout, item: Placed, tier: MemoryTier, slot: int) -> Iterator[Relief]:
    for use, then in pairwise(item.uses):
        out = 2 * use + 2
        if not out < slot or layout.room(tier, out, item.end) < item.bytes:
            continue
        value = item.value
        why = f"no room in {item.tier.name} for kernel {then} and after"
        before = Placed(value, item.tier, item.start, out + 1, item.reason, item.source)
        after = Placed(value, tier, out, item.end, why, before)
        traffic = value.size * value.accesses * len(after.uses)
        us = layout.transfer_us(value, tier, item.tier)
        us += price(traffic, tier) - price(traffic, item.tier)
        yield Relief(value, _with_others(layout, item, after, (before, after)), us)


def _with_others(
    layout: Layout, old: Placed, new: Placed, made: tuple[Placed, ...]
) -> tuple[Placed, ...]:
    """``made`` in place of ``old``, and the value's other stays with ``new`` as their source."""
    others = []
    for other in layout.of(old.value):
        if other.source is old:
            other = Placed(other.value, other.tier, other.start, other.end, other.reason, new)
        if other is not old:
            others.append(other)
    return (*made, *others)
