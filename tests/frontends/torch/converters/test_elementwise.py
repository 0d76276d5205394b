"""Unary functions, activations, comparisons and selection, on awkward values."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tests.frontends.torch.running import check

NAN, INF = float("nan"), float("inf")
ODD = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1.5, -2.5, 0.5, 30.0, -30.0])
INTS = torch.tensor([-3, 0, 2, 5])


def test_activations_keep_nan() -> None:
    check(
        lambda x: (
            F.relu(x),
            F.relu6(x),
            F.hardtanh(x),
            F.leaky_relu(x, 0.1),
            F.silu(x),
            F.gelu(x),
            F.gelu(x, approximate="tanh"),
            F.elu(x, 0.7),
            F.selu(x),
            F.celu(x),
            F.softplus(x, 2.0),
            F.hardswish(x),
            F.hardsigmoid(x),
            F.mish(x),
            F.logsigmoid(x),
            F.threshold(x, 0.5, 3.0),
            x.clamp(-1, 1),
            x.clamp_min(0),
            x.clamp(max=2.0),
        ),
        torch.cat([ODD[~ODD.isinf()], torch.randn(20)]),  # PyTorch itself: gelu(inf) is NaN
        rtol=1e-4,
    )


def test_clamp_by_tensors_and_of_integers() -> None:
    check(
        lambda x, low, i: (
            torch.clamp(x, low, low + 1),
            i.clamp(-1, 2),
            i.clamp(min=0.5),
            torch.clamp(x, 2, 1),
            (i > 0).clamp(min=torch.tensor(True)),
        ),
        torch.tensor([NAN, 1.0, -5.0]),
        torch.tensor([0.0, NAN, -1.0]),
        INTS,
    )


def test_rounding() -> None:
    x = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 2.4, NAN, INF])
    check(
        lambda v, i: (
            v.round(),
            v.floor(),
            v.ceil(),
            v.trunc(),
            v.frac(),
            torch.round(v, decimals=1),
            i.round(),
            i.floor(),
            v.sign(),
            i.sign(),
        ),
        x,
        INTS,
    )


def test_functions_of_integers_give_floats() -> None:
    check(
        lambda i: (i.sqrt(), i.exp(), i.sigmoid(), i.reciprocal(), i.sin(), i.tanh(), i.abs(), -i),
        torch.tensor([1, 2, 4]),
        rtol=1e-4,
    )


def test_mathematical_functions() -> None:
    x = torch.linspace(-0.95, 0.95, 21)
    check(
        lambda v: (
            v.asin(),
            v.acos(),
            v.atan(),
            v.sinh(),
            v.cosh(),
            v.tan(),
            v.asinh(),
            (v + 2).acosh(),
            v.atanh(),
            v.expm1(),
            v.log1p(),
            v.erf(),
            v.erfc(),
            (v + 1).log2(),
            (v + 1).log10(),
            (v + 1).rsqrt(),
            v.exp2(),
            (v + 3).lgamma(),
        ),
        x,
        rtol=1e-4,
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_rounds_once(dtype: torch.dtype) -> None:
    x = torch.randn(64).to(dtype)
    check(
        lambda v: (
            F.gelu(v).float(),
            v.exp().float(),
            F.softmax(v, 0).float(),
            (v * 0.3).float(),
            v.mean().float(),
        ),
        x,
        rtol=1e-2,
        atol=1e-3,
    )


def test_comparisons_of_mixed_dtypes() -> None:
    check(
        lambda i, f, b: (i < f, i == 2.5, i >= 2, f != i, b == i, b > False, torch.eq(b, b)),
        INTS,
        torch.tensor([-3.5, 0.0, 2.0, NAN]),
        torch.tensor([True, False, True, False]),
    )


def test_logic_on_numbers() -> None:
    check(
        lambda i, f: (
            torch.logical_and(i, f),
            torch.logical_or(i, f),
            torch.logical_xor(i, f),
            torch.logical_not(f),
            i & 3,
            i | 4,
            i ^ 1,
            ~i,
            ~(i > 0),
            (i > 0) & (f > 0),
            i << 2,
            i >> 1,
        ),
        INTS,
        torch.tensor([NAN, 0.0, -0.0, 1.0]),
    )


def test_nan_predicates() -> None:
    check(
        lambda x, i: (
            x.isnan(),
            x.isinf(),
            x.isfinite(),
            torch.isposinf(x),
            torch.isneginf(x),
            torch.signbit(x),
            torch.nan_to_num(x),
            torch.nan_to_num(x, nan=1.0, posinf=2.0, neginf=-2.0),
            i.isnan(),
            torch.isfinite(i),
        ),
        ODD,
        INTS,
    )


def test_where_and_masked_fill_broadcast() -> None:
    x, mask = torch.randn(2, 3), torch.tensor([[True], [False]])
    check(
        lambda v, m, i: (
            torch.where(m, v, 0),
            torch.where(m, i, v),
            torch.where(m, 1, 2.5),
            v.masked_fill(m, -INF),
            i.masked_fill(m, 7),
            torch.where(m, v, torch.tensor(1.0, dtype=torch.float64)),
        ),
        x,
        mask,
        torch.arange(6).reshape(2, 3),
    )


def test_casts() -> None:
    check(
        lambda f, i: (
            f.to(torch.int64),
            f.bool(),
            i.bool(),
            i.to(torch.float64),
            i.to(torch.uint8),
            f.to(torch.int8),
            i.to(torch.bool).float(),
        ),
        torch.tensor([0.5, -1.7, 0.0, 100.9]),
        torch.tensor([0, 300, -1, 5]),
    )
