"""OpSpec: one standard operator of the unified operator interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Reference = Callable[..., Array]


@dataclass(frozen=True)
class OpSpec:
    """What an operator means.

    Args:
        name: the standard name; graph passes find the Relax operator of the same name.
        family: ``elementwise``, ``shape``, ``reduce`` ...
        reference: its meaning in NumPy, ``reference(*arrays, **attrs) -> array``.
        version: raised whenever the meaning changes.
        flops_per_element: arithmetic per output element, for cost estimates.
        attributes: names of the Relax attributes that ``reference`` takes.
    """

    name: str
    family: str
    reference: Reference
    version: int = 1
    flops_per_element: float = 1.0
    attributes: tuple[str, ...] = field(default=())

    def evaluate(self, arrays: list[Array], attrs: Mapping[str, Any]) -> Array:
        """Apply the reference; ``attrs`` may hold more than the op needs."""
        wanted = {name: attrs[name] for name in self.attributes}
        with np.errstate(all="ignore"):
            return np.asarray(self.reference(*arrays, **wanted))
