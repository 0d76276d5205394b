"""The same instances through other engines. Runs in a worker process: engines are native code."""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from uif_tvm.selection.arrays import Array, load_arrays
from uif_tvm.selection.coverage.verify import MAX_RUNS, MAX_SECONDS, brief, compare, second_opinion

Run = Callable[[], Sequence[Array]]
#: Arithmetic up to which ONNX's reference, in Python, is asked to judge ONNX Runtime.
MAX_REFERENCE_FLOPS = 2e8

_PACKAGES = {"onnxruntime": "onnxruntime", "openvino": "openvino", "tvm": "tvm"}


def run_peer(peer: str, folder: str, op: str, notes: Sequence[str], flops: float) -> dict[str, Any]:
    """How ``peer`` takes the instance in ``folder``.

    Returns:
        ``status``: ``right``, ``wrong``, ``unsupported``, ``not-applicable``, ``not-installed`` or
        ``ran`` (nothing to compare with); ``detail`` in words; ``ms``, where it ran.
    """
    if importlib.util.find_spec(_PACKAGES[peer]) is None:
        return {"status": "not-installed"}
    place = Path(folder)
    model = next(place.glob("model.*"))
    opener = _OPENERS.get((peer, model.suffix))
    if opener is None:
        return {"status": "not-applicable", "detail": f"{peer} does not read {model.suffix} files"}
    feeds = load_arrays(place / "inputs.npz")
    try:
        run = opener(model, feeds)
        outputs = [np.asarray(value) for value in run()]
    except Exception as error:  # engines refuse in many ways
        return {"status": "unsupported", "detail": brief(error)}
    row: dict[str, Any] = {"ms": _milliseconds(run)}
    if not (place / "expected.npz").exists():
        return row | {"status": "ran"}
    want = list(load_arrays(place / "expected.npz").values())
    values = "random" not in notes
    if peer == "onnxruntime":
        # It has most likely computed the expected results itself: another judge is needed.
        judge = second_opinion(place) if flops <= MAX_REFERENCE_FLOPS else None
        if judge is None:
            return row | {"status": "right", "detail": "is the reference here"}
        want = judge
    fault = compare(outputs, want, op, values=values)
    if fault is None:
        return row | {"status": "right"}
    second = second_opinion(place) if peer != "onnxruntime" else None
    if second is not None and compare(outputs, second, op, values=values) is None:
        return row | {"status": "right"}
    return row | {"status": "wrong", "detail": fault}


def _milliseconds(run: Run) -> float:
    times: list[float] = []
    end = time.perf_counter() + MAX_SECONDS
    while len(times) < MAX_RUNS and (not times or time.perf_counter() < end):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def _onnxruntime(model: Path, feeds: Mapping[str, Array]) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, dict(feeds))


def _openvino(model: Path, feeds: Mapping[str, Array]) -> Run:
    import openvino

    core = openvino.Core()
    return _openvino_run(core, core.read_model(str(model)), feeds)


def _openvino_torch(model: Path, feeds: Mapping[str, Array]) -> Run:
    import openvino

    from uif_tvm.frontends.torch.archive import load_archive

    converted = openvino.convert_model(load_archive(model))
    return _openvino_run(openvino.Core(), converted, feeds)


def _openvino_run(core: Any, model: Any, feeds: Mapping[str, Array]) -> Run:
    compiled = core.compile_model(
        model, "CPU", {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    )
    given = list(feeds.values())

    def run() -> list[Array]:
        results = compiled(given)
        return [np.array(results[port]) for port in compiled.outputs]

    return run


def _tvm(model: Path, feeds: Mapping[str, Array]) -> Run:
    import onnx
    from tvm.relax.frontend.onnx import from_onnx

    proto = onnx.load(str(model))
    shapes = {name: list(array.shape) for name, array in feeds.items()}
    return _tvm_run(from_onnx(proto, shapes, keep_params_in_input=False), feeds)


def _tvm_torch(model: Path, feeds: Mapping[str, Array]) -> Run:
    from tvm.relax.frontend.torch import from_exported_program

    from uif_tvm.frontends.torch.archive import load_archive

    return _tvm_run(from_exported_program(load_archive(model)), feeds)


def _tvm_run(mod: Any, feeds: Mapping[str, Array]) -> Run:
    import tvm
    from tvm import relax

    vm = relax.VirtualMachine(relax.build(mod, target="llvm"), tvm.cpu())
    given = [tvm.runtime.tensor(np.array(array, order="C")) for array in feeds.values()]

    def run() -> list[Array]:
        result = vm["main"](*given)
        items = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
        return [item.numpy() for item in items]

    return run


_OPENERS: Mapping[tuple[str, str], Callable[[Path, Mapping[str, Array]], Run]] = {
    ("onnxruntime", ".onnx"): _onnxruntime,
    ("openvino", ".onnx"): _openvino,
    ("openvino", ".pt2"): _openvino_torch,
    ("tvm", ".onnx"): _tvm,
    ("tvm", ".pt2"): _tvm_torch,
}
