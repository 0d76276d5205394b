"""Conversion of floats of 8 bits and fewer, and of integers of 4 and 2 bits, as ONNX rounds them.

They flow as bytes (see :mod:`uif_tvm.runtime.elements`). Decoding a float is a table of all its
values. Encoding rounds to the nearest, ties to even: with e the exponent of |x|, not below the
type's smallest, and m its bits of mantissa,

    q = round(|x| / 2^(e - m)),    code = ((e - smallest) << m) + q

which holds for subnormals and for a q that carries into the exponent too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from tvm import relax, te, tirx

from uif_tvm.frontends.converters.context import NodeContext, Unsupported
from uif_tvm.frontends.converters.dtypes import kind
from uif_tvm.frontends.onnx.values import Dynamic
from uif_tvm.kernels.math import is_nan
from uif_tvm.runtime.elements import is_stored, stored_dtype
from uif_tvm.runtime.strings import TEXT

#: Bits of the small integers; signed ones are kept sign-extended in a byte.
SMALL_INTEGERS = {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2}
#: Numbers of these types do not all fit into float32.
_WIDE = frozenset({"float64", "int64", "uint64", "int32", "uint32"})
#: Type of the bits, width, bits of mantissa and bias of what is encoded from.
_SHAPES = {"float32": ("int32", 32, 23, 127), "float64": ("int64", 64, 52, 1023)}
#: More powers of two than any small type spans, and more than any of its mantissas holds.
_REACH, _MUCH = 40, float(1 << 20)
#: Powers of two only, without sign or mantissa: rounded by an attribute of their own.
SCALE_TYPE = "float8_e8m0fnu"


@dataclass(frozen=True)
class Layout:
    """A small float's encoding, read off its NumPy type.

    Args:
        mantissa: bits of mantissa.
        smallest: exponent of the smallest normal number.
        largest: code of the largest finite number.
        sign: the sign bit.
        nan, overflow: codes of NaN and of what is too large, where nothing saturates.
        negative_zero: whether -0 has a code of its own.
    """

    mantissa: int
    smallest: int
    largest: int
    sign: int
    nan: int
    overflow: int
    negative_zero: bool


@cache
def layout(dtype: str) -> Layout:
    """The encoding of a dtype name."""
    numpy_type = np.dtype(getattr(ml_dtypes, dtype))
    info = ml_dtypes.finfo(numpy_type)

    def code(value: float) -> int:
        return int(np.array(value, np.float32).astype(numpy_type).view(np.uint8))

    return Layout(
        mantissa=int(info.nmant),
        smallest=int(info.minexp),
        largest=code(float(info.max)),
        sign=1 << (int(info.bits) - 1),
        nan=code(float("nan")),
        overflow=code(float("inf")),
        negative_zero=code(-0.0) != code(0.0),
    )


def is_small_float(dtype: str) -> bool:
    """Whether a declared dtype is a float that flows as a bit pattern."""
    return is_stored(dtype) and dtype != TEXT and dtype not in SMALL_INTEGERS


def decoded(ctx: NodeContext, index: int) -> relax.Expr:
    """A tensor input as numbers that code computes with: small floats become float32."""
    expr, dtype = ctx.expr(index), ctx.dtype(index)
    if not is_small_float(dtype):
        return expr
    codes = np.arange(256, dtype=np.uint8)
    used = codes & np.uint8(2 ** int(ml_dtypes.finfo(getattr(ml_dtypes, dtype)).bits) - 1)
    values = used.view(np.dtype(getattr(ml_dtypes, dtype))).astype(np.float32)
    table = ctx.importer.constant(values)

    def compute(a: te.Tensor, t: te.Tensor) -> te.Tensor:
        return te.compute(a.shape, lambda *i: t(a(*i).astype("int32")), name="decode")

    return ctx.te(compute, expr, table, name="decode")


def convert(ctx: NodeContext, source: str, target: str) -> Dynamic:
    """Cast from or to a type that flows as bytes.

    Raises:
        Unsupported: texts are no numbers.
    """
    if TEXT in (source, target):
        raise Unsupported(f"conversion from {source} to {target}")
    expr = decoded(ctx, 0)
    if not is_stored(target):
        if target == "bool":
            zero = ctx.const(0, str(expr.ty.dtype))
            return Dynamic(ctx.emit(relax.op.not_equal(expr, zero)))
        return Dynamic(ctx.cast(expr, target))
    if target in SMALL_INTEGERS:
        rule = _wrapped(target)
    elif target == SCALE_TYPE:
        mode = str(ctx.attrs.get("round_mode", "up"))
        rule = _power_of_two(mode, bool(ctx.attrs.get("saturate", 1)))
    else:
        rule = encoder(target, bool(ctx.attrs.get("saturate", 1)))

    def compute(a: te.Tensor) -> te.Tensor:
        return te.compute(a.shape, lambda *i: rule(a(*i)), name="encode")

    return Dynamic(ctx.te(compute, expr, name="encode"), element=target)


def encoder(dtype: str, saturate: bool) -> Callable[[Any], Any]:
    """Code (uint8) of a float or integer in a small float type.

    Args:
        saturate: too large numbers and infinities become the largest one. Otherwise they become
            infinity or NaN, where the type has them.
    """
    form = layout(dtype)
    # What overflows has the code after the largest number, or the largest itself in types that
    # have neither NaN nor infinity. So no condition has to look into the code: TVM widens the
    # integers of conditions to 64 bits, also under a reinterpretation as 32-bit float.
    top = form.largest if saturate else form.overflow

    def code_of(value: Any) -> Any:
        wide = "float64" if kind(value) in _WIDE else "float32"
        x = value.astype(wide)
        bits_type, width, shift, bias = _SHAPES[wide]

        def integer(number: int) -> Any:
            return tirx.const(number, bits_type)

        bits = tirx.reinterpret(bits_type, x)
        exponent = ((bits >> integer(shift)) & integer(2 * bias + 1)) - integer(bias)
        # Above the type's range the scale would overflow; the code is too large long before.
        exponent = tirx.max(exponent, integer(form.smallest))
        exponent = tirx.min(exponent, integer(form.smallest + _REACH))
        scale = (integer(bias + form.mantissa) - exponent) << integer(shift)
        q = tirx.nearbyint(tirx.abs(x) * tirx.reinterpret(wide, scale))
        q = tirx.min(q, tirx.const(_MUCH, wide)).astype(bits_type)
        code = ((exponent - integer(form.smallest)) << integer(form.mantissa)) + q
        code = tirx.min(code, integer(top))
        sign = (bits >> integer(width - 1)) & integer(1)
        if not form.negative_zero:  # what rounds to zero has no sign; the sign bit alone is NaN
            sign = sign * tirx.min(code, integer(1))
        signed = code | (sign * integer(form.sign))
        return tirx.Select(is_nan(x), integer(form.nan), signed).astype("uint8")

    return code_of


def _wrapped(dtype: str) -> Callable[[Any], Any]:
    """The low bits of a number cut towards zero, as ONNX's reference narrows integers."""
    bits = SMALL_INTEGERS[dtype]

    def narrow(value: Any) -> Any:
        low = value.astype("int32") & tirx.const((1 << bits) - 1, "int32")
        if not dtype.startswith("u"):
            half = tirx.const(1 << (bits - 1), "int32")
            low = (low ^ half) - half
        return low.astype(stored_dtype(dtype))

    return narrow


def _power_of_two(mode: str, saturate: bool) -> Callable[[Any], Any]:
    """Code of the power of two next to a number, its sign left out; 255 is NaN.

    Args:
        mode: ``up``, ``down`` or ``nearest`` (ties up, as ONNX defines it).
        saturate: the largest power is not rounded up to NaN.
    """

    def code_of(value: Any) -> Any:
        bits = tirx.reinterpret("uint32", value.astype("float32"))

        def word(number: int) -> Any:
            return tirx.const(number, "uint32")

        exponent = (bits >> word(23)) & word(0xFF)
        if mode == "up":
            rises = (bits & word(0x7FFFFF)) != word(0)
        elif mode == "nearest":
            half = (bits & word(0x400000)) != word(0)
            beyond = tirx.any((bits & word(0x3FFFFF)) != word(0), exponent != word(0))
            rises = tirx.all(half, beyond)
        elif mode == "down":
            return exponent.astype("uint8")
        else:
            raise Unsupported(f"rounding mode {mode!r}")
        highest = word(0xFE if saturate else 0xFF)
        rises = tirx.all(rises, exponent < highest)
        return (exponent + tirx.Select(rises, word(1), word(0))).astype("uint8")

    return code_of
