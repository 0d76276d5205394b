"""Names that a graph sees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from uif_tvm.errors import ImportModelError
from uif_tvm.frontends.onnx.values import Value


@dataclass
class Scope:
    """Names visible to a graph: its own, then those of the graphs around it.

    Args:
        versions: operator set versions in force.
        references: the caller's attributes, inside a function body.
        parent: the enclosing graph's scope; ``None`` for the model and for functions.
        types: what the graph declares of its own values.
    """

    versions: Mapping[str, int]
    references: Mapping[str, Any] = field(default_factory=dict)
    parent: Scope | None = None
    values: dict[str, Value] = field(default_factory=dict)
    types: dict[str, Any] = field(default_factory=dict)

    def lookup(self, name: str) -> Value:
        """The value of a name.

        Raises:
            ImportModelError: nothing defines it.
        """
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.parent
        raise ImportModelError(f"nothing defines {name!r}", code="UIF-IMPORT-DANGLING")
