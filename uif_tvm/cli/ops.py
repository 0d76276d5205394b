"""``uif ops``: the standard operators, what they mean, and what a target says to each."""

from __future__ import annotations

import inspect
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from uif_tvm.cli.output import emit_json, json_option, print_fields, print_table

if TYPE_CHECKING:
    from uif_tvm.ops.spec import OpSpec


@click.group("ops")
def command() -> None:
    """List the standard operators, or show one."""


@command.command("list")
@click.option("--family", help="Only operators of this family.")
@json_option
def list_command(family: str | None, as_json: bool) -> None:
    """List the standard operators: the vocabulary of targets, reports and coverage."""
    from uif_tvm import ops
    from uif_tvm.cli.env import operator_plugins
    from uif_tvm.errors import UsageError

    plugins = operator_plugins()
    chosen = [spec for spec in ops.specs() if family in (None, spec.family)]
    if not chosen:
        families = sorted({spec.family for spec in ops.specs()})
        raise UsageError(
            f"there is no operator family {family!r}", hint=f"one of {', '.join(families)}"
        )
    rows = [describe(spec) for spec in sorted(chosen, key=lambda spec: (spec.family, spec.name))]
    if as_json:
        emit_json("ops", {"ops": rows, "plugins": plugins})
        return
    print_table(
        "",
        ("family", "operator", "first operand", "composed of"),
        [
            (r["family"], r["name"], _dtypes_text(r["dtypes"]), ", ".join(r["composed_of"]))
            for r in rows
        ],
    )
    for plugin in plugins:
        if plugin["error"]:
            click.echo(f"broken: {plugin['name']} ({plugin['origin']}): {plugin['error']}")


@command.command("show")
@click.argument("name")
@json_option
def show_command(name: str, as_json: bool) -> None:
    """Show all that is known about the operator NAME, its NumPy meaning included."""
    from uif_tvm import ops
    from uif_tvm.cli.env import operator_plugins

    operator_plugins()
    spec = ops.find(name)
    body = describe(spec) | {"reference": _source(spec)}
    if as_json:
        emit_json("op", {"op": body})
        return
    print_fields(
        f"{spec.name}: {spec.family}, version {spec.version}",
        {
            "in graphs": spec.graph_name,
            "operands": ", ".join(
                f"[{o['name']}]" if o["optional"] else o["name"] for o in body["operands"]
            )
            + (" ..." if spec.variadic else ""),
            "attributes": ", ".join(map(_attribute_text, body["attributes"])) or "none",
            "results": spec.results,
            "first operand": ", ".join(spec.dtypes),
            "tolerance": ", ".join(
                f"{dtype} rtol {t['rtol']:g} atol {t['atol']:g}"
                for dtype, t in body["tolerance"].items()
            )
            or "equal",
            "composed of": ", ".join(body["composed_of"]) or "nothing simpler",
            "cases": ", ".join(body["cases"]),
            "source": spec.source or "NumPy",
        },
    )
    click.echo("meaning:")
    click.echo(body["reference"])


def describe(spec: OpSpec) -> dict[str, Any]:
    """An OpSpec as plain data."""
    from uif_tvm.ops.spec import Required

    return {
        "name": spec.name,
        "family": spec.family,
        "version": spec.version,
        "graph_name": spec.graph_name,
        "operands": [vars(operand) for operand in spec.operands],
        "variadic": spec.variadic,
        "attributes": [
            {
                "name": item.name,
                "required": item.default is Required,
                "default": None if item.default is Required else item.default,
                "choices": list(item.choices),
            }
            for item in spec.attributes
        ],
        "results": spec.results,
        "dtypes": list(spec.dtypes),
        "accumulation": dict(spec.accumulation),
        "tolerance": {dtype: vars(value) for dtype, value in spec.tolerance.items()},
        "data_dependent": spec.data_dependent,
        "composed_of": _composed_of(spec),
        "cases": [case.name for case in spec.cases()] if spec.cases else [],
        "source": spec.source,
    }


def _composed_of(spec: OpSpec) -> list[str]:
    """The operators that the decompositions of the operator's cases consist of."""
    from uif_tvm.errors import UifError
    from uif_tvm.ops.build import NumpyBuilder

    if spec.decompose is None or spec.cases is None:
        return []

    class Listing(NumpyBuilder):
        def __init__(self) -> None:
            self.names: dict[str, None] = {}
            self.constants = False

        def op(self, name: str, *operands: Any, **attrs: Any) -> Any:
            self.names[name] = None
            return super().op(name, *operands, **attrs)

        def const(self, value: Any, dtype: str) -> Any:
            self.constants = True
            return super().const(value, dtype)

    listing = Listing()
    for case in spec.cases():
        # A decomposition may not apply to a case; the cases hold empty and extreme values, of which
        # NumPy warns and only the names are wanted.
        with suppress(UifError), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            spec.decompose(listing, list(case.inputs), spec.resolve(case.attrs))
    # Such as a window function of a length that is known: nothing is left to compute.
    return list(listing.names) or (["constants"] if listing.constants else [])


def _source(spec: OpSpec) -> str:
    """The reference as written; ready-made functions by their names."""
    try:
        return inspect.cleandoc(inspect.getsource(spec.reference)).rstrip()
    except (OSError, TypeError):
        module = getattr(spec.reference, "__module__", None) or "numpy"
        return f"{module}.{getattr(spec.reference, '__name__', spec.reference)}"


def _attribute_text(item: dict[str, Any]) -> str:
    text = str(item["name"]) if item["required"] else f"{item['name']}={item['default']!r}"
    return f"{text} ({' | '.join(map(str, item['choices']))})" if item["choices"] else text


def _dtypes_text(dtypes: list[str]) -> str:
    """Element types for people: whole groups by their names."""
    from uif_tvm.ops.spec import ALL, FLOATS, INTS, NUMBERS

    for name, group in (
        ("any", ALL),
        ("numbers", NUMBERS),
        ("floats", FLOATS),
        ("integers", INTS),
        ("integers, bool", (*INTS, "bool")),
    ):
        if set(dtypes) == set(group):
            return name
    return ", ".join(dtypes)
