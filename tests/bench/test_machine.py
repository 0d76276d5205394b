"""The yardstick."""

from __future__ import annotations

import shutil

import pytest

from uif_tvm.bench import machine
from uif_tvm.errors import EnvironmentFault


def test_peak_is_measured_for_each_number_of_threads():
    peak = machine.measure_peak([1, 2, 1])
    assert set(peak.gflops) == {1, 2}
    assert min(peak.gflops.values()) > 1.0
    assert peak.vector_bytes in machine.VECTOR_BYTES


def test_the_higher_measurement_counts():
    first, second = machine.Peak({1: 10.0, 2: 30.0}, 32), machine.Peak({1: 20.0, 2: 5.0}, 64)
    assert machine.higher(first, second) == machine.Peak({1: 20.0, 2: 30.0}, 64)


def test_without_a_compiler(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(EnvironmentFault, match=r"g\+\+") as caught:
        machine.measure_peak([1])
    assert caught.value.exit_code == 4
    assert caught.value.hint


def test_a_compiler_that_fails(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: shutil.os.path.realpath("/bin/false"))
    with pytest.raises(EnvironmentFault, match="failed with code 1"):
        machine.measure_peak([1])


def test_description():
    body = machine.describe(["numpy", "no-such-package"])
    assert body["cores"] >= 1
    assert body["cpu"]
    assert body["versions"]["numpy"]
    assert body["versions"]["no-such-package"] is None
