"""The target registry: a scan of ``uif_tvm.targets`` plus the entry-point group ``uif.targets``.

A target folder has a ``target.py`` with a function ``create() -> TargetSpec``; an entry point
names such a function. Folders starting with ``_`` are shared helpers. A target that fails to
load stays in the list, as broken, with its error: plug-ins never vanish in a log line.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from importlib import metadata

from uif_tvm.errors import TargetError
from uif_tvm.target.spec import TargetSpec

ENTRY_POINT_GROUP = "uif.targets"


@dataclass(frozen=True)
class TargetEntry:
    """One discovered target: ``spec`` when it loads, ``error`` when it does not."""

    id: str
    origin: str
    spec: TargetSpec | None = None
    error: str | None = None


@cache
def list_targets() -> tuple[TargetEntry, ...]:
    """Every target there is, built-in ones first, broken ones included; scanned once.

    Raises:
        TargetError: asked by a target's ``create`` while the scan is under way.
    """
    if _scan.running:
        raise TargetError(
            "a target looks up another one while targets are still being discovered",
            code="UIF-TARGET-BROKEN",
            target="(none)",
            hint="import the other target's module and call its create()",
        )
    _scan.running = True
    try:
        return _discover()
    finally:
        _scan.running = False


class _Scan(threading.local):
    running = False


_scan = _Scan()


def _discover() -> tuple[TargetEntry, ...]:
    entries: dict[str, TargetEntry] = {}
    for name, origin, factory in _sources():
        entry = _load(name, origin, factory)
        if entry.id in entries:
            other = entries[entry.id].origin
            entry = TargetEntry(
                f"{entry.id} ({origin})", origin, error=f"id {entry.id!r} is taken by {other}"
            )
        entries[entry.id] = entry
    return tuple(entries.values())


def get_target(target_id: str) -> TargetSpec:
    """The target named ``target_id``.

    Raises:
        TargetError: unknown id (the nearest names are offered) or a broken target.
    """
    entries = {entry.id: entry for entry in list_targets()}
    entry = entries.get(target_id)
    if entry is None:
        near = difflib.get_close_matches(str(target_id), entries, n=3)
        raise TargetError(
            f"there is no target {target_id!r}; known: {', '.join(sorted(entries))}",
            target=str(target_id),
            hint=f"did you mean {near[0]!r}?" if near else "list them with: uif targets list",
        )
    if entry.spec is None:
        raise TargetError(
            f"target {target_id!r} ({entry.origin}) is broken: {entry.error}",
            code="UIF-TARGET-BROKEN",
            target=target_id,
            hint="mend its target.py, or remove the package that provides it",
        )
    return entry.spec


def _sources() -> Iterator[tuple[str, str, Callable[[], object]]]:
    package = importlib.import_module("uif_tvm.targets")
    for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda m: m.name):
        if module.ispkg and not module.name.startswith("_"):
            path = f"{package.__name__}.{module.name}.target"
            yield module.name.replace("_", "-"), path, partial(_create, path)
    for point in sorted(metadata.entry_points(group=ENTRY_POINT_GROUP), key=lambda p: p.name):
        yield point.name, f"entry point {point.value}", partial(_enter, point)


def _create(path: str) -> object:
    return importlib.import_module(path).create()


def _enter(point: metadata.EntryPoint) -> object:
    return point.load()()


def _load(name: str, origin: str, factory: Callable[[], object]) -> TargetEntry:
    try:
        spec = factory()
        if not isinstance(spec, TargetSpec):
            raise TypeError(f"create() returned {type(spec).__name__}, not TargetSpec")
        if spec.id != name:
            raise ValueError(f"the spec's id is {spec.id!r}, but it is registered as {name!r}")
    except Exception as error:
        # A broken plug-in may raise anything; it must not take the others down.
        return TargetEntry(name, origin, error=f"{type(error).__name__}: {error}")
    return TargetEntry(spec.id, origin, spec=spec)
