"""Small floats and integers against ml_dtypes, over every half-precision number."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto
from onnx.numpy_helper import saturate_cast, to_float8e8m0

from tests.frontends.onnx.harness import single
from uif_tvm.onnx_backend import run_model

FLOATS = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float4_e2m1fn"]
CODES = {
    "float8_e4m3fn": TensorProto.FLOAT8E4M3FN,
    "float8_e4m3fnuz": TensorProto.FLOAT8E4M3FNUZ,
    "float8_e5m2": TensorProto.FLOAT8E5M2,
    "float8_e5m2fnuz": TensorProto.FLOAT8E5M2FNUZ,
    "float8_e8m0fnu": TensorProto.FLOAT8E8M0,
    "float4_e2m1fn": TensorProto.FLOAT4E2M1,
    "int4": TensorProto.INT4,
    "uint4": TensorProto.UINT4,
    "int2": TensorProto.INT2,
}
HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)


def cast(array, to, **attributes):
    model, feeds = single("Cast", [array], opset=25, to=CODES.get(to, to), **attributes)
    model.ir_version = 13
    (result,) = run_model(model, feeds, cache_dir=None)
    return result


def same(have, want):
    """Equal bit by bit, but for the sign of NaN."""
    assert have.dtype == want.dtype
    wide, expected = have.astype(np.float32), want.astype(np.float32)
    np.testing.assert_array_equal(wide, expected)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(wide[numbers]), np.signbit(expected[numbers]))


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_half_is_rounded_and_saturated_as_specified(dtype):
    to = getattr(ml_dtypes, dtype)
    # The 4-bit type has no NaN: which of its zeros stands for one is nobody's business.
    x = HALVES[~np.isnan(HALVES)] if dtype == "float4_e2m1fn" else HALVES
    with np.errstate(all="ignore"):
        want = saturate_cast(x, to)
    same(cast(x, dtype), want)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2fnuz"])
def test_what_is_too_large_becomes_nan_or_infinity_without_saturation(dtype):
    with np.errstate(all="ignore"):
        want = HALVES.astype(getattr(ml_dtypes, dtype))
    same(cast(HALVES, dtype, saturate=0), want)


def test_doubles_are_rounded_once():
    """Just above a tie: through float32 the number would become the tie, and round to even."""
    x = np.array([1.0625 + 1e-12, 1.0625, 1e300, -1e-300], np.float64)
    same(cast(x, "float8_e4m3fn"), np.array([1.125, 1.0, 448, -0.0], ml_dtypes.float8_e4m3fn))


@pytest.mark.parametrize("dtype", [*FLOATS, "float8_e8m0fnu"])
def test_every_code_is_decoded(dtype):
    bits = ml_dtypes.finfo(getattr(ml_dtypes, dtype)).bits
    codes = np.arange(1 << bits, dtype=np.uint8).view(getattr(ml_dtypes, dtype))
    np.testing.assert_array_equal(cast(codes, TensorProto.FLOAT), codes.astype(np.float32))


@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
@pytest.mark.parametrize("saturate", [0, 1])
def test_powers_of_two(mode, saturate):
    x = np.array([0, 1e-40, 0.75, 1, 1.25, 1.5, 1.75, 3, 2e38, 3.4e38, np.inf], np.float32)
    have = cast(x, "float8_e8m0fnu", round_mode=mode, saturate=saturate)
    np.testing.assert_array_equal(
        have.view(np.uint8), to_float8e8m0(x, bool(saturate), mode).view(np.uint8)
    )


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int2"])
def test_small_integers(dtype):
    to = getattr(ml_dtypes, dtype)
    numbers = np.arange(-20, 21, dtype=np.int8)
    np.testing.assert_array_equal(cast(numbers, dtype), numbers.astype(to))
    inside = np.arange(int(ml_dtypes.iinfo(to).min), int(ml_dtypes.iinfo(to).max) + 1).astype(to)
    np.testing.assert_array_equal(cast(inside, TensorProto.FLOAT), inside.astype(np.float32))
    np.testing.assert_array_equal(cast(inside, TensorProto.BOOL), inside.astype(bool))


def test_quantised_to_four_bits_and_back():
    x = np.linspace(-3, 3, 24, dtype=np.float32).reshape(4, 6)
    scale = np.array([0.5, 0.25, 1, 0.125], np.float32)
    zero = np.array([1, 0, -2, 3], ml_dtypes.int4)
    model, feeds = single("QuantizeLinear", [x, scale, zero], opset=21, axis=0)
    (q,) = run_model(model, feeds, cache_dir=None)
    wanted = np.rint(x / scale[:, None]) + zero.astype(np.float32)[:, None]
    np.testing.assert_array_equal(q, np.clip(wanted, -8, 7).astype(ml_dtypes.int4))
    model, feeds = single("DequantizeLinear", [q, scale, zero], opset=21, axis=0)
    (back,) = run_model(model, feeds, cache_dir=None)
    expected = (q.astype(np.float32) - zero.astype(np.float32)[:, None]) * scale[:, None]
    np.testing.assert_array_equal(back, expected)
