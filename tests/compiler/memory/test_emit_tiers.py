"""Several memories: values where the assignment says, moved by kernels, with the same results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from tvm import relax

from tests.models import compiled, constant, fake_target, imported, save, weights
from uif_tvm import api
from uif_tvm.compiler.memory import apply
from uif_tvm.compiler.memory.planner import plan
from uif_tvm.compiler.memory.problem import Buffer
from uif_tvm.compiler.memory.tiers import Stay, Tiering, Transfer, Value
from uif_tvm.target.spec import MemoryTier

FAST, DEVICE, HOST = "fast", "device", "host"
TIERS = (
    MemoryTier(FAST, 64 << 10, 100.0, holds=("activations", "workspace")),
    MemoryTier(DEVICE, 256 << 10, 10.0),
    MemoryTier(HOST, 1 << 30, 5.0, scope="host", holds=("weights",)),
)


class Hand:
    """An assignment made by hand: weights come to the device for each use, but for the first,
    which lives there; activations start on the device and move to fast memory for their reads."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.schedule: list[int | Transfer] = []
        self.stays: list[Stay] = []

    def assign(self, values: Sequence[Value]) -> Tiering:
        moves: dict[int, list[tuple[Value, str, str]]] = {}
        resident = next((v.name for v in values if v.kind == "weights"), None)
        for value in values:
            if value.kind == "weights" and value.name != resident:
                for use in value.uses:
                    moves.setdefault(use, []).append((value, HOST, DEVICE))
            elif value.kind == "activations" and len(value.uses) > 1:
                moves.setdefault(value.uses[1], []).append((value, DEVICE, FAST))
        positions: dict[int, int] = {}
        made: dict[tuple[str, int], int] = {}
        for step in range(self.count):
            for value, source, destination in moves.get(step, []):
                made[value.name, step] = len(self.schedule)
                self.schedule.append(
                    Transfer(
                        value.name,
                        f"{value.name}@{source}",
                        f"{value.name}@{destination}#{step}",
                        source,
                        destination,
                        value.size,
                        1.0,
                    )
                )
            positions[step] = len(self.schedule)
            self.schedule.append(step)
        end = len(self.schedule)
        for value in values:
            last = positions[value.uses[-1]] + 1
            steps = [step for name, step in made if name == value.name]
            if value.kind == "weights":
                home = DEVICE if value.name == resident else HOST
                self._stay(value, home, "", 0, end)
                for step in steps:
                    at = made[value.name, step]
                    self._stay(value, DEVICE, f"#{step}", at, positions[step] + 1)
            elif steps:
                at = made[value.name, steps[0]]
                self._stay(value, DEVICE, "", positions[value.uses[0]], at + 1)
                self._stay(value, FAST, f"#{steps[0]}", at, last)
            else:
                self._stay(value, DEVICE, "", positions[value.uses[0]], last)
        sizes = {value.name: value.size for value in values}
        plans = {
            tier: plan([Buffer(s.name, s.first, s.end, sizes[s.value]) for s in stays])
            for tier in (FAST, DEVICE, HOST)
            if (stays := [s for s in self.stays if s.tier == tier])
        }
        return Tiering(tuple(self.schedule), tuple(self.stays), plans)

    def _stay(self, value: Value, tier: str, suffix: str, first: int, end: int) -> None:
        name = f"{value.name}@{tier}{suffix}"
        self.stays.append(Stay(name, value.name, tier, first, end, "by hand"))


@pytest.fixture
def by_hand(monkeypatch):
    monkeypatch.setattr(
        apply, "assign", lambda values, count, tiers, launch_us: Hand(count).assign(values)
    )


def layers(count: int, side: int):
    matrices = [constant(weights(side, side, seed=n)) for n in range(count)]

    def body(x):
        for matrix in matrices:
            y = relax.op.nn.softmax(relax.op.matmul(x, matrix))
            x = relax.op.nn.softmax(relax.op.reshape(y, (4, 2 * side)))
            x = relax.op.reshape(x, (8, side))
        return [x, relax.op.reshape(x, (8 * side,)), matrices[0]]

    return imported([("x", (8, side), "float32")], body)


@pytest.mark.parametrize("level", [2, 3])
def test_same_results_as_with_one_memory(tmp_path, by_hand, level):
    model = layers(4, 64)
    plain = api.load(save(tmp_path / "plain.uif", model, compiled(model, level=level)), threads=1)
    target = fake_target(memory=TIERS)
    payload = compiled(model, target, level=level)
    tiered = api.load(save(tmp_path / "tiered.uif", model, payload), threads=1)
    for seed in range(3):
        x = weights(8, 64, seed=seed)
        for got, want in zip(tiered.run(x), plain.run(x), strict=True):
            np.testing.assert_array_equal(got, want)
    report = payload.report["memory_plan"]
    assert {row["tier"] for row in report["tiers"]} == {FAST, DEVICE, HOST}
    moves = {(row["from"], row["to"]) for row in report["transfers"]}
    assert moves == {(HOST, DEVICE), (DEVICE, FAST)}
    assert len(report["steps"]) == len(report["transfers"]) + plain.get_stats()["op_count"]
    kernels = {row["kernel"] for row in payload.report["kernels"]}
    for source, destination in moves:
        assert any(k.startswith(f"transfer_{source}_to_{destination}_") for k in kernels)
    assert all(row["us"] > 0 for row in report["transfers"])


def test_branches_stay_in_one_memory(tmp_path, by_hand):
    from tests.compiler.test_lower import Branches
    from uif_tvm.frontends.imported import ImportedModel
    from uif_tvm.signature import Signature, TensorSpec

    signature = Signature(
        (TensorSpec("x", (4,), "float32"), TensorSpec("flag", (), "bool")),
        (TensorSpec("y", (4,), "float32"),),
    )
    model = ImportedModel(Branches, signature, "test")
    payload = compiled(model, fake_target(memory=TIERS))
    engine = api.load(save(tmp_path / "m.uif", model, payload), threads=1)
    x, c = weights(4), np.array([2, 3, 4, 5], np.float32)
    np.testing.assert_allclose(engine.run(x, np.array(True))[0], x * c + 1, rtol=1e-6)
    assert [row["tier"] for row in payload.report["memory_plan"]["tiers"]] == [DEVICE]
    assert "branches" in payload.report["memory_plan"]["note"]


class TestAssigned:
    """The same with the framework's own assignment."""

    SMALL = (
        MemoryTier(FAST, 4 << 10, 100.0, holds=("activations", "workspace")),
        MemoryTier(DEVICE, 40 << 10, 10.0),
        MemoryTier(HOST, 1 << 30, 5.0, scope="host", holds=("weights", "activations")),
    )

    def test_weights_that_do_not_fit_are_brought_in(self, tmp_path):
        model = layers(6, 64)  # 6 matrices of 16 KiB for a device of 40 KiB
        plain = api.load(save(tmp_path / "plain.uif", model, compiled(model)), threads=1)
        payload = compiled(model, fake_target(memory=self.SMALL))
        tiered = api.load(save(tmp_path / "tiered.uif", model, payload), threads=1)
        for seed in range(3):
            x = weights(8, 64, seed=seed)
            for got, want in zip(tiered.run(x), plain.run(x), strict=True):
                np.testing.assert_array_equal(got, want)
        plan = payload.report["memory_plan"]
        arenas = {row["tier"]: row["arena_bytes"] for row in plan["tiers"]}
        for tier in self.SMALL:
            assert arenas.get(tier.name, 0) <= tier.bytes
        moves = {(row["from"], row["to"]) for row in plan["transfers"]}
        assert (HOST, DEVICE) in moves
        decided = [row for row in payload.report["decisions"] if row["pass_name"] == "memory-tiers"]
        assert len(decided) == len(plan["transfers"]) + 1
        assert all(row["gain_us"] < 0 for row in decided[:-1])

    def test_all_in_the_device_where_it_is_large_enough(self, tmp_path):
        model = layers(3, 64)
        device = (MemoryTier(DEVICE, 1 << 20, 10.0), self.SMALL[2])
        payload = compiled(model, fake_target(memory=device))
        engine = api.load(save(tmp_path / "m.uif", model, payload), threads=1)
        assert payload.report["memory_plan"]["transfers"] == []
        plain = api.load(save(tmp_path / "plain.uif", model, compiled(model)), threads=1)
        x = weights(8, 64)
        for _ in range(2):
            np.testing.assert_array_equal(engine.run(x)[0], plain.run(x)[0])
        stats = engine.get_stats()
        assert stats["measured_peak_mb"] == pytest.approx(stats["planned_peak_mb"], rel=0.05)
