"""The result of an assignment: which stay a kernel uses, and which positions are transfers."""

from __future__ import annotations

import pytest

from uif_tvm.compiler.memory.tiers import Stay, Tiering, Transfer, Value, reachable
from uif_tvm.target.spec import MemoryTier

DEVICE = MemoryTier("device", 1024, 100.0)
HOST = MemoryTier("host", 4096, 10.0, "host")
TIERS = {tier.name: tier for tier in (DEVICE, HOST)}
COPY = Transfer("w", "w@host", "w@device", "host", "device", 64, 0.1)
FOUND = Tiering(
    schedule=(0, COPY, 1, 2),
    stays=(
        Stay("w@host", "w", "host", 0, 4, "no room"),
        Stay("w@device", "w", "device", 1, 3, "brought in"),
    ),
    plans={},
)


def test_kernels_use_the_stay_in_reach():
    assert FOUND.stay_at("w", 2, TIERS).name == "w@device"
    for position in (0, 3):
        with pytest.raises(KeyError, match=f"w is in no addressable tier at position {position}"):
            FOUND.stay_at("w", position, TIERS)


def test_transfers_come_with_their_positions():
    assert FOUND.transfers == ((1, COPY),)


def test_only_the_host_scope_is_out_of_reach():
    assert reachable(DEVICE)
    assert not reachable(HOST)


def test_traffic_counts_every_use():
    assert Value("v", "weights", 100, (0, 3, 7), accesses=2.0).traffic == 600
