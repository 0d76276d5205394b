"""OpSpec: one standard operator of the unified operator interface.

A spec says in NumPy what an operator means; everything else about the operator is derived from
it: type inference in the graph, constant folding, composition from simpler operators, the host
fallback, conformance cases, tolerances, cost estimates. Nothing here needs TVM.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from uif_tvm.errors import UsageError

if TYPE_CHECKING:
    from uif_tvm.ops.build import Builder

Array = np.ndarray[Any, Any]
#: An extent: an ``int``, or an expression of sizes that are settled at run time only.
Dim = Any
Reference = Callable[..., Any]

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
NUMBERS = FLOATS + INTS
ALL = (*NUMBERS, "bool")

_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")


@dataclass(frozen=True)
class TensorType:
    """Extents and element type of one operand or result."""

    shape: tuple[Dim, ...]
    dtype: str

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


#: The operands' types in order; an optional one that was left out is ``None``.
Types = Sequence[TensorType]
#: Attributes by name.
Attrs = Mapping[str, Any]


@dataclass(frozen=True)
class Operand:
    """A declared tensor argument.

    Args:
        name: as the NumPy reference calls it.
        optional: may be left out; the reference then receives ``None``.
    """

    name: str
    optional: bool = False


class Required:
    """Default of attributes that have none."""


@dataclass(frozen=True)
class Attribute:
    """A declared attribute; values are plain Python: int, float, bool, str, tuples of them."""

    name: str
    default: Any = Required
    choices: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Tolerance:
    """How far a result may lie from the reference: ``|have - want| <= atol + rtol |want|``."""

    rtol: float
    atol: float


#: Results of one rounding step or a few. Specs that accumulate or approximate state their own.
TOLERANCES: Mapping[str, Tolerance] = {
    "float64": Tolerance(1e-12, 1e-13),
    "float32": Tolerance(1e-5, 1e-6),
    "float16": Tolerance(2e-3, 1e-4),
    "bfloat16": Tolerance(1.6e-2, 1e-3),
}
#: For sums of many terms and products of elementary functions.
LOOSE: Mapping[str, Tolerance] = {
    "float64": Tolerance(1e-9, 1e-10),
    "float32": Tolerance(1e-4, 1e-5),
    "float16": Tolerance(8e-3, 1e-3),
    "bfloat16": Tolerance(4e-2, 1e-2),
}
_EXACT = Tolerance(0.0, 0.0)


@dataclass(frozen=True)
class Case:
    """One input worth trying: boundary sizes, special values, extreme attributes.

    Args:
        name: what is special, e.g. ``nan``, ``zero-size``, ``negative-axis``.
        inputs: one array (or NumPy scalar) per operand, ``None`` for optional ones left out.
        attrs: attributes that differ from the defaults.
    """

    name: str
    inputs: tuple[Any, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Cost:
    """Arithmetic and traffic of one call.

    Args:
        flops: floating-point (or integer) operations; a multiply-add counts two.
        bytes: operands read once and results written once.
    """

    flops: float
    bytes: float


@dataclass(frozen=True)
class OpSpec:
    """What an operator means.

    Args:
        name: the standard name, snake case and without prefix (``softmax``, ``conv2d``): what
            capability predicates, reports and coverage say.
        family: ``elementwise``, ``reduction``, ``recurrent`` ...; the file it lives in.
        reference: its meaning, ``reference(*arrays, **attrs) -> array or tuple of arrays``.
        infer: result types, ``infer(operand types, attrs) -> tuple``; ``None`` for operators
            whose result type Relax infers itself.
        operands: declared tensor arguments in order.
        variadic: the last operand repeats (at least once).
        attributes: declared attributes.
        results: number of results.
        dtypes: element types that the first operand may have.
        accumulation: dtype -> type that sums are kept in, where it differs.
        tolerance: dtype of the result -> tolerance; other types must be equal.
        cases: boundary and special-value inputs.
        decompose: ``decompose(builder, operands, attrs) -> value(s)`` in simpler standard
            operators, or ``None`` for primitive ones.
        flops: operations per call, ``flops(operand types, result types, attrs)``; a number means
            per element of the first result.
        data_dependent: result extents depend on element values.
        relax: Relax operator of the same meaning and attribute names (``relax.nn.softmax``);
            ``None`` if there is none: the operator then exists in graphs as ``uif.<name>``.
        version: raised whenever the meaning changes.
        source: where the definition comes from, e.g. ``ONNX LayerNormalization-17``.
    """

    name: str
    family: str
    reference: Reference
    infer: Callable[[Sequence[Any], Mapping[str, Any]], tuple[TensorType, ...]] | None = None
    operands: tuple[Operand, ...] = (Operand("x"),)
    variadic: bool = False
    attributes: tuple[Attribute, ...] = ()
    results: int = 1
    dtypes: tuple[str, ...] = FLOATS
    accumulation: Mapping[str, str] = field(default_factory=dict)
    tolerance: Mapping[str, Tolerance] = field(default_factory=lambda: TOLERANCES)
    cases: Callable[[], Iterable[Case]] | None = None
    decompose: Callable[[Builder, Sequence[Any], Mapping[str, Any]], Any] | None = None
    flops: float | Callable[..., float] = 1.0
    data_dependent: bool = False
    relax: str | None = None
    version: int = 1
    source: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise self._broken(f"name must be snake case, got {self.name!r}")
        if not self.operands and self.variadic:
            raise self._broken("a variadic operator needs an operand")
        if self.infer is None and self.relax is None and not self.data_dependent:
            raise self._broken("infer is needed where Relax does not have the operator")
        names = [operand.name for operand in self.operands]
        names += [attribute.name for attribute in self.attributes]
        if len(set(names)) != len(names):
            raise self._broken(f"operands and attributes share names: {', '.join(names)}")

    @property
    def graph_name(self) -> str:
        """Name of the operator in Relax graphs."""
        return self.relax or f"uif.{self.name}"

    def resolve(self, attrs: Mapping[str, Any]) -> dict[str, Any]:
        """``attrs`` with defaults filled in; extra ones are the caller's mistake.

        Raises:
            UsageError: an attribute is unknown, missing, or not among its choices.
        """
        declared = {attribute.name: attribute for attribute in self.attributes}
        unknown = [name for name in attrs if name not in declared]
        if unknown:
            raise self._misuse(f"has no attribute {unknown[0]!r}; it has {list(declared)}")
        values = {name: attrs.get(name, item.default) for name, item in declared.items()}
        for name, item in declared.items():
            if values[name] is Required:
                raise self._misuse(f"needs attribute {name!r}")
            if item.choices and values[name] not in item.choices:
                raise self._misuse(f"{name}={values[name]!r} is none of {list(item.choices)}")
        return values

    def evaluate(self, arrays: Sequence[Array | None], attrs: Mapping[str, Any]) -> Any:
        """Apply the reference to ``arrays`` (``None`` for operands left out).

        Returns:
            One array, or a tuple of them where the operator has several results.
        """
        left_out = 0 if self.variadic else len(self.operands) - len(arrays)
        arrays = (*arrays, *[None] * left_out)
        with np.errstate(all="ignore"):
            value = self.reference(*arrays, **self.resolve(attrs))
        if self.results == 1 and not isinstance(value, tuple):
            return np.asarray(value)
        return tuple(np.asarray(item) for item in value)

    def result_types(
        self, types: Sequence[TensorType | None], attrs: Mapping[str, Any]
    ) -> tuple[TensorType, ...]:
        """Types of the results for operands of ``types`` (``None`` where left out).

        Raises:
            UsageError: the operands do not fit; the message has the operator and the types.
        """
        if self.infer is None:
            raise self._misuse("has no static result type")
        given = sum(item is not None for item in types)
        needed = sum(not operand.optional for operand in self.operands)
        if given < needed or (len(types) > len(self.operands) and not self.variadic):
            raise self._misuse(f"takes {len(self.operands)} operands, got {given}")
        try:
            return self.infer(types, self.resolve(attrs))
        except ShapeError as error:
            listed = ", ".join(str(item) for item in types)
            raise self._misuse(f"does not fit its operands ({listed}): {error}") from error

    def tolerance_for(self, dtype: str) -> Tolerance:
        """How exact a result of ``dtype`` must be; integers and booleans are equal."""
        return self.tolerance.get(dtype, _EXACT)

    def cost(
        self,
        types: Sequence[TensorType | None],
        results: Sequence[TensorType],
        attrs: Mapping[str, Any],
    ) -> Cost:
        """Operations and bytes of one call; symbolic extents count as 1."""
        if callable(self.flops):
            flops = float(self.flops(types, results, attrs))
        else:
            flops = self.flops * elements(results[0])
        moved = sum(nbytes(item) for item in (*types, *results) if item is not None)
        return Cost(flops, float(moved))

    def _misuse(self, what: str) -> UsageError:
        return UsageError(
            f"operator {self.name!r} {what}",
            code="UIF-OP-MISUSE",
            op=self.name,
            hint="see its OpSpec in uif_tvm/ops",
        )

    def _broken(self, what: str) -> UsageError:
        return UsageError(
            f"OpSpec {self.name!r} is broken: {what}", code="UIF-OP-BROKEN", op=self.name
        )


class ShapeError(ValueError):
    """Operand types do not fit; the text says which and why."""


def elements(item: TensorType) -> float:
    """Number of elements; symbolic extents count as 1."""
    count = 1.0
    for extent in item.shape:
        count *= extent if isinstance(extent, int) else 1
    return count


def nbytes(item: TensorType) -> float:
    """Bytes of all elements; symbolic extents count as 1."""
    bits = re.search(r"[0-9]+", item.dtype)
    return elements(item) * (max(1, int(bits[0]) // 8) if bits else 1)
