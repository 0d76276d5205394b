"""Every built-in target: sound as data, and the host's own is the best that the host runs."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from uif_tvm.targets import _x86, cpu
from uif_tvm.targets._x86 import levels
from uif_tvm.targets.cpu import target as cpu_target

from uif_tvm.runtime.host import Host, host
from uif_tvm.target.registry import get_target, list_targets
from uif_tvm.target.spec import Refusal, TargetSpec

IDS = [entry.id for entry in list_targets() if entry.spec]


@pytest.mark.parametrize("target_id", IDS)
class TestEachTarget:
    def test_ends_with_a_rule_that_takes_everything(self, target_id):
        assert get_target(target_id).schedules[-1].kind == "generic"

    def test_rules_have_names_versions_and_known_kinds(self, target_id):
        for rule in get_target(target_id).schedules:
            assert rule.name
            assert rule.version >= 1
            assert rule.kind in ("hand-written", "generic")

    def test_capability_answers_none_or_a_reason(self, target_id):
        ask = get_target(target_id).capability
        assert ask("add", {}, ("float32", "float32")) is None
        refusal = ask("add", {}, ("float4_e2m1fn",))
        assert isinstance(refusal, Refusal)
        assert refusal.code == "dtype"
        assert "float4_e2m1fn" in refusal.detail

    def test_code_generator_knows_it(self, target_id):
        import tvm

        spec = get_target(target_id)
        assert tvm.target.Target(dict(spec.tvm_target)).kind.name == spec.tvm_target["kind"]

    def test_folder_holds_the_common_files(self, target_id):
        folder = Path(cpu.__file__).parents[1] / target_id.replace("-", "_")
        assert (folder / "target.py").is_file()


def test_levels_grow():
    flags = [set(level.flags) for level in reversed(levels.LEVELS)]
    widths = [level.vector_bytes for level in reversed(levels.LEVELS)]
    assert flags == sorted(flags, key=len)
    assert all(low < high for low, high in pairwise(flags))
    assert widths == sorted(widths)


@pytest.mark.parametrize(
    ("features", "mcpu", "width"),
    [
        (levels.V4.flags, "x86-64-v4", 64),
        (levels.V3.flags, "x86-64-v3", 32),
        (set(levels.V4.flags) - {"avx512vl"}, "x86-64-v3", 32),
        (set(levels.V4.flags) - {"fma"}, "x86-64", 16),
        ((), "x86-64", 16),
    ],
)
def test_cpu_takes_the_highest_level_whose_flags_are_all_there(monkeypatch, features, mcpu, width):
    found = Host("x86_64", frozenset(features), 3, "Toy CPU")
    monkeypatch.setattr(cpu_target, "host", lambda: found)
    spec = cpu_target.create()
    assert spec.tvm_target["mcpu"] == mcpu
    assert (spec.machine.vector_bytes, spec.machine.cores) == (width, 3)
    assert spec.requirement.features == levels.LEVELS[[64, 32, 16].index(width)].flags
    assert spec.detected
    assert "Toy CPU" in spec.description


def test_cpu_on_another_architecture_says_so(monkeypatch):
    monkeypatch.setattr(cpu_target, "host", lambda: replace(host(), arch="riscv64"))
    with pytest.raises(NotImplementedError, match="riscv64 has no schedules yet"):
        cpu_target.create()


def test_cache_sizes_come_from_the_system(monkeypatch, tmp_path):
    for index, (level, kind, size) in enumerate(
        [
            ("1", "Data", "48K"),
            ("1", "Instruction", "32K"),
            ("2", "Unified", "2048K"),
            ("3", "", ""),
        ]
    ):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(text + "\n")
    monkeypatch.setattr(cpu_target, "Path", lambda _: tmp_path)
    assert cpu_target._cache_bytes(1, "Data") == 48 * 1024
    assert cpu_target._cache_bytes(2, "Unified") == 2048 * 1024
    assert cpu_target._cache_bytes(3, "Unified") is None
    assert cpu_target._cache_bytes(3, "") is None


def test_host_runs_the_host_target():
    assert host().missing(get_target("cpu").requirement) == []


def test_shared_helpers_are_no_targets():
    assert isinstance(get_target("x86-64-v3"), TargetSpec)
    assert "-x86" not in IDS
    assert Path(_x86.__file__).parent.name.startswith("_")
