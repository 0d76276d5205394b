"""Whatever a model file holds, import ends in a model or in a typed error."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.frontends.onnx.small_models import ALL
from tests.fuzz.attempt import ACCEPTED, attempt, fitting
from tests.fuzz.mutate import MUTATIONS, mutated
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


@pytest.mark.parametrize("make", ALL)
def test_mutated_structures(make: Maker) -> None:
    whole, inputs = make()
    rng = random.Random(11)
    refused = 0
    for _ in range(300):
        data = mutated(whole, rng)
        refused += not accepts_or_refuses(data, fitting(data, inputs))
    assert refused > 100


def test_every_mutation_finds_something_to_change() -> None:
    """Each kind of damage changes some model; the same seed gives the same damage."""
    for change in MUTATIONS:
        changed = 0
        for make in ALL:
            whole, _ = make()
            model = type(whole)()
            model.CopyFrom(whole)
            changed += change(model, random.Random(5)) and model != whole
        assert changed, change.__name__
    whole, _ = ALL[0]()
    assert mutated(whole, random.Random(3)) == mutated(whole, random.Random(3))


def test_mutants_through_the_public_flow() -> None:
    """A few whole ways from file to result; ``make fuzz`` goes thousands."""
    outcomes = Counter(
        attempt(data, fitting(data, inputs), 2)["outcome"]
        for number in range(24)
        for make in ALL[number % len(ALL) :][:1]
        for whole, inputs in [make()]
        for data in [mutated(whole, random.Random(100 + number))]
    )
    assert set(outcomes) <= set(ACCEPTED), outcomes
    assert len(outcomes) == 2, outcomes


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
