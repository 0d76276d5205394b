"""The networks of the comparison have the size of the originals, and sane activations."""

from __future__ import annotations

import numpy as np
import pytest

from uif_tvm.bench import flops, models
from uif_tvm.errors import UsageError

#: Multiply-adds of the originals, in GFLOP (two per multiply-add), from their papers and model
#: cards: He et al. 2015 (3.8 and 1.8 G at 224x224, v1.5 has 4.1), Sandler et al. 2018 (0.3 G).
EXPECTED = {"mobilenet_v2": 0.6, "resnet18": 3.6}


@pytest.mark.parametrize("name", EXPECTED)
def test_size_and_sanity(name, tmp_path):
    import onnxruntime

    path = models.onnx_file(name, tmp_path)
    assert flops.count(path) / 1e9 == pytest.approx(EXPECTED[name], rel=0.05)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, dict(models.feed(name)))
    assert logits.shape == (1, 1000)
    assert 1e-3 < np.abs(logits).max() < 1e3
    assert logits.std() > 1e-3
    stamp = path.stat().st_mtime_ns
    assert models.onnx_file(name, tmp_path).stat().st_mtime_ns == stamp


def test_inputs_are_the_same_every_time():
    for recipe in models.RECIPES:
        first, second = models.feed(recipe.name), models.feed(recipe.name)
        for name, array in first.items():
            np.testing.assert_array_equal(array, second[name])


def test_unknown_names_are_refused():
    with pytest.raises(UsageError, match="known: resnet50"):
        models.recipe("lenet")
