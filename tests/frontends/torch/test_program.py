"""Exporting modules: what is said when it fails, and of modules in training mode."""

from __future__ import annotations

import logging
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.frontends.torch.running import Function
from uif_tvm.errors import ImportModelError, TrainModeWarning, UnsupportedError
from uif_tvm.frontends.torch import import_torch


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.norm(x))


class Functional(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(x, 0.3, self.training)


def test_control_flow_on_random_numbers_is_named() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if torch.rand(()).mul(float("nan")).item() > 0 else x - 1

    with pytest.raises(ImportModelError) as caught:
        import_torch(Function(function), torch.ones(2))
    assert "control flow" in str(caught.value.hint)


def test_a_model_that_does_not_run_is_not_blamed_on_control_flow(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ImportModelError, match=r"\[2, 3\] X \[7, 7\]") as caught:
        import_torch(Function(lambda x: x @ torch.ones(7, 7)), torch.ones(2, 3))
    assert "it must run in PyTorch" in str(caught.value.hint)
    assert "control flow" not in str(caught.value.hint)
    assert capfd.readouterr().err == ""
    assert not logging.getLogger("torch._subclasses.fake_tensor").disabled


@pytest.mark.parametrize("module", [Norm(), Functional(), nn.Sequential(nn.Dropout())])
def test_training_mode_is_told(module: nn.Module) -> None:
    with pytest.warns(TrainModeWarning, match="exported as in eval mode") as caught:
        import_torch(module.train(), torch.ones(2, 3))
    assert [w.filename for w in caught if w.category is TrainModeWarning] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error", TrainModeWarning)
        import_torch(module.eval(), torch.ones(2, 3))


def test_parts_that_do_not_depend_on_training_are_not_told_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", TrainModeWarning)
        import_torch(nn.Sequential(nn.Linear(3, 3), nn.ReLU()).train(), torch.ones(2, 3))


@pytest.mark.parametrize("module", [Norm(), Functional(), nn.Dropout()])
def test_programs_exported_in_training_mode_are_refused_with_the_remedy(module: nn.Module) -> None:
    program = torch.export.export(module.train(), (torch.ones(2, 3),))
    with pytest.raises(UnsupportedError) as caught:
        import_torch(program)
    assert caught.value.hint == "call model.eval() before torch.export.export"
