"""``uif passes``: the graph passes in the order they run, and what each of them does."""

from __future__ import annotations

import difflib
import sys
from typing import TYPE_CHECKING, Any

import click

from uif_tvm.cli.output import emit_json, json_option, print_fields, print_table

if TYPE_CHECKING:
    from uif_tvm.compiler.graph_pass import GraphPass

target_option = click.option(
    "--target", default="cpu", show_default=True, help="The target whose own passes are listed too."
)


@click.group("passes")
def command() -> None:
    """List the graph passes, or show one."""


@command.command("list")
@target_option
@json_option
def list_command(target: str, as_json: bool) -> None:
    """List the passes in the order they run, each with the lowest level that it runs at."""
    rows = [describe(*found) for found in _passes(target)]
    if as_json:
        emit_json("passes", {"target": target, "passes": rows})
        return
    print_table(
        "",
        ("phase", "pass", "from level", "can be disabled", "what it does"),
        [
            (
                f"{row['step']} {row['phase']}",
                row["name"],
                row["level"],
                "yes" if row["optional"] else "no",
                row["summary"],
            )
            for row in rows
        ],
    )


@command.command("show")
@click.argument("name")
@target_option
@json_option
def show_command(name: str, target: str, as_json: bool) -> None:
    """Show what the pass NAME rewrites, needs and guarantees.

    \\b
    Raises a usage error where there is no such pass.
    """
    from uif_tvm.errors import UsageError

    found = {row[2].name: row for row in _passes(target)}
    if name not in found:
        near = difflib.get_close_matches(name, found, n=1)
        raise UsageError(
            f"there is no pass {name!r}",
            code="UIF-USAGE-PASS",
            hint=f"did you mean {near[0]!r}?" if near else "list them with: uif passes list",
        )
    body = describe(*found[name])
    if as_json:
        emit_json("pass", {"target": target, "pass": body})
        return
    print_fields(
        f"{name}: phase {body['step']} {body['phase']}, from level {body['level']}",
        {
            "requires": ", ".join(body["requires"]) or "nothing",
            "ensures": ", ".join(body["ensures"]) or "nothing new",
            "disable": f"--disable-pass {name}" if body["optional"] else "cannot be disabled",
        },
    )
    click.echo(body["text"])


def describe(step: int, phase: str, graph_pass: GraphPass, level: str) -> dict[str, Any]:
    """A pass as plain data; ``text`` is its module's, which gives the rewrite as a formula."""
    module = sys.modules[type(graph_pass).__module__]
    own = (type(graph_pass).__doc__ or "").strip()
    return {
        "step": step,
        "phase": phase,
        "name": graph_pass.name,
        "level": level,
        "optional": graph_pass.optional,
        "requires": sorted(graph_pass.requires),
        "ensures": sorted(graph_pass.ensures),
        "summary": own.partition("\n")[0],
        "text": (module.__doc__ or own).strip(),
    }


def _passes(target: str) -> list[tuple[int, str, GraphPass, str]]:
    """(number of the phase, its name, pass, lowest level) in order, the target's own last."""
    from uif_tvm.compiler.context import CompileContext
    from uif_tvm.compiler.pipeline import passes_for, phases
    from uif_tvm.compiler.report import ReportBuilder
    from uif_tvm.target.registry import get_target

    ctx = CompileContext(get_target(target), 3, ReportBuilder())
    found = []
    for step, phase in enumerate(phases(), 1):
        found += [(step, phase.name, item, str(level)) for level, item in phase.passes]
        own = passes_for(phase, ctx)[len(phase.passes) :]
        found += [(step, phase.name, item, f"1 (of {target})") for item in own]
    return found
