"""Contestants: own processes, stopped between turns, and readable when they fail."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import save_linear
from uif_tvm.bench.duel import BURST_WARMUP, MAX_BURST, MIN_BURST, Contestant, take_turns
from uif_tvm.bench.peers import agree
from uif_tvm.errors import RunError


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_linear(tmp_path_factory.mktemp("duel") / "linear.onnx")


@pytest.fixture(scope="module")
def feed(tmp_path_factory):
    file = tmp_path_factory.mktemp("duel") / "feed.npz"
    np.savez(file, x=np.ones((2, 4), np.float32))
    return file


def state_of(contestant: Contestant) -> str:
    """The process state letter: T is stopped (see proc(5))."""
    stat = Path(f"/proc/{contestant._process.pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0]


def test_turns(model, feed, tmp_path):
    with (
        Contestant("onnxruntime", model, 1, feed) as first,
        Contestant("openvino", model, 1, feed) as second,
    ):
        assert first.start["load_ms"] > 0
        rounds: list[int] = []
        results = take_turns([first, second], 3, rounds.append)
        assert rounds == [1, 2, 3]
        for result in results.values():
            assert len(result.rounds) == len(result.round_medians()) == 3
            assert all(MIN_BURST <= len(turn) <= MAX_BURST for turn in result.rounds)
            assert min(result.latency.samples) > 0
        differences, wrong = agree([first, second], tmp_path)
        assert differences["onnxruntime"] == 0
        assert differences["openvino"] < 1e-5
        assert wrong == {}
        assert state_of(first) == state_of(second) == "T"
        processes = [first._process, second._process]
    assert all(process.poll() is not None for process in processes)


def test_burst_counts_measured_runs_only(model, feed):
    with Contestant("onnxruntime", model, 1, feed) as contestant:
        assert len(contestant.burst(4, BURST_WARMUP)) == 4


def test_engines_that_cannot_load_say_why(feed, tmp_path):
    with pytest.raises(RunError, match=r"missing\.onnx"):
        Contestant("onnxruntime", tmp_path / "missing.onnx", 1, feed)
    with pytest.raises(RunError, match="no engine 'abacus'"):
        Contestant("abacus", tmp_path / "m", 1, feed)


def test_a_death_in_the_middle_is_reported(model, feed):
    with Contestant("onnxruntime", model, 1, feed) as contestant:
        contestant._process.kill()
        contestant._process.wait()
        with pytest.raises(RunError, match="died with code -9"):
            contestant.burst(3)
