"""The engines compared, each behind the same two calls and with its best float32 settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uif_tvm.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Feed = dict[str, NDArray[Any]]
    Run = Callable[[Feed], list[NDArray[Any]]]

OURS = "uif"
PEERS = ("onnxruntime", "openvino")


def open_engine(engine: str, path: Path, threads: int) -> Run:
    """Load ``path`` (``.uif`` for ours, ``.onnx`` for peers); the result runs one inference.

    Raises:
        UsageError: unknown engine.
    """
    openers = {OURS: _uif, "onnxruntime": _onnxruntime, "openvino": _openvino}
    if engine not in openers:
        raise UsageError(f"there is no engine {engine!r}; known: {', '.join(openers)}")
    return openers[engine](path, threads)


def _uif(path: Path, threads: int) -> Run:
    import uif_tvm

    loaded = uif_tvm.load(str(path), threads=threads)
    return lambda feed: loaded.run(feed)


def _onnxruntime(path: Path, threads: int) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda feed: list(session.run(None, feed))


def _openvino(path: Path, threads: int) -> Run:
    import openvino

    compiled = openvino.Core().compile_model(
        str(path),
        "CPU",
        {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "INFERENCE_NUM_THREADS": threads,
            # Left alone, it computes in bfloat16 where the processor can.
            "INFERENCE_PRECISION_HINT": "f32",
        },
    )
    request = compiled.create_infer_request()

    def run(feed: Feed) -> list[NDArray[Any]]:
        results = request.infer(feed, share_inputs=True, share_outputs=True)
        return [results[port] for port in compiled.outputs]

    return run
