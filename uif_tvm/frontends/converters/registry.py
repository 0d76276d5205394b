"""The converter table: which function takes in which operator, from which version on."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from tvm import relax

    from uif_tvm.frontends.converters.context import NodeContext
    from uif_tvm.frontends.onnx.values import Value

    Result: TypeAlias = "relax.Expr | Value"
    Converter: TypeAlias = Callable[[NodeContext], "Result | list[Result]"]

MICROSOFT = "com.microsoft"
ML = "ai.onnx.ml"


@dataclass(frozen=True)
class Entry:
    """A converter for one operator over a range of operator set versions, both ends included."""

    convert: Converter
    since: int
    until: int


_TABLE: dict[tuple[str, str], list[Entry]] = {}


def converter(
    *op_types: str, domain: str = "", since: int = 1, until: int = 2**31
) -> Callable[[Converter], Converter]:
    """Register a converter for operators of one domain.

    Args:
        op_types: operator names.
        domain: ONNX operator domain; part of the key, as names repeat across domains.
        since: first operator set version the converter understands.
        until: last one.
    """

    def register(function: Converter) -> Converter:
        for op_type in op_types:
            entries = _TABLE.setdefault((domain, op_type), [])
            if any(entry.since <= until and since <= entry.until for entry in entries):
                raise AssertionError(f"two converters for {domain}::{op_type} overlap")
            entries.append(Entry(function, since, until))
        return function

    return register


def find(domain: str, op_type: str, version: int) -> Converter | None:
    """The converter for an operator at an operator set version.

    Operators that nobody knows may be a plug-in's: plug-ins are loaded for them, once.
    """
    _load()
    found = _registered(domain, op_type, version)
    if found is None:
        from uif_tvm.frontends.extension import plugins

        plugins()
        found = _registered(domain, op_type, version)
    return found


def _registered(domain: str, op_type: str, version: int) -> Converter | None:
    for entry in _TABLE.get((domain, op_type), ()):
        if entry.since <= version <= entry.until:
            return entry.convert
    return None


def overlaps(domain: str, op_type: str, since: int, until: int) -> bool:
    """Whether an operator has a converter at any version of the range."""
    _load()
    entries = _TABLE.get((domain, op_type), ())
    return any(entry.since <= until and since <= entry.until for entry in entries)


def remove(domain: str, op_type: str, since: int) -> None:
    """Forget the converter registered from version ``since`` on."""
    kept = [entry for entry in _TABLE.get((domain, op_type), ()) if entry.since != since]
    _TABLE[domain, op_type] = kept
    if not kept:
        del _TABLE[domain, op_type]


def registered() -> frozenset[tuple[str, str]]:
    """All (domain, operator) pairs with a converter."""
    _load()
    return frozenset(_TABLE)


_loaded = False


def _load() -> None:
    """Import every module beside this one, once; each registers what it has."""
    global _loaded
    if _loaded:
        return
    package = importlib.import_module(__package__)
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{__package__}.{module.name}")
    _loaded = True
