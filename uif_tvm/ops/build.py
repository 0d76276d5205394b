"""What decompositions build with: the same text runs on arrays and on graphs."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from uif_tvm.ops.spec import Array, Dim


class Builder(Protocol):
    """Applies standard operators to values of some kind."""

    def op(self, name: str, *operands: Any, **attrs: Any) -> Any:
        """Apply a standard operator; a tuple where it has several results."""

    def const(self, value: Any, dtype: str) -> Any:
        """A small constant."""

    def shape(self, value: Any) -> tuple[Dim, ...]:
        """Extents of a value."""

    def dtype(self, value: Any) -> str:
        """Element type of a value."""


class NumpyBuilder:
    """Evaluates a decomposition at once, by the references of what it consists of."""

    def op(self, name: str, *operands: Any, **attrs: Any) -> Any:
        """See :class:`Builder`."""
        from uif_tvm.ops import find

        return find(name).evaluate(operands, attrs)

    def const(self, value: Any, dtype: str) -> Array:
        """See :class:`Builder`."""
        return np.asarray(value, numpy_dtype(dtype))

    def shape(self, value: Array) -> tuple[int, ...]:
        """See :class:`Builder`."""
        return tuple(int(extent) for extent in value.shape)

    def dtype(self, value: Array) -> str:
        """See :class:`Builder`."""
        return str(value.dtype)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy type of that name, those of ``ml_dtypes`` included."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return found
