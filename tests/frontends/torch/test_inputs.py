"""Example inputs: their order, their dtypes, and what an exported program declares."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from uif_tvm.errors import ImportModelError
from uif_tvm.frontends.torch import import_torch


class Pair(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x - 2 * y


class Cast(nn.Module):
    """Takes any dtype to its weights'."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.float())


def names(model: Any, example: Any = None) -> list[str]:
    return [spec.name for spec in import_torch(model, example).signature.inputs]


def test_inputs_come_in_the_order_of_forward() -> None:
    example = {"y": torch.ones(2, 3), "x": torch.zeros(2, 3)}
    assert names(Pair(), example) == ["x", "y"]


def test_an_unknown_name_is_an_import_error() -> None:
    with pytest.raises(ImportModelError, match="cannot export Pair") as caught:
        import_torch(Pair(), {"z": torch.ones(2), "x": torch.ones(2)})
    assert "call model(**dummy_input) first" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("model", "sizes"), [(nn.Linear(3, 3), (2, 3)), (nn.Conv2d(3, 4, 1), (2, 3, 4, 4))]
)
@pytest.mark.parametrize("given", [torch.float64, torch.float16])
def test_mixed_dtypes_are_named(
    model: nn.Module, sizes: tuple[int, ...], given: torch.dtype
) -> None:
    with pytest.raises(ImportModelError) as caught:
        import_torch(model, torch.ones(sizes, dtype=given))
    text = str(caught.value)
    dtype = str(given).removeprefix("torch.")
    assert f"input 'input' is {dtype}, but the weights are float32" in text
    assert "convert the example with .float()" in text
    assert "Metadata" not in text


def test_integers_into_a_linear_layer_are_named() -> None:
    with pytest.raises(ImportModelError, match="'input' is int64, but the weights are float32"):
        import_torch(nn.Linear(3, 3), torch.ones(2, 3, dtype=torch.int64))


def test_a_model_that_casts_takes_other_dtypes() -> None:
    imported = import_torch(Cast(), torch.ones(2, 3, dtype=torch.float64))
    assert imported.signature.inputs[0].dtype == "float64"


@pytest.fixture(scope="module")
def program() -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=2, max=64)
    example = (torch.ones(4, 3), torch.ones(4, 3))
    return torch.export.export(
        Pair().eval(), example, dynamic_shapes={"x": {0: batch}, "y": {0: batch}}
    )


@pytest.mark.parametrize(
    ("example", "message"),
    [
        ((np.ones((4, 3), "float32"),), "1 example inputs for a program with 2"),
        ((torch.ones(4, 5), torch.ones(4, 3)), r"'x'.*\[4, 5\].*for \[\w+, 3\]"),
        ((torch.ones(4, 3), torch.ones(3)), r"'y'.*\[3\]"),
        ((torch.ones(4, 3), torch.ones(4, 3).double()), "'y'.*float64.*float32"),
        ((torch.ones(4, 3), 3), "'y'.*int, no tensor"),
        ({"x": torch.ones(4, 3), "z": torch.ones(4, 3)}, "'z'.*the program has 'x', 'y'"),
    ],
)
def test_an_example_that_contradicts_a_program_is_refused(
    program: torch.export.ExportedProgram, example: Any, message: str
) -> None:
    with pytest.raises(ImportModelError, match=message) as caught:
        import_torch(program, example)
    assert caught.value.code == "UIF-IMPORT-INPUT"


@pytest.mark.parametrize("rows", [4, 9])
def test_an_example_that_fits_a_program_is_taken(
    program: torch.export.ExportedProgram, rows: int
) -> None:
    x, y = np.ones((rows, 3), "float32"), torch.ones(rows, 3)
    for example in ((x, y), [x, y], {"y": y, "x": x}):
        assert names(program, example) == ["x", "y"]


def test_nested_examples_are_compared_leaf_by_leaf() -> None:
    class Nested(nn.Module):
        def forward(self, pair: list[torch.Tensor], scale: torch.Tensor) -> torch.Tensor:
            return (pair[0] + pair[1]) * scale

    pair, scale = [torch.ones(2), torch.ones(2)], torch.ones(1)
    program = torch.export.export(Nested(), (), {"pair": pair, "scale": scale})
    assert len(names(program, {"scale": scale, "pair": pair})) == 3
    with pytest.raises(ImportModelError, match=r"\[1\].*\[2\]"):
        import_torch(program, {"scale": scale, "pair": [scale, scale]})
