"""Which tier each value lives in, and when it moves.

1. Every value begins in the largest tier that kernels can address and that may hold its kind.
2. Faster tiers, the fastest first, take the values that save most traffic time, within their
   capacity at every step. They are filled greedily by several measures (time saved per byte and
   step, per byte, in all) and, unless everything fits, by a knapsack over time; the best is kept.
3. A tier that is too small is relieved at its fullest step, by the cheapest way for each byte
   (see ``relief``), until its plan fits.
4. Where there is room, what is brought in is kept for its next use, or brought in a kernel early.

Every plan that counts is one of the planner's, so that capacity is kept with fragmentation and all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from uif_tvm.compiler.memory.knapsack import Item, choose
from uif_tvm.compiler.memory.layout import Layout, Placed, price
from uif_tvm.compiler.memory.relief import cheapest
from uif_tvm.compiler.memory.schedule import tiering
from uif_tvm.compiler.memory.tiers import KINDS, Tiering, Value, reachable
from uif_tvm.errors import CompileError, UsageError
from uif_tvm.target.spec import MemoryTier

#: Attempts to make up for fragmentation before a tier is called too small.
_ATTEMPTS = 16
#: Buffers that an error lists.
_LISTED = 8


def assign(
    values: Sequence[Value],
    kernels: int,
    tiers: Sequence[MemoryTier],
    *,
    launch_us: float = 0.0,
) -> Tiering:
    """Assign ``values`` of a program of ``kernels`` kernels to ``tiers``.

    Args:
        tiers: fastest first, as in ``TargetSpec.memory``.
        launch_us: what a transfer costs besides its bytes, microseconds.

    Raises:
        UsageError: a value is malformed.
        CompileError: the values do not fit; names the tier, its capacity, what is needed, and the
            values alive at the fullest step.
    """
    _validate(values, kernels)
    layout = Layout(kernels, tiers, launch_us)
    bases = _bases(values, tiers)
    for value in values:
        tier = bases[value.kind]
        reason = (
            "the only tier" if len(tiers) == 1 else f"the largest tier for {value.kind} in reach"
        )
        layout.put(value, [Placed(value, tier, *layout.life(value), reason)])
    for tier in tiers:
        if reachable(tier):
            _promote(layout, tier, values, bases)
    for tier in dict.fromkeys(bases.values()):
        _fit(layout, tier)
        layout.widen(tier)
    for tier in tiers:
        found = layout.plan(tier)
        if found.arena_bytes > tier.bytes:
            raise _too_small(layout, tier, found.arena_bytes)
    return tiering(layout, kernels, values)


def _validate(values: Sequence[Value], kernels: int) -> None:
    for value in values:
        ordered = all(a < b for a, b in pairwise(value.uses))
        if value.kind not in KINDS:
            what = f"kind must be one of {', '.join(KINDS)}"
        elif value.size < 1 or value.alignment < 1:
            what = "size and alignment must be at least 1"
        elif not value.uses or not ordered or value.uses[0] < 0 or value.uses[-1] >= kernels:
            what = f"uses must be ascending kernels below {kernels}, at least one"
        else:
            continue
        raise UsageError(
            f"{value}: {what}",
            stage="compile",
            code="UIF-COMPILE-MEMORY",
            hint="give the value a kind, a size and the kernels that use it",
        )
    if len({value.name for value in values}) != len(values):
        raise UsageError(
            "several values have one name",
            stage="compile",
            code="UIF-COMPILE-MEMORY",
            hint="give each value a name of its own",
        )


def _bases(values: Sequence[Value], tiers: Sequence[MemoryTier]) -> dict[str, MemoryTier]:
    """For each kind in use the largest tier that holds it and that kernels can address."""
    bases = {}
    for kind in dict.fromkeys(value.kind for value in values):
        fit = [tier for tier in tiers if reachable(tier) and kind in tier.holds]
        if not fit:
            raise CompileError(
                f"no memory tier that kernels can address holds {kind}; tiers: "
                + ", ".join(f"{tier.name} ({', '.join(tier.holds)})" for tier in tiers),
                code="UIF-COMPILE-CAPACITY",
                hint=f"let a tier of the target hold {kind}",
            )
        bases[kind] = max(fit, key=lambda tier: tier.bytes)
    return bases


def _promote(
    layout: Layout, tier: MemoryTier, values: Sequence[Value], bases: dict[str, MemoryTier]
) -> None:
    """Move to ``tier`` what saves most there."""
    saved: dict[Value, float] = {}
    for value in values:
        now = layout.of(value)[0].tier
        fits = value.kind in tier.holds and value.size <= tier.bytes
        if now is bases[value.kind] and now is not tier and fits:
            gain = price(value.traffic, now) - price(value.traffic, tier)
            if gain > 0:
                saved[value] = gain

    best: list[Value] = []
    for order in _fillings(layout, tier, saved):
        chosen = _filled(layout, tier, order)
        if sum(map(saved.__getitem__, chosen)) > sum(map(saved.__getitem__, best)):
            best = chosen
        if len(best) == len(saved):
            break
    for value in best:
        base = layout.of(value)[0].tier
        reason = (
            f"{saved[value]:.3g} us of traffic saved against {base.name}: {len(value.uses)} uses "
            f"of {value.size} bytes"
        )
        layout.put(value, [Placed(value, tier, *layout.life(value), reason)])


def _fillings(
    layout: Layout, tier: MemoryTier, saved: Mapping[Value, float]
) -> Iterator[list[Value]]:
    """Orders in which to fill a tier: by each measure, then what the knapsack takes before all."""

    def density(value: Value) -> float:
        start, end = layout.life(value)
        return saved[value] / (value.size * (end - start))

    measures: list[Callable[[Value], float]] = [
        density,
        lambda value: saved[value] / value.size,
        lambda value: saved[value],
    ]
    for measure in measures:
        yield sorted(saved, key=lambda v: (-measure(v), v.name))
    if saved:
        order = sorted(saved, key=lambda v: (-density(v), v.name))
        stays = [Placed(value, tier, *layout.life(value), "") for value in order]
        items = [Item(saved[stay.value], stay.bytes, stay.start, stay.end) for stay in stays]
        free = [layout.room(tier, slot, slot + 1) for slot in range(layout.slots)]
        taken = set(choose(items, free))
        yield [order[index] for index in sorted(taken)] + [
            value for index, value in enumerate(order) if index not in taken
        ]


def _filled(layout: Layout, tier: MemoryTier, order: Sequence[Value]) -> list[Value]:
    """What of ``order`` fits into ``tier``, the first ones first; ``layout`` is as before."""
    before = {value: layout.of(value) for value in order}
    chosen = []
    for value in order:
        stay = Placed(value, tier, *layout.life(value), "")
        if layout.room(tier, stay.start, stay.end) >= stay.bytes:
            layout.put(value, [stay])
            chosen.append(value)
    while chosen:
        over = layout.plan(tier).arena_bytes - tier.bytes
        if over <= 0:
            break
        while over > 0 and chosen:  # fragmentation: the least useful leave
            value = chosen.pop()
            over -= value.size
            layout.put(value, before[value])
    for value in chosen:
        layout.put(value, before[value])
    return chosen


def _fit(layout: Layout, tier: MemoryTier) -> None:
    """Relieve ``tier`` until its plan fits.

    Raises:
        CompileError: nothing more can leave.
    """
    target = tier.bytes
    before: dict[Value, list[Placed]] = {}
    price_of: dict[Value, float] = defaultdict(float)
    for _ in range(_ATTEMPTS):
        most, slot = layout.fullest(tier)
        while most > target:
            way = cheapest(layout, tier, slot)
            if way is None:
                raise _too_small(layout, tier, most + tier.bytes - target)
            before.setdefault(way.value, layout.of(way.value))
            price_of[way.value] += way.us
            layout.put(way.value, way.stays)
            most, slot = layout.fullest(tier)
        arena = layout.plan(tier).arena_bytes
        if arena <= tier.bytes:
            # What left early may fit again after what left later: the dearest first.
            for value in sorted(before, key=lambda each: (-price_of[each], each.name)):
                if price_of[value] > 0:
                    layout.attempt(value, before[value])
            return
        target = most - (arena - tier.bytes)
    raise _too_small(layout, tier, layout.plan(tier).arena_bytes)


def _too_small(layout: Layout, tier: MemoryTier, need: int) -> CompileError:
    most, slot = layout.fullest(tier)
    alive = [item for item in layout.stays(tier) if item.start <= slot < item.end]
    alive.sort(key=lambda item: (-item.value.size, item.value.name))
    listed = ", ".join(
        f"{item.value.name} ({item.value.kind}, {item.value.size})" for item in alive[:_LISTED]
    )
    more = f" and {len(alive) - _LISTED} more" if len(alive) > _LISTED else ""
    lost = f", {need - most} of them lost between buffers" if need > most else ""
    return CompileError(
        f"memory tier {tier.name} has {tier.bytes} bytes, but {need} are needed{lost}; at kernel "
        f"{slot // 2} it holds {most} bytes: {listed}{more}",
        code="UIF-COMPILE-CAPACITY",
        hint="use a smaller batch or model, a target with more memory, or let another tier hold "
        "weights or activations",
    )
