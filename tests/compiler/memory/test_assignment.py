"""Values over memory tiers: capacities kept, every use served, transfers complete and priced."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uif_tvm.compiler.memory.assignment import assign
from uif_tvm.compiler.memory.checker import check
from uif_tvm.compiler.memory.problem import Buffer
from uif_tvm.compiler.memory.tiers import Tiering, Transfer, Value, reachable
from uif_tvm.errors import CompileError, UsageError
from uif_tvm.target.spec import MemoryTier

KIB = 1024
CHIP = MemoryTier("on-chip", 4 * KIB, 1000.0, "global.spm", ("activations", "workspace"))
DEVICE = MemoryTier("device", 64 * KIB, 100.0)
HOST = MemoryTier("host", 1024 * KIB, 10.0, "host", ("weights",))


def sound(found: Tiering, values, kernels: int, tiers) -> None:
    """Everything that lowering relies on, by a walk along the schedule."""
    by_tier = {tier.name: tier for tier in tiers}
    known = {value.name: value for value in values}
    stays = {stay.name: stay for stay in found.stays}
    assert len(stays) == len(found.stays)
    assert [item for item in found.schedule if isinstance(item, int)] == list(range(kernels))
    # Every tier has a plan without overlaps, within its capacity.
    assert found.plans.keys() == {stay.tier for stay in found.stays}
    for tier, planned in found.plans.items():
        buffers = [
            Buffer(s.name, s.first, s.end, known[s.value].size, known[s.value].alignment)
            for s in found.stays
            if s.tier == tier
        ]
        check(buffers, planned)
        assert planned.arena_bytes <= by_tier[tier].bytes
    for stay in found.stays:
        assert known[stay.value].kind in by_tier[stay.tier].holds
        assert stay.reason
        assert 0 <= stay.first < stay.end <= len(found.schedule)
    # Which stays hold their value's bytes, from position to position.
    holding = {
        stay.name
        for stay in found.stays
        if known[stay.value].kind == "weights"
        and stay.name not in {each.destination for _, each in found.transfers}
    }
    for name in holding:
        assert (stays[name].first, stays[name].end) == (0, len(found.schedule))
    for position, item in enumerate(found.schedule):
        holding = {name for name in holding if position < stays[name].end}
        if isinstance(item, Transfer):
            source, destination = stays[item.source], stays[item.destination]
            assert item.source in holding, f"{item} copies what is not there"
            assert destination.first == position
            assert (source.value, destination.value) == (item.value, item.value)
            assert (source.tier, destination.tier) == (item.source_tier, item.destination_tier)
            assert item.bytes == known[item.value].size
            slower = min(by_tier[source.tier].gbps, by_tier[destination.tier].gbps)
            assert item.us == pytest.approx(item.bytes / (slower * 1e3) + 1.5)
            holding.add(item.destination)
            continue
        for value in values:
            if item not in value.uses:
                continue
            stay = found.stay_at(value.name, position, by_tier)
            if value.kind != "weights" and item == value.uses[0]:
                holding.add(stay.name)
                assert stay.first == position
            assert stay.name in holding, f"{value.name} is not there for kernel {item}"


def assigned(values, kernels: int, tiers) -> Tiering:
    found = assign(values, kernels, tiers, launch_us=1.5)
    sound(found, values, kernels, tiers)
    return found


@st.composite
def problems(draw):
    kernels = draw(st.integers(1, 8))
    values = []
    for index in range(draw(st.integers(1, 10))):
        uses = draw(st.sets(st.integers(0, kernels - 1), min_size=1, max_size=4))
        kind = draw(st.sampled_from(["weights", "activations", "workspace"]))
        if kind == "workspace":
            uses = {min(uses)}
        size = draw(st.integers(1, 40)) * 50
        values.append(Value(f"v{index}", kind, size, tuple(sorted(uses))))
    everything = ("weights", "activations", "workspace")
    tiers = [
        MemoryTier("chip", draw(st.integers(1, 30)) * 64, 1000.0, "global.spm",
                   draw(st.sampled_from([everything, ("activations",)]))),
        MemoryTier("device", draw(st.integers(20, 150)) * 64, 100.0),
        MemoryTier("host", draw(st.integers(50, 400)) * 64, 10.0, "host",
                   draw(st.sampled_from([everything, ("weights",)]))),
    ]  # fmt: skip
    return values, kernels, tiers[draw(st.integers(0, 1)) :]


@given(problems())
@settings(deadline=None, max_examples=150)
def test_capacities_are_kept_and_every_use_is_served(problem):
    values, kernels, tiers = problem
    refused = None
    try:
        assigned(values, kernels, tiers)
    except CompileError as error:
        refused = error
    if refused is not None:
        assert refused.code == "UIF-COMPILE-CAPACITY"
        # Only what no tier in reach can hold at once may be refused.
        largest = max(tier.bytes for tier in tiers if reachable(tier))
        alive = [
            sum(-(-v.size // 64) * 64 for v in values
                if v.kind == "weights" or v.uses[0] <= at <= v.uses[-1])
            for at in range(kernels)
        ]  # fmt: skip
        assert max(alive) > largest * 0.75


def test_one_tier_changes_nothing():
    values = [
        Value("w", "weights", 100, (0, 2)),
        Value("a", "activations", 200, (0, 1)),
        Value("b", "activations", 200, (1, 2)),
    ]
    found = assigned(values, 3, [DEVICE])
    assert found.schedule == (0, 1, 2)
    assert [(stay.value, stay.first, stay.end) for stay in found.stays] == [
        ("w", 0, 3),
        ("a", 0, 2),
        ("b", 1, 3),
    ]
    assert {stay.reason for stay in found.stays} == {"the only tier"}
    assert found.saved_us == 0


def test_hot_small_tensors_go_on_chip():
    """3 KiB read six times beats 3 KiB read twice; 40 KiB are too large."""
    hot = Value("hot", "activations", 3 * KIB, (0, 1, 2, 3, 4, 5))
    cold = Value("cold", "activations", 3 * KIB, (0, 5))
    large = Value("large", "activations", 40 * KIB, (0, 1))
    found = assigned([cold, hot, large], 6, [CHIP, DEVICE, HOST])
    where = {stay.value: stay.tier for stay in found.stays}
    assert where == {"hot": "on-chip", "cold": "device", "large": "device"}
    reason = next(stay.reason for stay in found.stays if stay.value == "hot")
    assert reason == "0.166 us of traffic saved against device: 6 uses of 3072 bytes"
    # 18 KiB at 100 GB/s against 1000 GB/s.
    assert found.saved_us == pytest.approx(6 * 3072 / 100e3 - 6 * 3072 / 1000e3)
    assert found.transfers == ()


def test_two_that_do_not_meet_share_the_chip():
    values = [
        Value("a", "activations", 4 * KIB, (0, 1)),
        Value("b", "activations", 4 * KIB, (2, 3)),
        Value("w", "weights", 64, (0,)),
    ]
    found = assigned(values, 4, [CHIP, DEVICE])
    where = {stay.value: stay.tier for stay in found.stays}
    assert where == {"a": "on-chip", "b": "on-chip", "w": "device"}  # weights may not go there
    assert found.plans["on-chip"].arena_bytes == 4 * KIB


def test_the_knapsack_beats_the_greedy_fillings():
    """The densest, the worthiest per byte and the worthiest is one: two others save more."""
    values = [
        Value("one", "activations", 2560, (0, 1, 2, 3, 4)),
        Value("two", "activations", 2048, (0, 1, 3, 4)),
        Value("three", "activations", 2048, (0, 2, 3, 4)),
    ]
    found = assigned(values, 5, [CHIP, DEVICE])
    where = {stay.value: stay.tier for stay in found.stays}
    assert where == {"one": "device", "two": "on-chip", "three": "on-chip"}


def layers(count: int, size: int) -> list[Value]:
    """A chain of layers, each with weights of ``size`` bytes and an activation of 1 KiB."""
    values = [Value(f"w{index}", "weights", size, (index,)) for index in range(count)]
    values += [
        Value(f"a{index}", "activations", KIB, (index, index + 1)) for index in range(count - 1)
    ]
    return values


def test_weights_that_do_not_fit_are_brought_in():
    """Eight layers of 16 KiB in 64 KiB: some stay, others come from the host in time."""
    values = layers(8, 16 * KIB)
    found = assigned(values, 8, [DEVICE, HOST])
    brought = {each.value for _, each in found.transfers}
    assert 5 <= len(brought) <= 6
    assert len(found.transfers) == len(brought)  # each of them once
    for position, each in found.transfers:
        use = next(value for value in values if value.name == each.value).uses[0]
        before = [item for item in found.schedule[position:] if isinstance(item, int)]
        assert before[0] in (use - 1, use)
        assert (each.source_tier, each.destination_tier) == ("host", "device")
        assert each.us == pytest.approx(16 * KIB / 10e3 + 1.5)
    home = [stay for stay in found.stays if stay.tier == "host"]
    assert {stay.value for stay in home} == brought
    assert {stay.reason for stay in home} == {"no room in device all the time"}


def test_where_there_is_room_weights_come_a_kernel_early():
    """The last layer's 40 KiB push out others; before it there is room for two at once."""
    values = [*layers(4, 16 * KIB), Value("last", "weights", 40 * KIB, (4,))]
    found = assigned(values, 5, [DEVICE, HOST])
    early = {stay.value for stay in found.stays if stay.reason.endswith("one kernel early")}
    assert len(early) >= 2
    for position, each in found.transfers:
        use = next(value for value in values if value.name == each.value).uses[0]
        following = next(item for item in found.schedule[position:] if isinstance(item, int))
        assert following == use - (each.value in early)


def test_without_need_nothing_is_brought_in():
    found = assigned(layers(3, 16 * KIB), 3, [DEVICE, HOST])
    assert found.transfers == ()
    assert {stay.tier for stay in found.stays} == {"device"}


def test_an_idle_activation_leaves_and_comes_back():
    """A skip connection of 40 KiB around a kernel that needs 48 KiB of workspace."""
    spill = replace(HOST, holds=("activations",))
    values = [
        Value("skip", "activations", 40 * KIB, (0, 4)),
        Value("ws", "workspace", 48 * KIB, (2,)),
        Value("out", "activations", KIB, (4,)),
    ]
    found = assigned(values, 5, [DEVICE, spill])
    assert [(each.source_tier, each.destination_tier) for _, each in found.transfers] == [
        ("device", "host"),
        ("host", "device"),
    ]
    positions = [position for position, _ in found.transfers]
    kernel_2 = found.schedule.index(2)
    assert positions[0] < kernel_2 < positions[1]
    reasons = [stay.reason for stay in found.stays if stay.value == "skip"]
    assert reasons[1] == "not used between kernels 0 and 4, and no room in device"


def test_weights_used_often_stay_between_uses_where_there_is_room():
    """w is used by kernels 0, 2 and 4; only kernel 6 needs its room: it comes in once."""
    values = [
        Value("w", "weights", 32 * KIB, (0, 2, 4)),
        Value("ws", "workspace", 48 * KIB, (6,)),
    ]
    found = assigned(values, 7, [DEVICE, HOST])
    assert len(found.transfers) == 1


def test_too_little_everywhere_is_a_typed_error():
    values = [Value("w", "weights", 60 * KIB, (0,)), Value("a", "activations", 20 * KIB, (0,))]
    with pytest.raises(CompileError) as caught:
        assign(values, 1, [DEVICE, HOST])
    assert caught.value.code == "UIF-COMPILE-CAPACITY"
    assert caught.value.message == (
        "memory tier device has 65536 bytes, but 81920 are needed; at kernel 0 it holds 81920 "
        "bytes: w (weights, 61440), a (activations, 20480)"
    )
    assert "target with more memory" in caught.value.hint


def test_a_kind_that_no_tier_holds_is_a_typed_error():
    only = replace(DEVICE, holds=("activations",))
    with pytest.raises(CompileError, match=r"no memory tier .* holds weights; tiers: device"):
        assign([Value("w", "weights", 1, (0,))], 1, [only, HOST])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Value("a", "cache", 1, (0,)), "kind must be one of"),
        (Value("a", "weights", 0, (0,)), "at least 1"),
        (Value("a", "weights", 1, ()), "at least one"),
        (Value("a", "weights", 1, (1, 0)), "ascending"),
        (Value("a", "weights", 1, (2,)), "below 2"),
    ],
)
def test_malformed_values_are_refused(value, message):
    with pytest.raises(UsageError, match=message):
        assign([value], 2, [DEVICE])


def test_equal_names_are_refused():
    with pytest.raises(UsageError, match="one name"):
        assign([Value("a", "weights", 1, (0,))] * 2, 1, [DEVICE])


def test_it_repeats_itself():
    values = layers(8, 16 * KIB)
    tiers = [CHIP, DEVICE, HOST]
    assert assign(values, 8, tiers) == assign(values, 8, tiers)
