"""What ONNX Runtime and OpenVINO need for a model: bytes for activations, nodes executed.

Neither tells through Python how large its arena is, so ONNX Runtime's is read from its verbose
log. The CPU arena is registered with ``kSameAsRequested``, so that it grows by what is asked for
and not by powers of two. Weights are in it before the first run and do not count. The first run
asks for tensor after tensor, reusing what is free, and what it adds is one figure. The second run
has the memory pattern of the first and asks for one block that holds all of them, planned: the
other figure, where it does not fit what is free already. Reported is the smaller one.

Executed nodes are those that ONNX Runtime's profiler times, and those with the status
``EXECUTED`` of OpenVINO's counters, inputs, outputs and constants apart.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

_FIRST, _SECOND = "uif: first run", "uif: second run"
_EXTENDED = re.compile(r"Extended allocation by (\d+) bytes")
#: Nodes of OpenVINO that hand tensors in and out and compute nothing.
_BORDERS = frozenset({"Parameter", "Result", "Constant", "Input", "Output", "Const"})
TIMEOUT = 600


def measure(subject: str) -> dict[str, Any]:
    """Figures of both peers, each in a process of its own; a failure is told as ``error``."""
    return {peer: isolated(peer, subject) for peer in ("onnxruntime", "openvino")}


def isolated(peer: str, subject: str) -> dict[str, Any]:
    """One peer on one model in a process of its own."""
    command = [sys.executable, "-m", "tests.memory.peers", peer, subject]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not done in {TIMEOUT} s"}
    line = next((x for x in done.stdout.splitlines() if x.startswith('{"nodes"')), None)
    if done.returncode or line is None:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return {"error": said[-1][-300:]}
    found: dict[str, Any] = json.loads(line)
    if peer == "onnxruntime":
        found["bytes"] = arena_bytes(done.stderr)
    return found


def arena_bytes(log: str) -> int | None:
    """Bytes that the arena took for activations, from a verbose log with both marks."""
    _, found, runs = log.partition(_FIRST)
    if not found:
        return None
    first, _, second = runs.partition(_SECOND)
    grown = [sum(int(n) for n in _EXTENDED.findall(part)) for part in (first, second)]
    return min(grown) if grown[1] else grown[0]


def _mark(text: str) -> None:
    os.write(2, f"\n{text}\n".encode())


def _onnxruntime(path: Path, feed: dict[str, Any]) -> dict[str, Any]:
    import onnxruntime
    from onnxruntime.capi.onnxruntime_pybind11_state import OrtMemType

    onnxruntime.set_default_logger_severity(0)
    onnxruntime.set_default_logger_verbosity(1)
    arena = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, OrtMemType.DEFAULT
    )
    same_as_requested = 1
    onnxruntime.create_and_register_allocator(
        arena, onnxruntime.OrtArenaCfg(0, same_as_requested, -1, -1)
    )
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.use_env_allocators", "1")
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.enable_mem_pattern = True
    options.enable_profiling = True
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = f"{folder}/profile"
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        wanted = {item.name for item in session.get_inputs()}
        given = {name: array for name, array in feed.items() if name in wanted}
        _mark(_FIRST)
        session.run(None, given)
        _mark(_SECOND)
        session.run(None, given)
        events = json.loads(Path(session.end_profiling()).read_text())
    timed = [
        event["args"]["op_name"]
        for event in events
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")
    ]
    return {"nodes": len(timed) // 2, "ops": dict(Counter(timed[: len(timed) // 2]))}


def _openvino(path: Path, feed: dict[str, Any]) -> dict[str, Any]:
    import openvino

    core = openvino.Core()
    model = core.read_model(str(path))
    names = {name: item for item in model.inputs for name in item.get_names()}
    given = {name: array for name, array in feed.items() if name in names}
    model.reshape({name: list(array.shape) for name, array in given.items()})
    config = {"PERF_COUNT": "YES", "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(model, "CPU", config).create_infer_request()
    request.infer(given)
    done = [
        item.node_type
        for item in request.profiling_info
        if str(item.status).endswith("EXECUTED") and not str(item.status).endswith("NOT_RUN")
    ]
    ops = Counter(kind for kind in done if kind not in _BORDERS)
    return {"nodes": sum(ops.values()), "ops": dict(ops)}


def main() -> int:
    """``python -m tests.memory.peers PEER SUBJECT``: figures as one line of JSON."""
    from tests.memory.subjects import find

    peer, name = sys.argv[1:]
    subject = find(name)
    assert subject.onnx is not None
    run = {"onnxruntime": _onnxruntime, "openvino": _openvino}[peer]
    sys.stdout.write("\n" + json.dumps(run(subject.onnx, subject.feed)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
