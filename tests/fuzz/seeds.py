"""Whole models to damage: ONNX's node tests, our cases, and trained models of the corpus."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: Trained models larger than this are left out: their mutants would cost minutes each.
MAX_BYTES = 3_000_000
CORPUS = Path(__file__).parents[1] / "corpus" / "corpus.json"


def node_tests() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """(name, model, inputs) of ONNX's own node tests whose inputs are tensors."""
    import numpy as np
    from onnx.backend.test.case.node import collect_testcases

    for test in collect_testcases():
        inputs = test.data_sets[0][0]
        if all(isinstance(array, np.ndarray) and array.dtype != object for array in inputs):
            names = [value.name for value in test.model.graph.input]
            yield test.name, test.model, dict(zip(names, inputs, strict=False))


def cases() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """(name, model, inputs) of the ONNX cases of ``make cases``."""
    from tests.cases.check import HERE, listed

    for _, case in listed(HERE):
        if case["kind"] == "onnx":
            model, inputs, _ = case["build"]()
            yield case["id"], model, dict(inputs)


def archives() -> Iterator[tuple[str, bytes, dict[str, Any]]]:
    """(name, .pt2 file, inputs) of small PyTorch programs, one with a dimension that varies."""
    import io

    import torch

    class Mixed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(1, 2, 3)
            self.linear = torch.nn.Linear(8, 3)
            self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0]))

        def forward(self, image: Any, index: Any) -> Any:
            x = torch.relu(self.conv(image)).flatten(1)
            return self.linear(x).softmax(-1) * self.scale, x[:, index]

    batch = torch.export.Dim("batch", min=2, max=8)
    args = (torch.randn(2, 1, 4, 4), torch.tensor([0, 3]))
    for name, shapes in (("static", None), ("dynamic", ({0: batch}, None))):
        file = io.BytesIO()
        torch.export.save(torch.export.export(Mixed().eval(), args, dynamic_shapes=shapes), file)
        feed = {"image": args[0].numpy(), "index": args[1].numpy()}
        yield f"pt2-{name}", file.getvalue(), feed


def corpus() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """(name, model, inputs) of the corpus's small trained models that are there already."""
    import numpy as np
    import onnx

    from examples.fetch import cache_folder

    for entry in json.loads(CORPUS.read_text()):
        path = cache_folder() / entry["package"] / entry["file"]
        if not path.exists() or path.stat().st_size > MAX_BYTES:
            continue
        about = next(iter(entry["cases"].values()))
        with np.load(CORPUS.parent / about["io"], allow_pickle=False) as archive:
            names = json.loads(str(archive["meta"]))["inputs"]
            inputs = {name: archive[f"in{i}"] for i, name in enumerate(names)}
        yield entry["id"], onnx.load(path), inputs
