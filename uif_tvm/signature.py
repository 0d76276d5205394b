"""The signature of a model: names, shapes and dtypes of what goes in and comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TensorSpec:
    """One input or output.

    Args:
        name: as the model's author wrote it (any text).
        shape: elements along each axis; an ``int``, or a ``str`` naming a symbolic dimension.
        dtype: NumPy-style name (``float32``, ``int64``, ``bool``, ``bfloat16`` ...).
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(str(d) for d in self.shape)}]"

    def to_json(self) -> dict[str, Any]:
        """Plain data for the manifest."""
        return {"name": self.name, "shape": list(self.shape), "dtype": self.dtype}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TensorSpec:
        """Inverse of :meth:`to_json`."""
        return cls(data["name"], tuple(data["shape"]), data["dtype"])


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
