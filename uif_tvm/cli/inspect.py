"""``uif inspect``: what is in a compiled file or an ONNX model, without running it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from uif_tvm.cli.inspect_sections import (
    TOP,
    matching,
    print_decisions,
    print_memory,
    print_placement,
)
from uif_tvm.cli.output import emit_json, json_option, print_fields, print_table, size_text
from uif_tvm.cli.tensors import listed
from uif_tvm.errors import UsageError


@click.command("inspect")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--target", help="Only this target of a .uif file.")
@click.option("--all", "everything", is_flag=True, help="Every row of each table, not the top.")
@click.option("--decisions", is_flag=True, help="Each rewrite done or declined, why, its gain.")
@click.option("--memory", is_flag=True, help="The memory plan, and what fills its peak.")
@click.option("--placement", is_flag=True, help="Where each operator runs, and why.")
@click.option(
    "--match",
    metavar="PATTERN",
    help="Only decisions whose pass, subject or reason fits; * and ? stand for any text.",
)
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write everything as one HTML page with pictures of memory and graph.",
)
@json_option
def command(
    file: Path,
    target: str | None,
    everything: bool,
    decisions: bool,
    memory: bool,
    placement: bool,
    match: str | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Say what is in a .uif file or an ONNX model.

    For a .uif file: inputs, outputs, targets and whether they run here, kernels by kind, memory,
    and what the compiler decided. For an .onnx file: inputs, outputs and operators.

    \b
    Why was this not fused?    uif inspect m.uif --match NAME
    What fills the peak?       uif inspect m.uif --memory
    What runs on the host?     uif inspect m.uif --placement
    """
    sections = Sections(decisions or match is not None, memory, placement, match, everything)
    if (sections.chosen or html) and file.suffix.lower() in (".onnx", ".pt2"):
        raise UsageError(
            f"{file} is a model; decisions, memory and placement are in a compiled file",
            hint=f"uif export {file} -o model.uif, then inspect model.uif",
        )
    if file.suffix.lower() == ".onnx":
        _inspect_onnx(file, as_json)
    elif file.suffix.lower() == ".pt2":
        raise UsageError(
            "inspect does not read .pt2 files",
            hint="export it first: uif export model.pt2 -o model.uif, then inspect model.uif",
        )
    else:
        _inspect_uif(file, target, sections, html, as_json)


def _inspect_onnx(file: Path, as_json: bool) -> None:
    from uif_tvm.cli.onnx_file import summarise

    summary = summarise(file)
    if as_json:
        emit_json(
            "inspect-onnx",
            {
                "file": str(file),
                "producer": summary.producer,
                "opsets": summary.opsets,
                "signature": summary.signature.to_json(),
                "op_histogram": summary.op_histogram,
                "weight_bytes": summary.weight_bytes,
            },
        )
        return
    print_fields(
        str(file),
        {
            "inputs": listed(summary.signature.inputs),
            "outputs": listed(summary.signature.outputs),
            "opset": ", ".join(f"{name} {version}" for name, version in summary.opsets.items()),
            "producer": summary.producer,
            "weights": size_text(summary.weight_bytes),
        },
    )
    print_table("operators", ("operator", "count>"), summary.op_histogram.items())


def _inspect_uif(
    file: Path, target: str | None, sections: Sections, html: Path | None, as_json: bool
) -> None:
    from uif_tvm.artifact import describe, open_artifact

    body = describe(file)
    rows = [row for row in body["targets"] if target in (None, row["id"])]
    if not rows:
        known = ", ".join(row["id"] for row in body["targets"])
        raise UsageError(f"{file} has no code for target {target!r}; it has {known}")
    with open_artifact(file) as artifact:
        reports = {
            section.target: artifact.report(section)
            for section in artifact.manifest.sections
            if target in (None, section.target)
        }
    if html is not None:
        _write_html(file, html, reports)
    if as_json:
        emit_json("inspect", {**body, "targets": rows, "reports": sections.of(reports)})
    elif sections.chosen:
        for row in rows:
            click.echo(f"target {row['id']}")
            sections.show(reports[row["id"]], row["memory"])
    elif html is None:
        _print_all(file, body, rows, reports, sections.everything)


@dataclass(frozen=True)
class Sections:
    """Which parts of a report were asked for; none means an overview."""

    decisions: bool
    memory: bool
    placement: bool
    pattern: str | None
    everything: bool

    @property
    def chosen(self) -> bool:
        """Whether any part was asked for."""
        return self.decisions or self.memory or self.placement

    def of(self, reports: Mapping[str, Any]) -> dict[str, Any]:
        """The chosen parts of ``reports``; whole reports where none was chosen."""
        if not self.chosen:
            return dict(reports)
        wanted = {
            "decisions": self.decisions,
            "memory": self.memory,
            "memory_plan": self.memory,
            "placement": self.placement,
        }
        parts = {
            name: {key: report[key] for key, asked in wanted.items() if asked and key in report}
            for name, report in reports.items()
        }
        for part in parts.values():
            if "decisions" in part:
                part["decisions"] = matching(part["decisions"], self.pattern)
        return parts

    def show(self, report: Mapping[str, Any], memory: Mapping[str, int]) -> None:
        """Print the chosen parts."""
        if self.decisions:
            rows = matching(report.get("decisions", []), self.pattern)
            print_decisions(rows, self.everything, self.pattern)
        if self.memory:
            print_memory(report.get("memory_plan", {}), memory, self.everything)
        if self.placement:
            print_placement(report.get("placement", []))


def _write_html(file: Path, html: Path, reports: Mapping[str, Any]) -> None:
    from uif_tvm.artifact.files import replacing
    from uif_tvm.cli.report_html import page

    if html.exists() and html.suffix.lower() not in (".html", ".htm"):
        raise UsageError(
            f"{html} exists and is no .html file; it was left as it was",
            code="UIF-USAGE-OUTPUT",
            hint="choose another name for the page, such as report.html",
        )
    with replacing(html) as stream:
        stream.write(page(file.name, reports).encode())
    click.echo(f"wrote {html}", err=True)


def _print_all(
    file: Path,
    body: Mapping[str, Any],
    rows: list[dict[str, Any]],
    reports: Mapping[str, Any],
    everything: bool,
) -> None:
    named = [f"{name} {version}" for name, version in body["versions"].items() if version]
    print_fields(
        f"{file}: {size_text(body['bytes'])}, all digests right",
        {
            "model": _model_line(body["model"]),
            "inputs": _signature_line(body["signature"]["inputs"]),
            "outputs": _signature_line(body["signature"]["outputs"]),
            "weights": size_text(body["weight_bytes"]),
            "made with": ", ".join(named),
        },
    )
    for row in rows:
        _print_target(row, reports[row["id"]], everything)


def memory_text(memory: Mapping[str, int]) -> str:
    """Planned memory by kind; what depends on open dimensions is said to be unknown."""
    parts = [f"{name} {size_text(value)}" for name, value in memory.items()]
    if "activations" not in memory:
        parts.append("activations unknown (they depend on open dimensions)")
    return ", ".join(parts)


def _print_target(row: dict[str, Any], report: dict[str, Any], everything: bool) -> None:
    kernels = report.get("kernels", [])
    kinds: Counter[str] = Counter()
    for kernel in kernels:
        kinds[kernel["kind"]] += kernel.get("calls", 1)
    decisions = report.get("decisions", [])
    fired = sum(bool(decision["fired"]) for decision in decisions)
    fallen = [item for item in report.get("placement", []) if item["where"] != "native"]
    click.echo()
    print_fields(
        f"target {row['id']}",
        {
            "runs here": "yes" if row["runs_here"] else "no: " + "; ".join(row["missing"]),
            "level": report.get("optimize_level", report.get("level", "?")),
            "kernels": f"{len(kernels)}; calls: "
            + (", ".join(f"{count} {kind}" for kind, count in kinds.most_common()) or "none"),
            "fallbacks": "; ".join(f"{i['op']} x{i['count']} ({i['where']})" for i in fallen)
            or "none",
            "memory": memory_text(row["memory"]),
            "decisions": f"{fired} rewrites done, {len(decisions) - fired} declined",
        },
    )
    shown = sorted(kernels, key=lambda k: -k.get("flops", 0.0) * k.get("calls", 1))
    print_table(
        "kernels, most work first",
        ("kernel", "ops", "kind", "rule", "calls>", "MFLOP>"),
        [
            (
                kernel["kernel"],
                ", ".join(kernel["ops"]),
                kernel["kind"],
                f"{kernel['rule']} {kernel.get('detail', '')}".strip(),
                kernel.get("calls", 1),
                f"{kernel.get('flops', 0.0) / 1e6:.2f}",
            )
            for kernel in (shown if everything else shown[:TOP])
        ],
    )
    if len(shown) > TOP and not everything:
        click.echo(f"  and {len(shown) - TOP} more; show them with --all")
    if everything:
        print_decisions(decisions, everything, None)
    for note in report.get("notes", []):
        click.echo(f"  note: {note}")


def _model_line(model: Any) -> str:
    if isinstance(model, dict):
        return ", ".join(f"{key} {value}" for key, value in model.items())
    return str(model)


def _signature_line(specs: list[dict[str, Any]]) -> str:
    from uif_tvm.signature import TensorSpec

    return listed([TensorSpec.from_json(spec) for spec in specs])
