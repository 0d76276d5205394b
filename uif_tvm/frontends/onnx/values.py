"""What the importer knows about an ONNX value.

Import is partial evaluation: a value is either *known* (a NumPy array, as weights and shape
arithmetic are), *symbolic* (an integer tensor whose elements are expressions of dimensions that
are only settled at run time), *dynamic* (a Relax expression), a *sequence* of such values, or
*poison* (the result of an operator that has been reported as unsupported).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from uif_tvm.runtime.elements import element_name
from uif_tvm.signature import DimRange

if TYPE_CHECKING:
    from tvm import ir, relax

Array: TypeAlias = npt.NDArray[Any]
Dim: TypeAlias = "int | ir.Expr"


@dataclass(frozen=True, eq=False)
class Known:
    """A tensor whose elements are settled at import."""

    array: Array

    @property
    def shape(self) -> tuple[Dim, ...]:
        """Its dimensions."""
        return tuple(self.array.shape)

    @property
    def dtype(self) -> str:
        """NumPy-style dtype name, ``string`` for texts."""
        return element_name(self.array)


@dataclass(frozen=True, eq=False)
class Symbolic:
    """A tensor whose elements are made of dimensions.

    Args:
        elements: object array of ``int`` or integer ``PrimExpr`` (int64); of ``Ratio`` for floats;
            of ``bool`` or boolean ``PrimExpr`` for truth values.
        dtype: ``int64``, ``int32``, ``float32``, ``float64`` or ``bool``, as the model sees it.
    """

    elements: Array
    dtype: str = "int64"

    @property
    def shape(self) -> tuple[Dim, ...]:
        """Its (static) dimensions."""
        return tuple(self.elements.shape)


@dataclass(frozen=True, eq=False)
class Dynamic:
    """A tensor computed at run time; ``settled`` caches its elements once read as dimensions.

    Args:
        expr: the tensor in its stored type, see :mod:`uif_tvm.runtime.elements`.
        element: its declared dtype where that differs from the stored one.
    """

    expr: relax.Expr
    settled: dict[tuple[int, ...], Symbolic] = field(default_factory=dict)
    element: str | None = None

    @property
    def shape(self) -> tuple[Dim, ...]:
        """Its dimensions, ``int`` where static."""
        return shape_of(self.expr)

    @property
    def dtype(self) -> str:
        """NumPy-style name of the declared dtype."""
        return self.element or str(self.expr.ty.dtype)


@dataclass(frozen=True, eq=False)
class SequenceValue:
    """An ONNX sequence of known length."""

    items: tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class HostSequence:
    """An ONNX sequence made at run time, by the host: how many items it has is not known.

    Args:
        expr: the list of tensors, which only calls of the host read.
        type_proto: its ONNX type.
    """

    expr: relax.Expr
    type_proto: Any


@dataclass(frozen=True, eq=False)
class Absent:
    """An optional that holds nothing."""


@dataclass(frozen=True, eq=False)
class Poison:
    """Result of an operator that was reported as unsupported."""


Tensor: TypeAlias = Known | Symbolic | Dynamic
Value: TypeAlias = Known | Symbolic | Dynamic | SequenceValue | HostSequence | Absent | Poison


class UnknownShapeError(ValueError):
    """Even the rank of a tensor is settled at run time only."""


def shape_of(expr: relax.Expr) -> tuple[Dim, ...]:
    """Dimensions of a Relax tensor expression, static ones as ``int``."""
    from tvm import tirx

    shape = expr.ty.shape
    if shape is None:
        raise UnknownShapeError("an operand's rank is known at run time only")
    return tuple(int(dim) if isinstance(dim, (int, tirx.IntImm)) else dim for dim in shape.values)


def is_static(shape: tuple[Dim, ...]) -> bool:
    """Whether every dimension is a plain integer."""
    return all(isinstance(dim, int) for dim in shape)


SIZE_PREFIX = "n_"
"""Symbolic variables of this prefix are extents, and so never negative."""

_LARGEST = 10**9 - 1
"""No extent is larger: exporters write 10^9 and more where a slice goes to the end."""

_ranges: ContextVar[Mapping[Any, DimRange]] = ContextVar("_ranges")


@contextmanager
def known_ranges(ranges: Mapping[Any, DimRange]) -> Iterator[None]:
    """Within this context, arithmetic knows the ranges of the model's symbolic dimensions."""
    token = _ranges.set(ranges)
    try:
        yield
    finally:
        _ranges.reset(token)


def analyzer_of(*exprs: Any) -> Any:
    """TVM's arithmetic analyzer, told which variables of the expressions are extents."""
    from tvm import ir, sym, tirx

    analyzer = sym.Analyzer()
    ranges = _ranges.get({})
    for expr in exprs:
        if isinstance(expr, ir.Expr):
            for variable in tirx.analysis.undefined_vars(expr):
                if variable in ranges:
                    dim = ranges[variable]
                    most = _LARGEST if dim.maximum is None else dim.maximum
                    analyzer.update(variable, sym.ConstIntBound(dim.minimum, most))
                elif variable.name.startswith(SIZE_PREFIX):
                    analyzer.update(variable, sym.ConstIntBound(0, _LARGEST))
    return analyzer


def simplify(dim: Any) -> Dim:
    """A dimension expression in simplest form, ``int`` where it is constant."""
    from tvm import tirx

    if isinstance(dim, (int, np.integer)):
        return int(dim)
    result = analyzer_of(dim).simplify(dim)
    return int(result) if isinstance(result, tirx.IntImm) else result


def decide(condition: Any) -> bool | None:
    """Truth of a condition on dimensions, ``None`` if it depends on the data."""
    from tvm import tirx

    if isinstance(condition, (bool, np.bool_)):
        return bool(condition)
    analyzer = analyzer_of(condition)
    if analyzer.can_prove(condition):
        return True
    return False if analyzer.can_prove(tirx.Not(condition)) else None


def at_least(dim: Dim, low: int) -> Dim:
    """``max(dim, low)``."""
    from tvm import tirx

    if isinstance(dim, int):
        return max(dim, low)
    return simplify(tirx.max(dim, tirx.const(low, "int64")))


def is_condition(item: Any) -> bool:
    """Whether an element is a truth value that the dimensions decide."""
    from tvm import ir

    return isinstance(item, ir.Expr) and str(item.ty.dtype) == "bool"


def same_dim(left: Dim, right: Dim) -> bool:
    """Whether two dimensions are provably equal."""
    if isinstance(left, int) and isinstance(right, int):
        return left == right
    return isinstance(simplify(left - right), int) and simplify(left - right) == 0
