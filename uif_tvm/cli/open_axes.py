"""Open axes on the command line: ``--dynamic-shape NAME=batch:1..8,3,224,w``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import click

from uif_tvm.cli.tensors import split_assignment
from uif_tvm.errors import UsageError
from uif_tvm.signature import TensorSpec

#: Extent of an open axis in made-up inputs, where its range allows.
_EXAMPLE = 8

dynamic_option = click.option(
    "--dynamic-shape",
    "dynamic",
    multiple=True,
    metavar="NAME=batch:1..8,3,224,w",
    help="Axes that stay open, by name and range; or auto for all that the model leaves open.",
)


def read_dynamic(assignments: Sequence[str]) -> str | dict[str, list[Any]] | None:
    """``dynamic_shapes`` from ``NAME=batch:1..8,3,224,?`` or ``auto``; ``None`` for none.

    Per axis a name with an optional range (``n``, ``n:4``, ``n:1..8``, ``n:2..``, ``n:..8``; one
    number is the most), a fixed size, or ``?`` for whatever the example has.

    Raises:
        UsageError: malformed, or an input given twice.
    """
    if not assignments:
        return None
    if "auto" in assignments:
        if len(assignments) > 1:
            raise UsageError("--dynamic-shape auto stands alone", code="UIF-USAGE-DYNAMIC")
        return "auto"
    chosen: dict[str, list[Any]] = {}
    for text in assignments:
        name, axes = split_assignment(text, "--dynamic-shape")
        if name in chosen:
            raise UsageError(f"input {name!r} is given twice", code="UIF-USAGE-DYNAMIC")
        chosen[name] = [_axis(item.strip(), name) for item in axes.split(",")]
    return chosen


def example_shapes(
    specs: Sequence[TensorSpec], dynamic: str | Mapping[str, list[Any]] | None
) -> dict[str, tuple[int, ...]]:
    """A shape for each input whose axes the model and ``dynamic`` settle between them.

    Open axes get a small extent within their range, the same for one name.

    Raises:
        UsageError: ``dynamic`` names an input that the model lacks, or not one entry per axis.
    """
    if dynamic is None:
        return {}
    entries = {} if isinstance(dynamic, str) else dynamic
    _check_entries(specs, entries)
    extents = {
        axis[0]: min(max(_EXAMPLE, axis[1] or 1), axis[2] or _EXAMPLE)
        for axis in (axis for axes in entries.values() for axis in axes if isinstance(axis, tuple))
        if axis[1] is not None or axis[2] is not None
    }
    shapes = {}
    for spec in specs:
        named = entries.get(spec.name, [None] * len(spec.shape))
        shape = []
        for declared, axis in zip(spec.shape, named, strict=False):
            if isinstance(declared, int):
                shape.append(declared)
            elif isinstance(axis, int):
                shape.append(axis)
            elif isinstance(axis, tuple) or dynamic == "auto":
                shape.append(extents.get(axis[0], _EXAMPLE) if axis else _EXAMPLE)
        if len(shape) == len(spec.shape):
            shapes[spec.name] = tuple(shape)
    return shapes


def _check_entries(specs: Sequence[TensorSpec], entries: Mapping[str, list[Any]]) -> None:
    ranks = {spec.name: len(spec.shape) for spec in specs}
    inputs = "; ".join(map(str, specs))
    for name, axes in entries.items():
        if name not in ranks:
            text = f"there is no input {name!r}"
        elif len(axes) != ranks[name]:
            text = f"{len(axes)} axes are given, the input has {ranks[name]}"
        else:
            continue
        raise UsageError(
            f"--dynamic-shape {name}: {text}. The model's inputs are {inputs}",
            code="UIF-USAGE-DYNAMIC",
            hint="like --dynamic-shape x=batch:1..8,3,224,w",
        )


_AXIS = re.compile(
    r"(?P<name>[A-Za-z_]\w*)(:(?P<least>\d*)(?P<dots>\.\.)?(?P<most>\d*))?", re.ASCII
)


def _axis(text: str, subject: str) -> Any:
    if text in ("?", ""):
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    match = _AXIS.fullmatch(text)
    if match is None:
        raise UsageError(
            f"--dynamic-shape {subject}: {text!r} is neither a name with a range nor a size",
            code="UIF-USAGE-DYNAMIC",
            hint=f"like --dynamic-shape {subject}=batch:1..8,3,224,w",
        )
    least, most = match["least"], match["most"]
    if not match["dots"]:
        least, most = "", least
    return (match["name"], int(least) if least else None, int(most) if most else None)
