"""Arithmetic: PyTorch's result dtypes, signs of remainders, no traps."""

from __future__ import annotations

import torch

from tests.frontends.torch.running import check

NAN, INF = float("nan"), float("inf")
INTS = torch.tensor([-7, -1, 0, 3, 7])
FLOATS = torch.tensor([-7.5, -0.5, 0.0, 3.25, 7.0])


def test_integers_and_scalars_promote() -> None:
    check(
        lambda i, f, b: (
            i * 0.5,
            i / 2,
            i / (i.abs() + 1),
            i + 1.5,
            2.5 - i,
            i + f,
            b + 1,
            b + b,
            b * b,
            b * 2.0,
            f * 2,
            i.to(torch.int8) + i,
            i.to(torch.uint8) + i.to(torch.int8),
            torch.add(f, i, alpha=3),
            torch.rsub(i, 10, alpha=2),
            i.to(torch.float16) * f,
            i.to(torch.float16) * 0.1,
        ),
        INTS,
        FLOATS,
        torch.tensor([True, False, True, True, False]),
    )


def test_zero_dimensional_tensors_promote_like_scalars() -> None:
    check(
        lambda v, z, w: (v + z, v * w, z / 3, z + w, v > z),
        torch.tensor([1, 2], dtype=torch.int32),
        torch.tensor(3),
        torch.tensor(0.5, dtype=torch.float64),
    )


def test_division_and_remainder_signs() -> None:
    def all_kinds(i: torch.Tensor, f: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parts = []
        for d in (3, -3, 2, -2, -1):
            parts += [
                i // d,
                i % d,
                torch.fmod(i, d),
                torch.div(i, d, rounding_mode="trunc"),
                torch.div(i, d, rounding_mode="floor"),
                f // d,
                f % d,
                torch.fmod(f, d),
                torch.div(f, d, rounding_mode="trunc"),
                f % (d + 0.25),
                f // (d + 0.25),
            ]
        return tuple(parts)

    check(all_kinds, INTS, FLOATS)


def test_division_of_floats_by_zero() -> None:
    check(
        lambda a, b: (a / b, a // b, a % b, torch.fmod(a, b)),
        torch.tensor([1.0, -1.0, 0.0, INF, NAN]),
        torch.tensor([0.0, 0.0, 0.0, 2.0, 1.0]),
    )


def test_integer_division_by_data_never_traps() -> None:
    """PyTorch raises where a divisor is zero; a kernel cannot, and must not kill the process."""
    from tests.frontends.torch.running import Function, run
    from uif_tvm.frontends.torch import import_torch

    low = torch.iinfo(torch.int64).min
    a, b = torch.tensor([5, low, -7, 8]), torch.tensor([1, -1, 2, 3])
    imported = import_torch(Function(lambda x, y: (x // y, x % y)), (a, b))
    quotient, remainder = run(imported.mod, [a.numpy(), torch.tensor([0, -1, 2, -3]).numpy()])
    assert quotient.tolist() == [0, low, -4, -3]
    assert remainder.tolist() == [0, 0, 1, -1]


def test_power() -> None:
    check(
        lambda i, e, f: (
            i.pow(3),
            i.pow(0),
            i.pow(2),
            i**e,
            2**e,
            (-3) ** e,
            f**2,
            f**3,
            f**0.5,
            f**-1,
            f**-2,
            f**0,
            f**1.7,
            i**2.0,
            f ** e.float(),
            (i.to(torch.int8)).pow(5),
        ),
        INTS,
        torch.tensor([0, 1, 2, 5, 21]),
        FLOATS,
    )


def test_extremes_keep_nan() -> None:
    a = torch.tensor([NAN, 1.0, NAN, 2.0, -0.0])
    b = torch.tensor([1.0, NAN, NAN, 3.0, 0.0])
    check(
        lambda x, y, i: (
            torch.maximum(x, y),
            torch.minimum(x, y),
            torch.fmax(x, y),
            torch.fmin(x, y),
            torch.maximum(i, i - 1),
            torch.maximum(i > 0, i > 1),
        ),
        a,
        b,
        INTS,
    )


def test_lerp_and_fused_products() -> None:
    check(
        lambda a, b, w: (
            torch.lerp(a, b, w),
            torch.lerp(a, b, 0.3),
            torch.addcmul(a, b, w, value=2),
            torch.addcdiv(a, b, w + 2, value=0.5),
            torch.copysign(a, -b),
            torch.atan2(a, b),
            torch.hypot(a, b),
        ),
        torch.randn(4),
        torch.randn(4),
        torch.rand(4),
    )
