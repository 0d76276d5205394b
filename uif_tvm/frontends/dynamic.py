"""``dynamic_shapes=``: which axes of which inputs stay open, under which names and ranges.

    {"x": {0: "batch", 2: ("seq", 1, 512)}}     by axis
    {"x": ["batch", 3, ("seq", 1, 512)]}        one entry per axis; None or a number is fixed
    "auto"                                      every axis that the model leaves open

An entry is a name, ``(name, least, most)`` where either end may be ``None``, or one of PyTorch's
(``torch.export.Dim``, ``Dim.AUTO``, ``Dim.DYNAMIC``, ``Dim.STATIC``). Equal names mean equal
extents. The least extent is 1 unless the entry says another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from uif_tvm.errors import UsageError
from uif_tvm.signature import DimRange

if TYPE_CHECKING:
    import tvm

AUTO = "auto"
_CODE = "UIF-USAGE-DYNAMIC"
_FORM = 'dynamic_shapes={"x": {0: "batch", 2: ("seq", 1, 512)}}'
_MOST = 2**31 - 1


@dataclass
class DimTable:
    """Symbolic dimensions by name: one range each, whichever axes carry it."""

    ranges: dict[str, DimRange] = field(default_factory=dict)

    def add(self, dim: DimRange) -> None:
        """Note a dimension; a range given with one of its axes holds for all of them.

        Raises:
            UsageError: two axes give it different ranges.
        """
        known = self.ranges.setdefault(dim.name, dim)
        plain = DimRange(dim.name)
        if known == plain:
            self.ranges[dim.name] = dim
        elif dim not in (known, plain):
            raise fault(f"{dim.name!r} has two ranges: {known} and {dim}")

    def fresh(self, wanted: str) -> str:
        """A name like ``wanted`` that no dimension has yet, made of letters, digits and ``_``."""
        stem = re.sub(r"\W", "_", wanted, flags=re.ASCII).strip("_") or "dim"
        stem = f"d{stem}" if stem[0].isdigit() else stem
        name, count = stem, 1
        while name in self.ranges:
            count += 1
            name = f"{stem}_{count}"
        return name


def fault(message: str, hint: str = f"for example {_FORM}") -> UsageError:
    """The error for a ``dynamic_shapes`` that cannot be meant."""
    return UsageError(f"dynamic_shapes: {message}", code=_CODE, hint=hint)


def by_input(dynamic_shapes: Any, names: Sequence[str]) -> dict[str, Any]:
    """The entries by input name, whether given so or in order.

    Raises:
        UsageError: neither form, an unknown name, too many entries.
    """
    if isinstance(dynamic_shapes, Mapping):
        unknown = [name for name in dynamic_shapes if name not in names]
        if unknown:
            listed = ", ".join(map(repr, names)) or "none"
            raise fault(f"the model has no input {unknown[0]!r}; it has {listed}")
        return dict(dynamic_shapes)
    if isinstance(dynamic_shapes, Sequence) and not isinstance(dynamic_shapes, str):
        if len(dynamic_shapes) > len(names):
            raise fault(f"{len(dynamic_shapes)} entries for {len(names)} inputs")
        return dict(zip(names, dynamic_shapes, strict=False))
    raise fault(f"{dynamic_shapes!r:.200} is neither a mapping by input name nor 'auto'")


def axis_entries(entry: Any, rank: int, subject: str) -> Iterator[tuple[int, Any]]:
    """(axis, entry) of one input, by axis or one per axis; negative axes count from the end.

    Raises:
        UsageError: no such form, or an axis that does not exist.
    """
    if entry is None:
        return
    if isinstance(entry, Mapping):
        items = list(entry.items())
    elif isinstance(entry, Sequence) and not isinstance(entry, str):
        items = list(enumerate(entry))
        if len(items) != rank:
            raise fault(f"{subject} has {rank} axes, {len(items)} entries were given")
    else:
        raise fault(f"the entry of {subject} must be a dict by axis, got {entry!r:.200}")
    seen = set()
    for axis, item in items:
        if type(axis) is not int or not -rank <= axis < rank:
            raise fault(f"{subject} has {rank} axes, and no axis {axis!r}")
        if axis % rank in seen:
            raise fault(f"axis {axis} of {subject} is given twice")
        seen.add(axis % rank)
        yield axis % rank, item


def parse_entry(item: Any, subject: str) -> DimRange | int | None:
    """One axis: a range, or its fixed extent (``None``: whatever the example has).

    A range with an empty name stands for PyTorch's nameless hints.

    Raises:
        UsageError: no such form, a name that is no identifier, an empty range.
    """
    if item is None or (type(item) is int and item >= 0):
        return item  # type: ignore[no-any-return]
    if isinstance(item, str):
        return _named(item, 1, None, subject)
    if isinstance(item, Sequence) and 1 <= len(item) <= 3 and isinstance(item[0], str):
        name, least, most = (*item, None, None)[:3]
        return _named(name, 1 if least is None else least, most, subject)
    kind = getattr(getattr(item, "type", None), "name", "")
    if kind in ("AUTO", "DYNAMIC", "STATIC"):  # torch's _DimHint
        least, most = getattr(item, "min", None), getattr(item, "max", None)
        return None if kind == "STATIC" else DimRange("", max(least or 1, 1), most)
    if type(item).__name__ in ("Dim", "_Dim") and hasattr(item, "__name__"):
        most = getattr(item, "max", None)
        # PyTorch's own default is 0 and means "not said".
        least = max(int(getattr(item, "min", 1)), 1)
        limited = isinstance(most, int) and most < _MOST
        return _named(item.__name__, least, most if limited else None, subject)
    raise fault(f"{item!r:.200} for {subject} is no name, (name, least, most), number or None")


def _named(name: str, least: Any, most: Any, subject: str) -> DimRange:
    if not (name.isascii() and name.isidentifier()):
        raise fault(f"{name!r:.80} for {subject} is no name: letters, digits and '_' make one")
    ends = [least] if most is None else [least, most]
    if any(type(end) is not int or not 0 <= end < 2**63 for end in ends):
        raise fault(f"the ends of {name!r} are {least!r} and {most!r}, not numbers from 0")
    if most is not None and most < least:
        raise fault(f"the range of {name!r} is empty: {least} to {most}")
    return DimRange(name, least, most)


def with_ranges(mod: tvm.IRModule, ranges: Iterable[DimRange]) -> tvm.IRModule:
    """``mod`` with the ranges of its dimensions noted on ``main``, where TVM's passes look.

    Variables must have the dimensions' names.
    """
    dims = list(ranges)
    limits = {dim.name: dim.maximum for dim in dims if dim.maximum is not None}
    least = {dim.name: dim.minimum for dim in dims}
    if not least:
        return mod
    main = mod["main"].with_attr("tir_var_lower_bound", least)
    mod["main"] = main.with_attr("tir_var_upper_bound", limits) if limits else main
    return mod
