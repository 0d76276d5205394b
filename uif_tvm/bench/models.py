"""The five networks of the comparison, built from their architectures and saved as ONNX.

Weights are random, as speed does not depend on them, but sane: batch normalisation is calibrated
on random images, so that activations keep their scale through every layer and outputs of different
engines can be compared with tight tolerances.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uif_tvm.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Feed = dict[str, NDArray[Any]]

#: Raise it when a recipe changes, so that cached files are built anew.
RECIPE_VERSION = 1
OPSET = 17
SEQUENCE = 128
SEED = 2026

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recipe:
    """How one network is made: ``build()`` gives a torch module in evaluation mode."""

    name: str
    kind: str
    build: Callable[[], Any]


def onnx_file(name: str, folder: Path) -> Path:
    """The ONNX file of the network ``name`` in ``folder``, built on first use."""
    path = folder / f"{name}-v{RECIPE_VERSION}.onnx"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _LOG.info("building %s", path)
        _export(recipe(name), path)
    return path


def recipe(name: str) -> Recipe:
    """The recipe called ``name``.

    Raises:
        UsageError: no such network.
    """
    for candidate in RECIPES:
        if candidate.name == name:
            return candidate
    known = ", ".join(candidate.name for candidate in RECIPES)
    raise UsageError(f"there is no benchmark model {name!r}; known: {known}")


def feed(name: str) -> Feed:
    """The input of the network ``name``: the same for every engine and every run."""
    import numpy as np

    rng = np.random.default_rng(SEED)
    if recipe(name).kind == "image":
        return {"pixel_values": rng.standard_normal((1, 3, 224, 224)).astype(np.float32)}
    return {
        "input_ids": rng.integers(0, 30522, (1, SEQUENCE)),
        "attention_mask": np.ones((1, SEQUENCE), np.int64),
        "token_type_ids": np.zeros((1, SEQUENCE), np.int64),
    }


def _export(chosen: Recipe, path: Path) -> None:
    import torch

    torch.manual_seed(SEED)
    module = chosen.build().eval()
    arrays = feed(chosen.name)
    images = chosen.kind == "image"
    if images:
        _calibrate(module)
    temporary = path.with_suffix(".tmp")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # The TorchScript exporter needs nothing but onnx; the newer one needs onnxscript too.
        torch.onnx.export(
            module if images else _by_keyword(module),
            tuple(torch.from_numpy(array) for array in arrays.values()),
            temporary,
            dynamo=False,
            input_names=list(arrays),
            output_names=["logits"] if images else ["last_hidden_state", "pooler_output"],
            opset_version=OPSET,
        )
    temporary.replace(path)


def _by_keyword(encoder: Any) -> Any:
    """The encoder with positional inputs and a plain tuple of outputs."""
    import torch

    class ByKeyword(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder

        def forward(self, ids: Any, mask: Any, types: Any) -> tuple[Any, Any]:
            out = self.encoder(input_ids=ids, attention_mask=mask, token_type_ids=types)
            return out.last_hidden_state, out.pooler_output

    return ByKeyword().eval()


def _calibrate(module: Any, batches: int = 3) -> None:
    """Give every batch normalisation the statistics of its input, and its own scale and shift.

    Those are not left at 1 and 0, so that an engine which dropped them would be found out.
    """
    import torch

    for layer in module.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(layer.weight, 0.8, 1.2)
            torch.nn.init.normal_(layer.bias, std=0.1)
            layer.reset_running_stats()
            layer.momentum = None  # cumulative average
    module.train()
    with torch.no_grad():
        for _ in range(batches):
            module(torch.randn(4, 3, 224, 224))
    module.eval()


def _resnet(depths: list[int], sizes: list[int], layer_type: str) -> Any:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        depths=depths, hidden_sizes=sizes, layer_type=layer_type, embedding_size=64, num_labels=1000
    )
    return ResNetForImageClassification(config)


def _mobilenet_v2() -> Any:
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    return MobileNetV2ForImageClassification(MobileNetV2Config(tf_padding=False, num_labels=1000))


def _bert(hidden: int, layers: int, heads: int, intermediate: int) -> Any:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=intermediate,
    )
    return BertModel(config)


RECIPES = (
    Recipe(
        "resnet50",
        "image",
        lambda: _resnet([3, 4, 6, 3], [256, 512, 1024, 2048], "bottleneck"),
    ),
    Recipe("resnet18", "image", lambda: _resnet([2, 2, 2, 2], [64, 128, 256, 512], "basic")),
    Recipe("mobilenet_v2", "image", _mobilenet_v2),
    Recipe("bert_base_128", "text", lambda: _bert(768, 12, 12, 3072)),
    Recipe("minilm_l6_128", "text", lambda: _bert(384, 6, 12, 1536)),
)
