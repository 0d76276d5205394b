"""The unified operator interface: one :class:`OpSpec` per standard operator.

Every module of this package that defines ``SPECS`` is an operator family; there is no list to
edit. :func:`register` adds operators of vendors and model authors.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import threading

from uif_tvm.errors import UsageError
from uif_tvm.ops.spec import OpSpec

_lock = threading.RLock()
_by_name: dict[str, OpSpec] = {}
_by_graph_name: dict[str, OpSpec] = {}
_loaded = False


def register(spec: OpSpec) -> OpSpec:
    """Add an operator.

    Raises:
        UsageError: another one has the name.
    """
    _load()
    return _add(spec)


def unregister(name: str) -> None:
    """Forget an operator that :func:`register` added."""
    with _lock:
        _by_graph_name.pop(_by_name.pop(name).graph_name)


def find(name: str) -> OpSpec:
    """The operator of that standard name.

    Raises:
        UsageError: there is none.
    """
    _load()
    if name not in _by_name:
        close = difflib.get_close_matches(name, _by_name, 1)
        raise UsageError(
            f"there is no standard operator {name!r}"
            + (f"; did you mean {close[0]!r}?" if close else ""),
            code="UIF-OP-UNKNOWN",
            op=name,
            hint="list them with: uif ops list",
        )
    return _by_name[name]


def find_graph_op(graph_name: str) -> OpSpec | None:
    """The operator behind a Relax operator's name, ``None`` where no spec describes it."""
    _load()
    return _by_graph_name.get(graph_name)


def specs() -> tuple[OpSpec, ...]:
    """All operators, by name."""
    _load()
    return tuple(_by_name[name] for name in sorted(_by_name))


def _add(spec: OpSpec) -> OpSpec:
    with _lock:
        if spec.name in _by_name or spec.graph_name in _by_graph_name:
            raise UsageError(
                f"there are two operators named {spec.name!r}",
                code="UIF-OP-BROKEN",
                op=spec.name,
                hint="choose a name with a prefix of your own, such as acme_gelu",
            )
        _by_name[spec.name] = _by_graph_name[spec.graph_name] = spec
    return spec


def _load() -> None:
    global _loaded
    with _lock:
        if _loaded:
            return
        _loaded = True  # before the families: they may look each other up while loading
        for module in pkgutil.iter_modules(__path__):
            family = importlib.import_module(f"{__name__}.{module.name}")
            for spec in getattr(family, "SPECS", ()):
                _add(spec)


__all__ = ["OpSpec", "find", "find_graph_op", "register", "specs", "unregister"]
