"""All values of a model's outermost graph on given inputs. Runs in a worker process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from uif_tvm.selection.arrays import Array, load_arrays, save_arrays
from uif_tvm.selection.coverage.capture_onnx import inlined, read_tensor
from uif_tvm.selection.coverage.made_up import Guesses, complete
from uif_tvm.selection.coverage.walk import Scope, Traced, Walker
from uif_tvm.selection.onnx_node import Evaluator, Setting, tensor


def capture_values(model: str, inputs: str | None, folder: str, runtime: bool = True) -> Any:
    """Evaluate ``model`` node by node and keep every tensor.

    Args:
        model: path of an ``.onnx`` file.
        inputs: ``.npz`` of its inputs; ``None`` to make them up for static shapes.
        folder: receives ``model.onnx`` (functions expanded, weights inside), ``inputs.npz`` and
            ``values.npz``.
        runtime: whether ONNX Runtime may evaluate nodes.

    Returns:
        ``fixed``: names that no input decides; ``guessed``: names that nobody could compute, and
        whose values are made up; ``lists``: names of sequences.

    Raises:
        ImportModelError: the model is malformed, or inputs are missing.
    """
    from uif_tvm.frontends.onnx.load import load_model
    from uif_tvm.frontends.onnx.tensors import to_numpy
    from uif_tvm.frontends.onnx.validate import check_graph, opset_versions

    loaded = load_model(model)
    check_graph(loaded.proto.graph)
    versions = opset_versions(loaded.proto.opset_import)
    proto = inlined(loaded.proto)
    weights = {item.name for item in proto.graph.initializer}
    declared = [value for value in proto.graph.input if value.name not in weights]
    feeds = complete(declared, load_arrays(Path(inputs)) if inputs else {})

    seen: dict[str, Traced] = {}
    arrays: dict[str, Array] = {}

    def watch(name: str, value: Traced) -> None:
        seen[name] = value
        if value.value is not None and not isinstance(value.value, list):
            arrays[name] = np.asarray(value.value)

    def read(item: Any) -> Array:
        return read_tensor(item, loaded.folder, to_numpy)

    walker = Walker(
        Setting(versions, int(proto.ir_version), list(proto.functions)),
        read,
        Evaluator(runtime),
        lambda met: None,
        Guesses(proto, feeds),
        watch,
    )
    walker.graph(proto.graph, Scope(values={n: Traced(v) for n, v in feeds.items()}))
    _write(Path(folder), proto, read, feeds, arrays)
    return {
        "fixed": [name for name, value in seen.items() if value.fixed],
        "guessed": [name for name, value in seen.items() if value.guessed],
        "lists": [name for name, value in seen.items() if isinstance(value.value, list)],
    }


def _write(
    folder: Path,
    proto: Any,
    read: Callable[[Any], Array],
    feeds: Mapping[str, Array],
    arrays: Mapping[str, Array],
) -> None:
    """The files that :func:`capture_values` promises."""
    folder.mkdir(parents=True, exist_ok=True)
    for item in proto.graph.initializer:
        if item.data_location == item.EXTERNAL:
            item.CopyFrom(tensor(read(item), item.name))
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    save_arrays(folder / "inputs.npz", feeds)
    save_arrays(folder / "values.npz", arrays)
