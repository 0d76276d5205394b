"""The importer's contract: names, signature, constants, state, refusals."""

from __future__ import annotations

from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import torch
from torch import nn
from tvm import relax

from tests.frontends.torch.running import Function, build, check, run
from uif_tvm.errors import UnsupportedError, UsageError
from uif_tvm.frontends.torch import import_torch
from uif_tvm.frontends.torch.importer import import_program

Pair = namedtuple("Pair", ["first", "second"])


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.ReLU())

    def forward(self, pixels: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.body(pixels).contiguous().clone().detach()
        return {"hidden": hidden, "score": (hidden * mask).sum(-1)}


def test_names_come_from_the_source() -> None:
    imported = import_torch(Two().eval(), (torch.randn(2, 4), torch.ones(2, 3)))
    assert imported.source == "torch"
    assert [spec.name for spec in imported.signature.inputs] == ["pixels", "mask"]
    assert [spec.name for spec in imported.signature.outputs] == ["hidden", "score"]
    assert [str(spec) for spec in imported.signature.outputs] == [
        "hidden: float32[2, 3]",
        "score: float32[2]",
    ]
    main = imported.mod["main"]
    assert [p.name for p in main.params] == ["pixels", "mask"]
    assert isinstance(main.ret_ty, relax.TupleType)
    assert "body" in str(main)
    assert "linear" in str(main)
    assert imported.op_histogram["aten.linear.default"] == 1
    assert imported.removed["aten.clone.default"] >= 1


def test_training_flags_come_back() -> None:
    module = Two().train()
    module.body[2].eval()
    before = [part.training for part in module.modules()]
    import_torch(module, (torch.randn(2, 4), torch.ones(2, 3)))
    assert [part.training for part in module.modules()] == before


@pytest.mark.parametrize("as_numpy", [False, True])
def test_kinds_of_example_input(as_numpy: bool) -> None:
    def convert(tensor: torch.Tensor) -> object:
        return tensor.numpy() if as_numpy else tensor

    x, mask = convert(torch.randn(2, 4)), convert(torch.ones(2, 3))
    for example in ((x, mask), [x, mask], {"pixels": x, "mask": mask}):
        imported = import_torch(Two().eval(), example)
        assert [spec.name for spec in imported.signature.inputs] == ["pixels", "mask"]
    assert import_torch(nn.ReLU(), x).signature.inputs[0].shape == (2, 4)


def test_nested_inputs_and_outputs() -> None:
    class Nested(nn.Module):
        def forward(self, pair: tuple[torch.Tensor, dict[str, torch.Tensor]]) -> object:
            a, more = pair
            return OrderedDict(sum=a + more["b"], parts=[a, (more["b"], None)])

    imported = import_torch(Nested(), ((torch.ones(2), {"b": torch.zeros(2)}),))
    assert len(imported.signature.inputs) == 2
    names = [spec.name for spec in imported.signature.outputs]
    assert names == ["sum", "parts_0", "parts_1_0"]


def test_plain_outputs_are_numbered_and_none_is_left_out() -> None:
    imported = import_torch(Function(lambda x: (x + 1, None, x * 2)), torch.ones(2))
    assert [spec.name for spec in imported.signature.outputs] == ["output_0", "output_2"]
    named = import_torch(Function(lambda x: Pair(x + 1, x)), torch.ones(2))
    assert [spec.name for spec in named.signature.outputs] == ["first", "second"]


def test_one_output_twice_and_an_input_as_output() -> None:
    def model(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        return y, y, x

    check(model, torch.randn(3))


def test_linear_weight_is_transposed_at_import() -> None:
    imported = import_torch(nn.Linear(4, 3), torch.randn(2, 4))
    assert "permute_dims" not in str(imported.mod["main"])


def test_constant_parts_are_computed_at_import() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("base", torch.arange(4.0), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            angles = torch.outer(torch.arange(3.0), 1 / (10 ** (self.base / 4)))
            return x * angles.cos() + torch.full((3, 4), 2.0).tril()

    imported = check(Positions(), torch.randn(3, 4))
    assert set(imported.op_histogram) >= {"aten.cos.default"}
    assert "R.cos" not in imported.mod.script()


def test_dynamic_sizes_stay_symbolic() -> None:
    batch = torch.export.Dim("batch", min=1, max=32)
    layer = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Flatten(1), nn.Linear(256, 2)).eval()
    program = torch.export.export(layer, (torch.randn(2, 3, 8, 8),), dynamic_shapes=({0: batch},))
    imported = import_torch(program)
    x = torch.randn(5, 3, 8, 8)
    with torch.no_grad():
        want = layer(x).numpy()
    np.testing.assert_allclose(run(imported.mod, [x.numpy()])[0], want, rtol=1e-4, atol=1e-5)


def test_state_between_calls_is_refused() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return x * self.count

    with pytest.raises(UnsupportedError, match="count"):
        import_torch(Counter(), torch.ones(2))


def test_input_changed_in_place_gives_right_outputs() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    imported = check(model, torch.randn(3))
    assert imported.removed["in-place change of an input"] == 1


def test_without_the_host_its_operators_are_refused_all_at_once() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.fft.rfft(x).abs() + torch.linalg.det(x[:, :4])

    with pytest.raises(UnsupportedError) as caught:
        import_torch(Model(), torch.randn(4, 6))
    refused = {op.op for op in caught.value.ops}
    assert {"aten._fft_r2c.default", "aten._linalg_det.default"} <= refused
    assert all(op.locations[0].startswith("test_importer.py:") for op in caught.value.ops)


def test_control_flow_on_data_is_decided_by_the_example_and_checked_at_run_time() -> None:
    class Branch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if x.sum() > 0 else x - 1

    imported = import_torch(Branch(), torch.ones(2))
    (place,) = imported.specialised
    assert place.startswith("a value read at test_importer.py:")
    call = build(imported.mod)
    np.testing.assert_array_equal(call(np.full(2, 3, np.float32))[0], [4, 4])
    with pytest.raises(Exception, match="match_cast"):
        call(np.full(2, -3, np.float32))


def test_reasons_leave_tvms_placeholders_for_constants_out() -> None:
    program = torch.export.export(nn.Linear(3, 3).eval(), (torch.ones(2, 3).double(),))
    with pytest.raises(
        UnsupportedError, match=r"conversion failed: .*a constant .*float64"
    ) as caught:
        import_program(program)
    assert "etadata" not in str(caught.value)


def test_usage_errors() -> None:
    with pytest.raises(UsageError, match="needs dummy_input"):
        import_torch(nn.ReLU())
    with pytest.raises(UsageError, match="cannot import a int"):
        import_torch(3)


def test_every_unsupported_operator_is_listed_with_its_place() -> None:
    class Strange(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.rand_like(x) + torch.linalg.svdvals(x).sum() + torch.rand_like(x)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = Strange()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.part(x)

    with pytest.raises(UnsupportedError) as caught:
        import_torch(Outer(), torch.randn(3, 3))
    found = {op.op: op for op in caught.value.ops}
    assert found["aten.rand_like.default"].count == 2
    assert any("svd" in name for name in found)
    assert found["aten.rand_like.default"].locations[0].startswith("part (test_importer.py:")


def test_model_outputs_of_transformers_keep_their_keys() -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs")

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> object:
            return outputs.BaseModelOutput(last_hidden_state=x + 1, hidden_states=(x, x * 2))

    imported = import_torch(Model(), torch.ones(2))
    names = [spec.name for spec in imported.signature.outputs]
    assert names == ["last_hidden_state", "hidden_states_0", "hidden_states_1"]
