"""The signature of a model: names, shapes and dtypes of what goes in and comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


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
        dtype: NumPy-style name (``float32``, ``int64``, ``bool``, ``bfloat16`` ...).
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
        data = {"name": self.name, "shape": list(self.shape), "dtype": self.dtype}
        if self.ranges:
            data["ranges"] = {dim.name: [dim.minimum, dim.maximum] for dim in self.ranges}
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TensorSpec:
        """Inverse of :meth:`to_json`."""
        ranges = tuple(DimRange(name, *ends) for name, ends in data.get("ranges", {}).items())
        return cls(data["name"], tuple(data["shape"]), data["dtype"], ranges)


@dataclass(frozen=True)
class Signature:
    """Ordered inputs and outputs of one model."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data for the manifest."""
        return {
            "inputs": [spec.to_json() for spec in self.inputs],
            "outputs": [spec.to_json() for spec in self.outputs],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Signature:
        """Inverse of :meth:`to_json`."""

        def specs(rows: Sequence[dict[str, Any]]) -> tuple[TensorSpec, ...]:
            return tuple(TensorSpec.from_json(row) for row in rows)

        return cls(specs(data["inputs"]), specs(data["outputs"]))
