"""``uif env``: what is installed, whether it fits together, and how to get what is missing."""

from __future__ import annotations

import platform
import shutil
import sys
from typing import Any

import click

from uif_tvm.cli.output import emit_json, json_option, print_fields, print_table

_ORDER = ("broken", "refused", "missing", "untested", "ok")


@click.command("env")
@json_option
def command(as_json: bool) -> int:
    """Show versions, whether they fit together, and what is missing.

    Exit code 0 when this environment can load and run models, 4 when it cannot. Missing extras
    (onnx, torch) are reported but are no fault: a machine that only runs models needs neither.
    """
    report = environment()
    if as_json:
        emit_json("env", report)
    else:
        _print(report)
    return 0 if report["usable"] else 4


def environment() -> dict[str, Any]:
    """Versions, verdicts and tools as plain data."""
    from uif_tvm import __version__, compat

    findings = compat.evaluate(compat.installed_versions())
    required_missing = [f for f in findings if f.extra is None and f.status == "missing"]
    fatal = [f for f in findings if f.fatal] + required_missing
    worst = min((f.status for f in findings if f.extra is None), key=_ORDER.index)
    return {
        "uif": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "usable": not fatal,
        "verdict": worst,
        "packages": [vars(finding) for finding in findings],
        "tools": {tool: shutil.which(tool) for tool in ("g++", "cc")},
        "remedies": [f.remedy for f in findings if f.remedy],
        "operator_plugins": [] if fatal else operator_plugins(),
    }


def operator_plugins() -> list[dict[str, Any]]:
    """Packages that bring operators (entry points ``uif.ops``), broken ones with their errors."""
    from uif_tvm.frontends.extension import plugins

    return [
        {
            "name": entry.name,
            "origin": entry.origin,
            "state": "broken" if entry.error else "ok",
            "ops": list(entry.ops),
            "error": entry.error,
        }
        for entry in plugins()
    ]


def _print(report: dict[str, Any]) -> None:
    print_fields(
        f"uif {report['uif']}",
        {
            "Python": f"{report['python']} ({report['executable']})",
            "machine": f"{report['machine']}, {report['system']}",
        },
    )
    print_table(
        "",
        ("package", "installed", "verdict", "needed for / why"),
        [
            (
                row["package"] + (f" (extra {row['extra']})" if row["extra"] else ""),
                row["installed"] or "-",
                row["status"],
                row["reason"],
            )
            for row in report["packages"]
        ],
    )
    if report["usable"]:
        click.echo("verdict: these versions work together")
    else:
        click.echo("verdict: this environment cannot run models")
    for row in report["packages"]:
        if row["remedy"]:
            click.echo(f"  {row['package']}: {row['remedy']}")
    for plugin in report["operator_plugins"]:
        brings = plugin["error"] or ", ".join(plugin["ops"]) or "no operators"
        click.echo(f"operator plug-in {plugin['name']} ({plugin['origin']}): {brings}")
    for tool, path in report["tools"].items():
        if path is None:
            click.echo(f"  {tool}: not found (only needed for building from source and for make)")
