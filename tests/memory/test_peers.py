"""Peers' figures: the log that ONNX Runtime's arena is read from, and a model in both."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.memory import peers
from tests.memory.llama import DEPTH, HEADS, LENGTH, WIDTH, Block

LINE = "[I:onnxruntime:Default, bfc_arena.cc:205 Extend] Extended allocation by {} bytes."


def log(first: list[int], second: list[int]) -> str:
    return "\n".join(
        [
            LINE.format(999),
            "uif: first run",
            *map(LINE.format, first),
            "uif: second run",
            *map(LINE.format, second),
        ]
    )


@pytest.mark.parametrize(
    ("first", "second", "want"),
    [([100, 50], [120], 120), ([100, 50], [], 150), ([100], [300], 100), ([], [], 0)],
)
def test_the_smaller_of_what_two_runs_ask_for(
    first: list[int], second: list[int], want: int
) -> None:
    assert peers.arena_bytes(log(first, second)) == want


def test_a_log_without_marks_tells_nothing() -> None:
    assert peers.arena_bytes(LINE.format(5)) is None


def test_both_peers_on_a_model(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Run as the report does, one process each."""
    import json
    import subprocess
    import sys

    rng = np.random.default_rng(0)
    matrix = numpy_helper.from_array(rng.standard_normal((64, 64)).astype(np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Softmax", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w"], ["y"]),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [info("x", 1, [256, 64])], [info("y", 1, [256, 64])], [matrix]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path = tmp_path_factory.mktemp("peers") / "m.onnx"
    onnx.save(model, str(path))
    np.save(path.with_suffix(".npy"), rng.standard_normal((256, 64)).astype(np.float32))
    code = (
        "import json, sys, numpy as np; from pathlib import Path; from tests.memory import peers\n"
        "path = Path(sys.argv[2]); feed = {'x': np.load(path.with_suffix('.npy'))}\n"
        "print(); print(json.dumps(getattr(peers, '_' + sys.argv[1])(path, feed)))"
    )
    found = {}
    for peer in ("onnxruntime", "openvino"):
        done = subprocess.run(
            [sys.executable, "-c", code, peer, str(path)],
            capture_output=True,
            text=True,
            check=True,
        )
        found[peer] = json.loads(done.stdout.splitlines()[-1])
        if peer == "onnxruntime":
            # Two results of 64 KiB live at once; the last one is the caller's or the arena's.
            assert 2 * 65536 <= (peers.arena_bytes(done.stderr) or 0) <= 4 * 65536
    assert found["onnxruntime"]["nodes"] == 3
    assert 1 <= found["openvino"]["nodes"] <= 5  # it may make one subgraph of all


def test_the_llama_block_is_what_it_says() -> None:
    import torch

    torch.manual_seed(0)
    block = Block().eval()
    x = torch.randn(1, LENGTH, WIDTH)
    with torch.no_grad():
        whole = block(x)
        changed = x.clone()
        changed[:, -1] += 1
        later = block(changed)
    assert whole.shape == x.shape
    torch.testing.assert_close(whole[:, :-1], later[:, :-1])  # causal
    assert not torch.allclose(whole[:, -1], later[:, -1])
    assert HEADS * DEPTH == WIDTH
