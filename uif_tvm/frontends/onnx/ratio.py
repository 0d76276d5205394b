"""Fractions of dimensions: what float shape arithmetic on symbolic extents computes.

Exporters like to compute sizes through floats: ``Cast(float) -> Mul(0.5) -> Floor -> Cast(int)``.
While a value is a dimension over a small integer, that is exact: a float32 quotient or product
of moderate extents never rounds across an integer. Other constants are left to the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from uif_tvm.frontends.onnx.values import Dim, simplify

MAX_DENOMINATOR = 256
"""With numerators below 2^22, two such fractions are further apart than float32's error."""


@dataclass(frozen=True, eq=False)
class Ratio:
    """``numerator / denominator``, an element of a symbolic float tensor.

    Args:
        numerator: an integer or a dimension expression.
        denominator: a positive integer.
    """

    numerator: Dim
    denominator: int = 1

    @classmethod
    def of(cls, value: Any) -> Ratio:
        """A number or dimension.

        Raises:
            NotImplementedError: a constant that is no small fraction.
        """
        if isinstance(value, Ratio):
            return value
        if not isinstance(value, float):
            return cls(value)
        try:
            exact = Fraction(value)
        except (OverflowError, ValueError):  # infinities and NaN
            raise NotImplementedError from None
        if exact.denominator > MAX_DENOMINATOR or abs(exact.numerator) >= 1 << 22:
            raise NotImplementedError
        return cls(exact.numerator, exact.denominator)

    def _made(self, numerator: Dim, denominator: int) -> Ratio:
        if denominator < 0:
            numerator, denominator = -numerator, -denominator
        if isinstance(numerator, int):
            exact = Fraction(numerator, denominator)
            numerator, denominator = exact.numerator, exact.denominator
        if denominator > MAX_DENOMINATOR:
            raise NotImplementedError
        return Ratio(simplify(numerator), denominator)

    def __add__(self, other: Ratio) -> Ratio:
        left, right = self.numerator * other.denominator, other.numerator * self.denominator
        return self._made(left + right, self.denominator * other.denominator)

    def __neg__(self) -> Ratio:
        return Ratio(simplify(-self.numerator), self.denominator)

    def __sub__(self, other: Ratio) -> Ratio:
        return self + -other

    def __mul__(self, other: Ratio) -> Ratio:
        product = self.numerator * other.numerator
        return self._made(product, self.denominator * other.denominator)

    def __truediv__(self, other: Ratio) -> Ratio:
        if not isinstance(other.numerator, int) or other.numerator == 0:
            raise NotImplementedError
        return self._made(self.numerator * other.denominator, self.denominator * other.numerator)

    def floor(self) -> Dim:
        """The next integer below."""
        return simplify(self.numerator // self.denominator)

    def ceil(self) -> Dim:
        """The next integer above."""
        return simplify((self.numerator + self.denominator - 1) // self.denominator)

    def trunc(self) -> Dim:
        """The integer towards zero, as casts take it."""
        from tvm import tirx

        if isinstance(self.numerator, int):
            return int(Fraction(self.numerator, self.denominator))
        if self.denominator == 1:
            return self.numerator
        return simplify(tirx.truncdiv(self.numerator, self.denominator))

    def known(self) -> float | None:
        """Its value, where no dimension is in it."""
        if isinstance(self.numerator, int):
            return self.numerator / self.denominator
        return None

    def to_expr(self) -> Any:
        """A float64 expression."""
        from tvm import tirx

        known = self.known()
        if known is not None:
            return tirx.const(known, "float64")
        wide = tirx.Cast("float64", self.numerator)
        return wide / tirx.const(float(self.denominator), "float64")
