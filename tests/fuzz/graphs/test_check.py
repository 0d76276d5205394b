"""The harness: faults are told apart, workers replaced, graphs minimised, findings replayable."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fuzz.graphs import check
from tests.fuzz.graphs.attempt import Fault, attempt
from tests.fuzz.graphs.generate import Graph, generate
from tests.fuzz.graphs.minimise import minimised, optional_passes


def with_operator(name: str) -> Graph:
    """The first graph of several nodes that has the operator."""
    for seed in range(500):
        made = generate(random.Random(seed))
        kinds = [node.op_type for node in made.proto.graph.node]
        if name in kinds and len(kinds) > 8 and not made.open_axes and not made.special:
            return made
    raise AssertionError(name)


def test_a_worker_that_crashes_or_hangs_costs_one_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def examine(seed: str, cache: str, tell: Any, explain: bool) -> dict[str, Any]:
        tell(2)
        if seed == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        if seed == "hang":
            time.sleep(60)
        if seed == "raise":
            raise ValueError("of the harness")
        return {"id": seed, "kind": "right", "nodes": 1}

    monkeypatch.setattr(check, "examine", examine)
    monkeypatch.setattr(check, "save", lambda *args: None)
    monkeypatch.setattr(check, "TIMEOUT", 2.0)
    seeds = ["a", "crash", "b", "hang", "c", "raise", "d"]
    rows = {row["id"]: row for row in check.outcomes(seeds, 2, "", False, tmp_path)}
    kinds = {seed: rows[seed]["kind"] for seed in seeds}
    assert kinds == dict.fromkeys("abcd", "right") | {
        "crash": "crash",
        "hang": "hang",
        "raise": "harness",
    }
    assert rows["crash"]["level"] == 2
    summary = check.summarise(list(rows.values()))
    assert (summary["graphs"], summary["mismatches"], summary["crashes"]) == (7, 0, 3)


def test_the_smallest_graph_that_shows_a_fault_is_one_node() -> None:
    made = with_operator("Softmax")

    def shows(candidate: Graph, disabled: Sequence[str]) -> str | None:
        kinds = [node.op_type for node in candidate.proto.graph.node]
        return "mismatch" if "Softmax" in kinds else None

    small = minimised(made, "mismatch", shows)
    assert [node.op_type for node in small.proto.graph.node] == ["Softmax"]
    assert set(small.feeds[0]) == {value.name for value in small.proto.graph.input}


@pytest.mark.parametrize("kind", ["mismatch", "unstable", "memory", "reference"])
def test_faults_are_told_apart(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = with_operator("Tanh")
    calls = []

    class Engine:
        def run(self, feed: dict[str, Any]) -> list[Any]:
            calls.append(1)
            results = _evaluated(made, feed)
            if (kind == "mismatch" and self.level == 2) or kind == "reference":
                results = [_off(array) for array in results]
            if kind == "unstable" and len(calls) % 2 == 0:
                results = [_off(array) for array in results]
            if kind == "memory":
                results[0] = next(iter(feed.values()))
            return results

        level = 0

    def load(path: str, threads: int) -> Engine:
        engine = Engine()
        engine.level = int(Path(path).read_text())
        return engine

    def export(model: Any, feed: Any, path: str, level: int, **options: Any) -> None:
        Path(path).write_text(str(level))

    monkeypatch.setattr("uif_tvm.export", export)
    monkeypatch.setattr("uif_tvm.load", load)
    with pytest.raises(Fault) as found:
        attempt(made)
    assert found.value.kind == kind
    assert found.value.level == (2 if kind == "mismatch" else 0)


def _evaluated(made: Graph, feed: dict[str, Any]) -> list[Any]:
    from tests.fuzz.graphs.generate import given
    from tests.fuzz.graphs.maker import numpy_dtype

    values = made.maker.evaluator.graph(
        made.maker.nodes, given(made.maker, feed), made.maker.dtypes
    )
    return [values[v.name].astype(numpy_dtype(v.dtype)) for v in made.outputs]


def _off(array: Any) -> Any:
    return ~array if array.dtype == bool else array + np.ones((), array.dtype)


def test_a_finding_can_be_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = with_operator("Relu")
    check.save(tmp_path / "f", made.proto, made.feeds, {"kind": "mismatch"})
    assert json.loads((tmp_path / "f/finding.json").read_text())["kind"] == "mismatch"
    assert check.replay(tmp_path / "f") == 0
    said = capsys.readouterr().out
    assert "level 3, feed 0" in said
    assert "Relu" in said


def test_passes_to_bisect_over_are_those_of_the_level() -> None:
    assert "fold-constant" in optional_passes(1)
    assert "fuse-kernels" not in optional_passes(1)
    assert "fuse-kernels" in optional_passes(2)
    assert "legalize" not in optional_passes(3)
