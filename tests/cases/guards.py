"""Which part of our framework answers a fault of TVM itself, each shown by running it.

``script`` cases poke TVM: its importers, its tuner, its database, its serialisation. Where a
probe fails on this TVM, or takes the process down, the row counts as right only when the guard
for its area is demonstrated.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Guard:
    """What keeps a fault of TVM from users.

    Args:
        areas: how the areas of the cases begin that it answers.
        text: the guard, for the report.
        shown: demonstrates it; ``""``, or what went wrong.
    """

    areas: tuple[str, ...]
    text: str
    shown: Callable[[], str]

    def answer(self, reason: str) -> dict[str, Any]:
        """The row of a case whose probe failed for ``reason``."""
        try:
            failed = self.shown()
        except Exception as error:
            failed = f"{type(error).__name__}: {error}"
        if failed:
            return {"status": "wrong", "message": f"{reason}; the guard fails too: {failed}"}
        return {"status": "guarded", "message": reason, "guard": self.text}


def guard_of(case: Mapping[str, Any]) -> Guard | None:
    """The guard for a case, by the area it pokes at."""
    area = str(case.get("area") or "")
    return next((guard for guard in GUARDS if area.startswith(guard.areas)), None)


#: What a model passes from import to running; tools that compare with TVM are not among them.
_ON_THE_WAY = (
    "frontends", "compiler", "relay_passes", "kernels", "schedules", "targets", "artifact",
    "runtime",
)  # fmt: skip


def _flow(model: Any, inputs: Any, example: Any = None, **options: Any) -> Any:
    """Export, load, run; returns the engine and its outputs."""
    import uif

    with tempfile.TemporaryDirectory(prefix="uif-guard-") as folder:
        path = f"{folder}/m.uif"
        uif.export(model, inputs if example is None else example, output_path=path, **options)
        engine = uif.load(path)
        return engine, engine.run(*inputs)


def _onnx_node(op_type: str, inputs: Mapping[str, Any], **attributes: Any) -> Any:
    import onnx
    from onnx import helper

    values = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(value.dtype), list(value.shape)
        )
        for name, value in inputs.items()
    ]
    graph = helper.make_graph(
        [helper.make_node(op_type, list(inputs), ["y"], **attributes)],
        "g", values, [onnx.ValueInfoProto(name="y")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def _indices_are_checked() -> str:
    """Indices far outside, in every family, neither crash nor touch what they should not."""
    data = np.zeros((3, 4), np.float32)
    far = np.array([[2**30, 0, -(2**40), 2]], np.int64)
    scatter = {"d": data, "i": far, "u": np.ones((1, 4), np.float32)}
    _, (out,) = _flow(_onnx_node("ScatterElements", scatter, axis=0), list(scatter.values()))
    expected = data.copy()
    expected[0, 1] = expected[2, 3] = 1
    if not np.array_equal(out, expected):
        return f"ScatterElements gave {out.tolist()}"
    gather = {"d": np.arange(12, dtype=np.float32).reshape(3, 4), "i": far[0]}
    _, (out,) = _flow(_onnx_node("Gather", gather, axis=0), list(gather.values()))
    return "" if np.isin(out, gather["d"]).all() else f"Gather gave {out.tolist()}"


def _own_importers() -> str:
    """A saved program and an ONNX model come through our importers; TVM's are never loaded."""
    import torch

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 5), torch.nn.ReLU()).eval()
    x = torch.randn(2, 3, 4)
    with tempfile.TemporaryDirectory(prefix="uif-guard-") as folder:
        path = Path(folder, "m.pt2")
        torch.export.save(torch.export.export(module, (x,)), path)
        _, (out,) = _flow(str(path), [x.numpy()])
    if not np.allclose(out, module(x).detach().numpy(), atol=1e-5):
        return "a saved program gives other values"
    return _unused("relax.frontend")


def _no_search_at_export() -> str:
    """Schedules are chosen by rules that check themselves: no search, no record to replay."""
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    lengths = np.array([1, 2, 3, 4], np.int64)
    node = _onnx_node("ReverseSequence", {"x": x, "l": lengths}, batch_axis=0, time_axis=1)
    _, (out,) = _flow(node, [x, lengths], cache_dir=None)
    expected = x.copy()
    for row, count in enumerate(lengths):
        expected[row, :count] = x[row, :count][::-1]
    if not np.array_equal(out, expected):
        return "ReverseSequence gives other values"
    return _unused("meta_schedule")


def _own_cache() -> str:
    """Compiled kernels are kept by the digest of their content; a torn entry is compiled anew."""
    x = np.linspace(-2, 2, 12, dtype=np.float32)
    model = _onnx_node("Softplus", {"x": x})
    with tempfile.TemporaryDirectory(prefix="uif-guard-") as folder:
        _, (first,) = _flow(model, [x], cache_dir=folder)
        for entry in Path(folder).rglob("*"):
            if entry.is_file():
                entry.write_bytes(entry.read_bytes()[: entry.stat().st_size // 2])
        _, (again,) = _flow(model, [x], cache_dir=folder)
    if not np.array_equal(first, again):
        return "a damaged cache changes the result"
    return _unused("JSONDatabase")


def _checked_versions() -> str:
    """The pair of versions known to crash is refused at import, with the command that mends it."""
    from uif_tvm import compat

    installed = compat.installed_versions()
    if any(finding.fatal for finding in compat.evaluate(installed)):
        return "this environment's own versions are refused"
    crashing = {**installed, "apache-tvm-ffi": "0.1.15"}
    return "" if any(f.fatal for f in compat.evaluate(crashing)) else "the bad pair is let through"


def _own_engine() -> str:
    """An engine owns its machines: many threads at once get right numbers."""
    from concurrent.futures import ThreadPoolExecutor

    x = np.linspace(-2, 2, 12, dtype=np.float32)
    engine, (expected,) = _flow(_onnx_node("Tanh", {"x": x}), [x])
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: engine.run(x)[0], range(200)))
    same = all(np.array_equal(result, expected) for result in results)
    return "" if same else "threads disturb each other"


def _unused(name: str) -> str:
    """``""`` when nothing that a model passes names a part of TVM."""
    for part in _ON_THE_WAY:
        for folder in importlib.import_module(f"uif_tvm.{part}").__path__:
            for path in Path(folder).rglob("*.py"):
                if name in path.read_text():
                    return f"{part}/{path.name} uses {name}"
    return ""


def uses_no(transform: str) -> bool:
    """Whether our pipeline does without one of TVM's Relax passes."""
    return not _unused(f"transform.{transform}(")


GUARDS: tuple[Guard, ...] = (
    Guard(
        ("robust-index", "index"),
        "the safe-indexing pass: reads are clamped, writes outside the tensor are dropped",
        _indices_are_checked,
    ),
    Guard(
        ("torch", "onnx", "import"),
        "our own importers, on saved programs too; TVM's are not used",
        _own_importers,
    ),
    Guard(
        ("tuning-db", "database"),
        "our own kernel cache, keyed and checked by content; JSONDatabase is not used",
        _own_cache,
    ),
    Guard(
        ("tuning", "schedule", "space"),
        "schedules come from rules that verify themselves; MetaSchedule is not used at export",
        _no_search_at_export,
    ),
    Guard(
        ("robust-ver", "version", "serial", "install"),
        "the version guard refuses pairs known to crash before they are imported",
        _checked_versions,
    ),
    Guard(
        ("robust", "runtime", "thread", "vm"),
        "the engine: one machine per thread over one checked file",
        _own_engine,
    ),
)
