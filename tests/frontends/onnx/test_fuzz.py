"""Whatever a model file holds, import ends in a model or in a typed error."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.frontends.onnx.small_models import ALL
from uif_tvm.errors import UifError
from uif_tvm.frontends.onnx import import_onnx

Maker = Callable[[], tuple[Any, dict[str, Any]]]


def accepts_or_refuses(model: Any, inputs: dict[str, Any]) -> bool:
    """Whether the model was imported; anything but a typed error propagates."""
    try:
        import_onnx(model, inputs)
    except UifError:
        return False
    return True


@pytest.mark.parametrize("make", ALL)
def test_whole_models_are_accepted(make: Maker) -> None:
    assert accepts_or_refuses(*make())


@pytest.mark.parametrize("make", ALL)
def test_truncated_files(make: Maker, tmp_path: Any) -> None:
    model, inputs = make()
    data = model.SerializeToString()
    path = tmp_path / "m.onnx"
    refused = 0
    for length in range(0, len(data), max(len(data) // 120, 1)):
        path.write_bytes(data[:length])
        refused += not accepts_or_refuses(path, inputs)
    assert refused > 60


@pytest.mark.parametrize("make", ALL)
def test_flipped_bits(make: Maker) -> None:
    model, inputs = make()
    data = model.SerializeToString()
    rng = random.Random(7)
    refused = 0
    for _ in range(400):
        damaged = bytearray(data)
        for _ in range(rng.choice((1, 1, 1, 4))):
            damaged[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        refused += not accepts_or_refuses(bytes(damaged), inputs)
    assert refused > 40


def _mutate(model: Any, rng: random.Random) -> None:
    """One structural change of the kinds that exporters and editors make by mistake."""
    from onnx import helper

    graph = model.graph
    node = rng.choice(graph.node)
    names = [n for other in graph.node for n in (*other.input, *other.output)]
    kind = rng.randrange(12)
    if kind == 0 and node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice([*names, "", "nowhere"])
    elif kind == 1 and node.output:
        node.output[0] = rng.choice(names)
    elif kind == 2:
        node.op_type = rng.choice(
            ("Conv", "LSTM", "Concat", "Nope", "If", "Reshape", "TopK", "Pad")
        )
    elif kind == 3 and node.attribute:
        del node.attribute[rng.randrange(len(node.attribute))]
    elif kind == 4:
        value = rng.choice([-1, 0, 3, 2**31, 2**62, [], [0], [-5, 7, 2**40], 1.5, "SAME_UPPER"])
        name = rng.choice(("axis", "perm", "pads", "strides", "axes", "group", "auto_pad", "alpha"))
        if isinstance(value, list) and not value:
            return
        node.attribute.append(helper.make_attribute(name, value))
    elif kind == 5 and graph.initializer:
        weight = rng.choice(graph.initializer)
        if weight.dims:
            weight.dims[rng.randrange(len(weight.dims))] = rng.choice((0, 1, -1, 5, 2**40, 2**62))
    elif kind == 6 and graph.initializer:
        rng.choice(graph.initializer).data_type = rng.choice((0, 2, 6, 7, 8, 9, 10, 11, 16, 99))
    elif kind == 7:
        model.opset_import[0].version = rng.choice((-1, 0, 1, 5, 9, 12, 13, 18, 999, 2**40))
    elif kind == 8 and graph.initializer:
        del graph.initializer[rng.randrange(len(graph.initializer))]
    elif kind == 9:
        node.domain = rng.choice(("ai.onnx", "ai.onnx.ml", "com.microsoft", "else.where"))
    elif kind == 10 and node.input:
        node.input.append(rng.choice(names))
    else:
        order = list(graph.node)
        rng.shuffle(order)
        del graph.node[:]
        graph.node.extend(order)


@pytest.mark.parametrize("make", ALL)
def test_mutated_structures(make: Maker) -> None:
    whole, inputs = make()
    rng = random.Random(11)
    refused = 0
    for _ in range(300):
        model = type(whole)()
        model.CopyFrom(whole)
        for _ in range(rng.choice((1, 1, 2))):
            _mutate(model, rng)
        refused += not accepts_or_refuses(model, inputs)
    assert refused > 100


def test_values_of_integer_initializers() -> None:
    """Axes, shapes and indices in weights: any value is taken or refused."""
    from onnx import numpy_helper

    rng = random.Random(3)
    for make in ALL:
        whole, inputs = make()
        places = [i for i, w in enumerate(whole.graph.initializer) if w.data_type == 7]
        for place in places:
            for _ in range(25):
                model = type(whole)()
                model.CopyFrom(whole)
                weight = model.graph.initializer[place]
                array = numpy_helper.to_array(weight).copy()
                array[...] = rng.choice((-(2**63), -7, -1, 0, 1, 5, 100, 2**31, 2**62))
                weight.CopyFrom(numpy_helper.from_array(array, weight.name))
                accepts_or_refuses(model, inputs)


def test_inputs_that_do_not_fit() -> None:
    model, inputs = ALL[0]()
    wrong = [
        {"x": np.zeros((2, 5), np.float32)},
        {"x": np.zeros((2, 4), np.float64)},
        {"x": np.zeros((2, 4, 1), np.float32)},
        {"other": inputs["x"]},
        {},
        [],
        [inputs["x"], inputs["x"]],
        None,
    ]
    assert not any(accepts_or_refuses(model, item) for item in wrong)  # type: ignore[arg-type]
