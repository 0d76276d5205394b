"""Open axes of PyTorch models: names, ranges, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

from tests.frontends.torch.running import build
from uif_tvm.errors import ImportModelError, UsageError
from uif_tvm.frontends.torch import import_torch
from uif_tvm.signature import DimRange


class Model(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scores = nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        return scores * mask[..., None] + torch.arange(x.shape[-2])[:, None]


EXAMPLE = (torch.randn(2, 5, 4), torch.ones(2, 5))


@pytest.mark.parametrize(
    "wanted",
    [
        {"x": {0: "batch", 1: ("seq", 1, 64)}, "mask": {0: "batch", 1: "seq"}},
        [["batch", ("seq", 1, 64), None], ["batch", "seq"]],
        {"x": {0: Dim("batch"), 1: Dim("seq", min=1, max=64)}, "mask": ["batch", "seq"]},
    ],
)
def test_named_axes_stay_open(wanted: Any) -> None:
    imported = import_torch(Model(), EXAMPLE, dynamic_shapes=wanted)
    x, mask = imported.signature.inputs
    assert x.shape == ("batch", "seq", 4)
    assert x.ranges == (DimRange("batch"), DimRange("seq", 1, 64))
    assert imported.signature.outputs[0].shape == ("batch", "seq", 4)
    assert mask.shape == ("batch", "seq")
    call = build(imported.mod)
    for batch, length in ((2, 5), (1, 1), (3, 9)):
        inputs = torch.randn(batch, length, 4), torch.rand(batch, length)
        want = Model()(*inputs).numpy()
        np.testing.assert_allclose(call(*(t.numpy() for t in inputs))[0], want, 1e-4, 1e-5)


def test_auto_opens_every_axis_that_the_model_allows() -> None:
    imported = import_torch(Model(), EXAMPLE, dynamic_shapes="auto")
    x, mask = imported.signature.inputs
    assert all(isinstance(size, str) for size in x.shape[:2])
    assert mask.shape == x.shape[:2]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("all", "neither a mapping"),
        ({"y": {0: "batch"}}, "no argument 'y'"),
        ({"x": {3: "batch"}}, "no axis 3"),
        ({"x": {0: 7}}, "fixed at 7"),
        ({"x": {0: ("batch", 1, 4)}, "mask": {0: ("batch", 1, 8)}}, "two ranges"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(wanted: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        import_torch(Model(), EXAMPLE, dynamic_shapes=wanted)


def test_an_axis_that_the_model_fixes_is_named() -> None:
    with pytest.raises(ImportModelError, match=r"cannot keep these axes open: .*batch") as caught:
        import_torch(Model(), EXAMPLE, dynamic_shapes={"x": {0: "batch"}})
    assert caught.value.code == "UIF-IMPORT-DYNAMIC"


def test_programs_have_their_axes_settled() -> None:
    program = torch.export.export(Model(), EXAMPLE)
    with pytest.raises(UsageError, match="exported already"):
        import_torch(program, dynamic_shapes={"x": {0: "batch"}})
