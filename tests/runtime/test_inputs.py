"""What users pass to ``run``, and what they read when it does not fit."""

from __future__ import annotations

import array
import re

import ml_dtypes
import numpy as np
import pytest
import torch

from tests.models import weights
from tests.runtime.conftest import DTYPES
from uif_tvm.errors import InputError
from uif_tvm.runtime.inputs import as_array, bind
from uif_tvm.runtime.tensors import numpy_dtype
from uif_tvm.signature import Signature, TensorSpec

A, B = weights(5, 3), weights(5, 3, seed=1)
IDS = np.array([3, 4])
EXPECTED = "a: float32[n, 3]; b: float32[n, 3]; my ids: int64[2]"


def signature(*specs: tuple[str, tuple, str]) -> Signature:
    return Signature(tuple(TensorSpec(*spec) for spec in specs), ())


ONE = signature(("x", (2,), "float32"))


class TestWaysToPass:
    @pytest.mark.parametrize(
        "call",
        [
            lambda run: run(A, B, IDS),
            lambda run: run({"my ids": IDS, "a": A, "b": B}),
            lambda run: run(**{"my ids": IDS, "a": A, "b": B}),
        ],
        ids=["positions", "dict", "keywords"],
    )
    def test_all_mean_the_same(self, two, call):
        total, ids = call(two.run)
        np.testing.assert_array_equal(total, A + B)
        np.testing.assert_array_equal(ids, [4, 5])

    def test_an_input_may_be_called_self(self):
        made = bind(signature(("self", (2,), "float32")), (), {"self": np.ones(2, np.float32)})
        assert made[0].tolist() == [1, 1]

    def test_no_inputs(self):
        assert bind(signature(), (), {}) == []
        assert bind(signature(), ({},), {}) == []


class TestRefusals:
    """Messages exactly as a user reads them."""

    def refused(self, two, *args, **named):
        with pytest.raises(InputError) as caught:
            two.run(*args, **named)
        assert caught.value.stage == "run"
        return caught.value

    def test_mixed(self, two):
        error = self.refused(two, A, b=B)
        assert str(error) == (
            "[UIF-RUN-MIXED] run: got 1 positional and 1 named inputs\n"
            "  remedy: pass all inputs by position, or all by name"
        )

    def test_dict_and_keywords(self, two):
        assert self.refused(two, {"a": A}, b=B).code == "UIF-RUN-MIXED"

    def test_too_few(self, two):
        error = self.refused(two, A)
        assert str(error) == (
            f"[UIF-RUN-COUNT] run: got 1 inputs, the model takes 3: {EXPECTED}\n"
            "  remedy: pass one array per input, in this order, or a dict by name"
        )

    def test_none_at_all(self, two):
        assert "got 0 inputs, the model takes 3" in str(self.refused(two))

    def test_inputs_as_one_list(self, two):
        assert self.refused(two, [A, B, IDS]).hint == "unpack the list: run(*inputs)"

    def test_names(self, two):
        error = self.refused(two, {"a": A, "B": B, "my_ids": IDS})
        assert str(error) == (
            "[UIF-RUN-NAMES] run: input names do not fit: missing 'b', 'my ids'; unknown 'B'; "
            "unknown 'my_ids' (did you mean 'my ids'?)\n"
            f"  remedy: the model takes {EXPECTED}"
        )

    def test_missing_name(self, two):
        assert "do not fit: missing 'my ids'\n" in str(self.refused(two, a=A, b=B))

    def test_names_that_are_no_text(self, two):
        assert "unknown '0'" in str(self.refused(two, {0: A, 1: B, 2: IDS}))

    def test_dtype(self, two):
        error = self.refused(two, A.astype(np.float64), B, IDS)
        assert str(error) == (
            "[UIF-RUN-DTYPE] run: input 0 ('a') has dtype float64, expected float32\n"
            "  remedy: convert it: array.astype('float32')"
        )

    def test_shape(self, two):
        error = self.refused(two, A, B[:, :2], IDS)
        assert str(error) == (
            "[UIF-RUN-SHAPE] run: input 1 ('b') has shape [5, 2], expected [n, 3]\n"
            "  remedy: reshape the input, or export the model for this shape"
        )

    def test_rank(self, two):
        assert "has shape [2, 1], expected [2]" in str(self.refused(two, A, B, IDS[:, None]))

    def test_symbolic_dimension_of_two_values(self, two):
        error = self.refused(two, A, B[:4], IDS)
        assert "dimension 'n' is 5 in 'a' but 4 in 'b'" in str(error)

    @pytest.mark.parametrize(
        "value", [None, object(), {"nested": 1}, [object()], [[1.0], [2.0, 3.0]]]
    )
    def test_no_array(self, two, value):
        error = self.refused(two, A, B, value)
        assert error.code == "UIF-RUN-TYPE"
        assert re.search(r"input 'my ids': (NoneType|object|dict|list) (is not|cannot)", str(error))

    def test_text(self, two):
        assert "has dtype <U3, expected int64" in str(self.refused(two, A, B, "abc"))

    def test_nothing_was_run(self, two):
        runs = two.get_stats()["runs"]
        self.refused(two, A)
        assert two.get_stats()["runs"] == runs


class TestKinds:
    """Anything array-like, with or without a copy."""

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_numpy_dtypes(self, echoes, dtype):
        x = np.arange(12).reshape(3, 4) % 2 if dtype == "bool" else np.arange(12).reshape(3, 4)
        x = x.astype(numpy_dtype(dtype))
        swapped, flipped = echoes[dtype].run(x)
        assert swapped.dtype == x.dtype
        np.testing.assert_array_equal(flipped, x[:, ::-1])

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_no_elements(self, echoes, dtype):
        swapped, flipped = echoes[dtype].run(np.zeros((0, 4), numpy_dtype(dtype)))
        assert swapped.shape == flipped.shape == (0, 4)

    @pytest.mark.parametrize("dtype", [d for d in DTYPES if hasattr(torch, d)])
    @pytest.mark.parametrize("layout", ["plain", "transposed", "sliced", "grad"])
    def test_torch(self, echoes, dtype, layout):
        x = (torch.arange(12) % 5).reshape(3, 4).to(getattr(torch, dtype))
        if layout == "transposed":
            x = x.T.contiguous().T
        elif layout == "sliced":
            x = torch.cat([x, x], dim=1)[:, ::2]
        elif layout == "grad":
            if not x.dtype.is_floating_point:
                pytest.skip("only floats have gradients")
            x = x.requires_grad_()
        want = x.detach().to(torch.float64).numpy()
        _, flipped = echoes[dtype].run(x)
        assert flipped.dtype == numpy_dtype(dtype)
        np.testing.assert_array_equal(flipped.astype(np.float64), want[:, ::-1])

    @pytest.mark.parametrize(
        "make",
        [
            lambda x: np.asfortranarray(x),
            lambda x: x[::-1][::-1],
            lambda x: np.repeat(x, 2, axis=1)[:, ::2],
            lambda x: np.concatenate([x, x])[3:],
            lambda x: x.astype(">f4"),
            lambda x: np.broadcast_to(x[:1], x.shape),
            lambda x: x.tolist(),
            lambda x: tuple(map(tuple, x.tolist())),
            lambda x: [array.array("f", row) for row in x],
            lambda x: memoryview(x.copy()),
        ],
        ids=[
            *("fortran", "reversed", "strided", "offset", "big-endian", "broadcast", "list"),
            *("tuple", "array", "memoryview"),
        ],
    )
    def test_layouts_and_other_containers(self, echoes, make):
        x = weights(3, 4)
        value = make(x)
        _, flipped = echoes["float32"].run(value)
        np.testing.assert_array_equal(flipped, np.asarray(value, np.float32)[:, ::-1])

    def test_unaligned(self, echoes):
        raw = np.zeros(1 + 3 * 4 * 4, np.uint8)
        x = raw[1:].view(np.float32).reshape(3, 4)
        x[...] = weights(3, 4)
        assert not x.flags.aligned
        np.testing.assert_array_equal(echoes["float32"].run(x)[1], x[:, ::-1])

    def test_read_only(self, echoes):
        x = weights(3, 4)
        x.flags.writeable = False
        np.testing.assert_array_equal(echoes["float32"].run(x)[1], x[:, ::-1])

    def test_plain_numbers_take_the_models_type_but_lose_nothing(self):
        (made,) = bind(signature(("x", (), "float32")), (3,), {})
        assert (made.dtype, made.item()) == (np.float32, 3.0)
        (made,) = bind(signature(("x", (2,), "int64")), ([1, 2],), {})
        assert made.dtype == np.int64
        with pytest.raises(InputError, match="has dtype float64, expected int64"):
            bind(signature(("x", (), "int64")), (2.5,), {})

    @pytest.mark.parametrize(
        ("dtype", "value", "named"),
        [
            ("int32", [2**40, 1], "1099511627776"),
            ("int8", [1, -129], "-129"),
            ("int64", [2**63, 2**63 + 1], "9223372036854775808"),
            ("float32", [0, 2**24 + 1], "16777217"),
            ("float64", [2**53 + 1, 2**53], "9007199254740993"),
            ("float64", [2**63 - 1, 0], "9223372036854775807"),
            ("float16", [100000, 0], "100000"),
            ("float32", [0.5, 1e300], "1e+300"),
            ("float16", [-1e5, 0.0], "-100000.0"),
        ],
    )
    def test_plain_numbers_that_do_not_fit(self, dtype, value, named):
        with pytest.raises(InputError) as caught:
            bind(signature(("x", (2,), dtype)), (value,), {})
        assert caught.value.code == "UIF-RUN-DTYPE"
        assert f"holds {named}, which {dtype} cannot" in caught.value.message

    @pytest.mark.parametrize(
        ("dtype", "value"),
        [
            ("int32", [-(2**31), 2**31 - 1]),
            ("float32", [2**24, -(2**24)]),
            ("float32", [float("inf"), float("-inf")]),
            ("float64", [2**60, 0]),
            ("int8", [True, False]),
        ],
    )
    def test_plain_numbers_at_the_limits(self, dtype, value):
        (made,) = bind(signature(("x", (2,), dtype)), (value,), {})
        assert (made.dtype, made.tolist()) == (np.dtype(dtype), value)

    def test_plain_floats_are_rounded_and_nan_stays(self):
        (made,) = bind(ONE, ([0.1, float("nan")],), {})
        assert made[0] == np.float32(0.1)
        assert np.isnan(made[1])

    def test_masked_arrays_are_refused(self):
        value = np.ma.masked_array(np.ones(2, np.float32), mask=[True, False])
        with pytest.raises(InputError, match="MaskedArray has a mask") as caught:
            bind(ONE, (value,), {})
        assert caught.value.code == "UIF-RUN-TYPE"
        assert "filled" in caught.value.hint

    def test_numpy_scalars_keep_their_type(self):
        with pytest.raises(InputError, match="has dtype float64, expected float32"):
            bind(signature(("x", (), "float32")), (np.float64(1),), {})

    def test_tensors_of_the_runtime(self):
        import tvm_ffi

        tensor = tvm_ffi.from_dlpack(np.ones(2, np.float32))
        assert bind(ONE, (tensor,), {})[0].tolist() == [1, 1]

    def test_device_tensor_is_refused_with_the_remedy(self):
        value = torch.ones(2, device="meta")
        with pytest.raises(InputError, match="Tensor cannot be read as an array") as caught:
            bind(ONE, (value,), {})
        assert "a CPU torch tensor" in caught.value.hint

    def test_sparse_tensor(self):
        with pytest.raises(InputError, match="cannot be read as an array"):
            bind(ONE, (torch.ones(2).to_sparse(),), {})

    def test_bfloat16_comes_over_the_same_memory(self):
        value = torch.ones(64, dtype=torch.bfloat16)
        made = as_array(value, "x")
        assert made.dtype == ml_dtypes.bfloat16
        assert made.ctypes.data == value.data_ptr()

    def test_memory_outlives_the_value(self):
        made = as_array(torch.full((1000,), 7.0), "x")
        other = [torch.zeros(1000) for _ in range(10)]
        assert (made == 7).all()
        assert len(other) == 10
