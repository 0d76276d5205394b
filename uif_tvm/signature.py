"""The signature of a model: names, shapes and dtypes of what goes in and comes out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True)
class DimRange:
    """Which extents a symbolic dimension may have.

    Args:
        name: of the dimension; equal names have equal values in one run.
        minimum: smallest extent.
        maximum: largest extent; ``None`` for no limit.
    """

    name: str
    minimum: int = 1
    maximum: int | None = None

    def __str__(self) -> str:
        if self.maximum is None:
            return self.name if self.minimum == 1 else f"{self.name}={self.minimum}.."
        return f"{self.name}={self.minimum}..{self.maximum}"

    def __contains__(self, extent: int) -> bool:
        return extent >= self.minimum and (self.maximum is None or extent <= self.maximum)


@dataclass(frozen=True)
class TensorSpec:
    """One input or output.

    Args:
        name: as the model's author wrote it (any text).
        shape: elements along each axis; an ``int``, or a ``str`` naming a symbolic dimension.
        dtype: NumPy-style name (``float32``, ``int64``, ``bool``, ``bfloat16``, ``int4`` ...);
            ``string`` for texts.
        ranges: which extents the symbolic dimensions of an input may have, in the order of
            their first axis; one that has no entry may be anything.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str
    ranges: tuple[DimRange, ...] = ()

    def __str__(self) -> str:
        told = {dim.name: str(dim) for dim in self.ranges}
        dims = ", ".join(told.get(d, d) if isinstance(d, str) else str(d) for d in self.shape)
        return f"{self.name}: {self.dtype}[{dims}]"

    def to_json(self) -> dict[str, Any]:
        """Plain data for the manifest; ``ranges`` (name -> [min, max]) only where there are any."""
        data: dict[str, Any] = {
            "name": self.name,
            "shape": list(self.shape),
            "dtype": self.dtype,
        }
        if self.ranges:
            data["ranges"] = {dim.name: [dim.minimum, dim.maximum] for dim in self.ranges}
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TensorSpec:
        """Inverse of :meth:`to_json`."""
        ranges = tuple(DimRange(name, *ends) for name, ends in data.get("ranges", {}).items())
        return cls(data["name"], tuple(data["shape"]), data["dtype"], ranges)


@dataclass(frozen=True)
class SequenceSpec:
    """An ordered list of values, its length settled at export; a Python list for callers.

    Args:
        name: as the model's author wrote it.
        items: one spec per item, named ``name[0]``, ``name[1]`` ...
    """

    name: str
    items: tuple[Spec, ...]

    def __str__(self) -> str:
        inside = ", ".join(_type_text(item) for item in self.items)
        return f"{self.name}: sequence({inside})"

    def to_json(self) -> dict[str, Any]:
        """Plain data for the manifest."""
        return {
            "name": self.name,
            "kind": "sequence",
            "items": [item.to_json() for item in self.items],
        }


@dataclass(frozen=True)
class OptionalSpec:
    """A value that may be left out; whether it is was settled at export. ``None`` for callers
    where it is.

    Args:
        name: as the model's author wrote it.
        value: what is there, ``None`` for nothing.
    """

    name: str
    value: Spec | None

    def __str__(self) -> str:
        inside = "nothing" if self.value is None else _type_text(self.value)
        return f"{self.name}: optional({inside})"

    def to_json(self) -> dict[str, Any]:
        """Plain data for the manifest."""
        value = None if self.value is None else self.value.to_json()
        return {"name": self.name, "kind": "optional", "value": value}


@dataclass(frozen=True)
class ListSpec:
    """A sequence whose length and items' shapes each run settles anew; only outputs are such.

    Args:
        name: as the model's author wrote it.
        dtype: of every item.
    """

    name: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.name}: sequence({self.dtype} ...)"

    def to_json(self) -> dict[str, Any]:
        """Plain data for the manifest."""
        return {"name": self.name, "kind": "list", "dtype": self.dtype}


Spec: TypeAlias = TensorSpec | SequenceSpec | OptionalSpec | ListSpec
Leaf: TypeAlias = TensorSpec | ListSpec


def _type_text(spec: Spec) -> str:
    return str(spec).removeprefix(f"{spec.name}: ")


def spec_from_json(data: dict[str, Any]) -> Spec:
    """Inverse of the specs' ``to_json``."""
    kind = data.get("kind", "tensor")
    if kind == "sequence":
        return SequenceSpec(data["name"], tuple(map(spec_from_json, data["items"])))
    if kind == "optional":
        value = data["value"]
        return OptionalSpec(data["name"], None if value is None else spec_from_json(value))
    if kind == "list":
        return ListSpec(data["name"], data["dtype"])
    return TensorSpec.from_json(data)


def leaves(specs: Iterable[Spec]) -> Iterator[Leaf]:
    """What values of ``specs`` consist of, in order: compiled code takes and returns these."""
    for spec in specs:
        if isinstance(spec, TensorSpec | ListSpec):
            yield spec
        elif isinstance(spec, SequenceSpec):
            yield from leaves(spec.items)
        elif spec.value is not None:
            yield from leaves((spec.value,))


def tensors(specs: Iterable[Spec]) -> Iterator[TensorSpec]:
    """The tensors among the :func:`leaves`; of inputs, that is all of them."""
    return (leaf for leaf in leaves(specs) if isinstance(leaf, TensorSpec))


def pack(specs: Iterable[Spec], values: Iterator[Any]) -> list[Any]:
    """Values of ``specs`` from those of their :func:`leaves`, consumed in order."""

    def one(spec: Spec) -> Any:
        if isinstance(spec, TensorSpec | ListSpec):
            return next(values)
        if isinstance(spec, SequenceSpec):
            return [one(item) for item in spec.items]
        return None if spec.value is None else one(spec.value)

    return [one(spec) for spec in specs]


def named_leaves(specs: Iterable[Spec], values: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """(name, tensor) of each tensor that ``values`` of ``specs`` consist of, in order."""
    for spec, value in zip(specs, values, strict=True):
        if isinstance(spec, SequenceSpec):
            yield from named_leaves(spec.items, value)
        elif isinstance(spec, OptionalSpec):
            if spec.value is not None:
                yield from named_leaves([spec.value], [value])
        elif isinstance(spec, ListSpec):
            yield from ((f"{spec.name}[{place}]", item) for place, item in enumerate(value))
        else:
            yield spec.name, value


@dataclass(frozen=True)
class Signature:
    """Ordered inputs and outputs of one model."""

    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data for the manifest."""
        return {
            "inputs": [spec.to_json() for spec in self.inputs],
            "outputs": [spec.to_json() for spec in self.outputs],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Signature:
        """Inverse of :meth:`to_json`."""
        return cls(
            tuple(map(spec_from_json, data["inputs"])), tuple(map(spec_from_json, data["outputs"]))
        )
