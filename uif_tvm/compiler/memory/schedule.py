"""From stays over slots to a schedule: transfers between kernels, and positions for both."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from uif_tvm.compiler.memory.layout import Layout, Placed, price
from uif_tvm.compiler.memory.problem import Buffer, Plan, arena_of, lower_bound
from uif_tvm.compiler.memory.tiers import Stay, Tiering, Transfer, Value, reachable


def tiering(layout: Layout, kernels: int, values: Sequence[Value]) -> Tiering:
    """The result of an assignment whose tiers all fit."""
    names = layout.names()
    arriving: dict[int, list[tuple[Placed, Placed]]] = defaultdict(list)  # with its source
    for item in layout.stays():
        if item.source is not None:
            arriving[item.start].append((item, item.source))
    schedule: list[int | Transfer] = []
    kernel_at: list[int] = []
    arrival: dict[Placed, int] = {}
    departure: dict[Placed, int] = {}  # the last one
    for kernel in range(kernels):
        # What leaves makes room before other things come in.
        slot = arriving[2 * kernel]
        for item, source in sorted(slot, key=lambda pair: (len(pair[0].uses) > 0, names[pair[0]])):
            arrival[item] = departure[source] = len(schedule)
            schedule.append(_transfer(layout, item, source, names))
        kernel_at.append(len(schedule))
        schedule.append(kernel)
    stays = []
    for item in layout.stays():
        first, end = _range(item, arrival, departure, kernel_at, len(schedule))
        stays.append(Stay(names[item], item.value.name, item.tier.name, first, end, item.reason))
    return Tiering(tuple(schedule), tuple(stays), _plans(layout, stays, values), _saved(layout))


def _transfer(layout: Layout, item: Placed, source: Placed, names: dict[Placed, str]) -> Transfer:
    return Transfer(
        value=item.value.name,
        source=names[source],
        destination=names[item],
        source_tier=source.tier.name,
        destination_tier=item.tier.name,
        bytes=item.value.size,
        us=layout.transfer_us(item.value, source.tier, item.tier),
    )


def _range(
    item: Placed,
    arrival: dict[Placed, int],
    departure: dict[Placed, int],
    kernel_at: Sequence[int],
    count: int,
) -> tuple[int, int]:
    """First position of a stay, and the one after its last."""
    if item.value.kind == "weights" and item.source is None:
        return 0, max(count, 1)
    uses = item.uses
    first = arrival[item] if item in arrival else kernel_at[uses[0]]
    ends = [kernel_at[uses[-1]]] if uses else []
    if item in departure:
        ends.append(departure[item])
    return first, max(ends) + 1


def _plans(layout: Layout, stays: Sequence[Stay], values: Sequence[Value]) -> dict[str, Plan]:
    """Plans over positions, with the offsets of the plans over slots.

    Positions tell more than slots about who is alive together, so that those offsets hold.
    """
    known = {value.name: value for value in values}
    plans = {}
    for tier in layout.tiers:
        buffers = [
            Buffer(
                stay.name,
                stay.first,
                stay.end,
                known[stay.value].size,
                known[stay.value].alignment,
            )
            for stay in stays
            if stay.tier == tier.name
        ]
        if buffers:
            found = layout.plan(tier)
            arena, bound = arena_of(buffers, found.offsets), lower_bound(buffers)
            plans[tier.name] = Plan(found.offsets, arena, bound, found.method)
    return plans


def _saved(layout: Layout) -> float:
    """Traffic time saved against the slowest tier that kernels can address, microseconds."""
    in_reach = [tier for tier in layout.tiers if reachable(tier)]
    slowest = min(in_reach, key=lambda tier: tier.gbps)
    saved = 0.0
    for item in layout.stays():
        if reachable(item.tier):
            traffic = item.value.size * item.value.accesses * len(item.uses)
            saved += price(traffic, slowest) - price(traffic, item.tier)
    return saved
