"""``uif targets``: which chips there are, and what the framework knows about one."""

from __future__ import annotations

from typing import Any

import click

from uif_tvm.cli.output import emit_json, json_option, print_fields, print_table, size_text


@click.group("targets")
def command() -> None:
    """List targets, or show one."""


@command.command("list")
@json_option
def list_command(as_json: bool) -> None:
    """List every target, broken ones included."""
    from uif_tvm.target.registry import list_targets

    rows = [_row(entry) for entry in list_targets()]
    if as_json:
        emit_json("targets", {"targets": rows})
        return
    print_table(
        "",
        ("target", "vendor", "state", "description"),
        [(r["id"], r["vendor"], r["state"], r["description"] or r["error"]) for r in rows],
    )


@command.command("show")
@click.argument("name")
@json_option
def show_command(name: str, as_json: bool) -> None:
    """Show all that is known about the target NAME."""
    from uif_tvm.target.registry import get_target

    spec = get_target(name)
    body = describe(spec)
    if as_json:
        emit_json("target", {"target": body})
        return
    roofline, machine = body["roofline"], body["machine"]
    peaks = ", ".join(f"{dtype} {gflops:g}" for dtype, gflops in roofline["gflops"].items())
    print_fields(
        f"{spec.id}: {spec.description}",
        {
            "vendor": spec.vendor,
            "state": body["state"],
            "TVM target": ", ".join(f"{k} {v}" for k, v in body["tvm_target"].items()),
            "needs": f"{body['requirement']['arch']}: "
            + (", ".join(body["requirement"]["features"]) or "any"),
            "vectors": f"{machine['vector_registers']} registers of {machine['vector_bytes']} B",
            "caches": f"L1 {size_text(machine['l1_bytes'])}, L2 {size_text(machine['l2_bytes'])}, "
            f"L3 {size_text(machine['l3_bytes'])}",
            "cores": machine["cores"],
            "peak GFLOP/s": f"{peaks} ({roofline['source']})",
            "bandwidth": f"{roofline['gbps']:g} GB/s",
        },
    )
    print_table(
        "memory",
        ("tier", "size>", "GB/s>", "scope", "holds"),
        [
            (m["name"], size_text(m["bytes"]), f"{m['gbps']:g}", m["scope"], ", ".join(m["holds"]))
            for m in body["memory"]
        ],
    )
    print_table(
        "schedule rules, asked in this order",
        ("rule", "version>", "kind"),
        [(r["name"], r["version"], r["kind"]) for r in body["schedules"]],
    )
    for deviation in body["deviations"]:
        click.echo(f"known deviation {deviation['case']}: {deviation['reason']}")


def describe(spec: Any) -> dict[str, Any]:
    """A :class:`~uif_tvm.target.spec.TargetSpec` as plain data."""
    return {
        "id": spec.id,
        "vendor": spec.vendor,
        "description": spec.description,
        "state": _state(spec),
        "tvm_target": dict(spec.tvm_target),
        "machine": vars(spec.machine),
        "memory": [vars(tier) for tier in spec.memory],
        "roofline": {**vars(spec.roofline), "gflops": dict(spec.roofline.gflops)},
        "requirement": vars(spec.requirement),
        "schedules": [
            {"name": rule.name, "version": rule.version, "kind": rule.kind}
            for rule in spec.schedules
        ],
        "deviations": [vars(deviation) for deviation in spec.deviations],
    }


def _row(entry: Any) -> dict[str, Any]:
    spec = entry.spec
    return {
        "id": entry.id,
        "origin": entry.origin,
        "state": _state(spec) if spec is not None else "broken",
        "vendor": spec.vendor if spec is not None else None,
        "description": spec.description if spec is not None else None,
        "error": entry.error,
    }


def _state(spec: Any) -> str:
    if spec.detected:
        return "this machine"
    return "verified" if spec.verified else "compile-tested only"
