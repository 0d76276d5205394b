"""A compile report as one HTML page that needs nothing else: no script or style from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from uif_tvm.cli.inspect_sections import ratio_text, us_text
from uif_tvm.cli.output import size_text
from uif_tvm.cli.report_svg import KINDS, fusion, timeline, with_ends

Row = Mapping[str, Any]

_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2em; color: #222; max-width: 1150px; }
table { border-collapse: collapse; margin: 1em 0; }
th, td { text-align: left; padding: 2px 12px 2px 0; vertical-align: top; }
th { border-bottom: 1px solid #888; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tr.declined td { color: #777; }
svg { display: block; font: 11px system-ui, sans-serif; max-width: 100%; height: auto; }
svg rect { stroke: #fff; stroke-width: 0.4; }
svg .alive { fill: none; stroke: #000; stroke-width: 1.2; }
svg .bound { stroke: #d55e00; stroke-width: 1.2; stroke-dasharray: 6 4; }
svg .op rect { fill: #e8f3fb; } svg .kernel rect { fill: #d9f0e5; } svg .gone rect { fill: #eee; }
svg .gone text { fill: #888; } svg .into { fill: #f4f4f4; }
svg .node.from rect { fill: #ffd9a0; } svg .node.here rect { fill: #f0a040; }
.scroll { max-height: 700px; overflow: auto; border: 1px solid #ccc; margin: 1em 0; }
.scroll table { margin: 0 8px; }
.scroll td { overflow-wrap: anywhere; max-width: 440px; }
.scroll td:first-child { white-space: nowrap; }
.scroll svg { max-width: none; }
.key span { display: inline-block; width: 12px; height: 12px; margin: 0 4px 0 14px; }
input { font: inherit; padding: 2px 6px; width: 24em; }
"""

_SCRIPT = """
for (const field of document.querySelectorAll('input.filter')) {
  field.addEventListener('input', () => {
    const wanted = field.value.toLowerCase();
    for (const row of field.nextElementSibling.querySelectorAll('tbody tr'))
      row.hidden = !row.textContent.toLowerCase().includes(wanted);
  });
}
for (const picture of document.querySelectorAll('.scroll svg')) {
  const nodes = [...picture.querySelectorAll('.node')];
  for (const node of nodes) {
    const kind = node.classList.contains('op') ? 'op' : 'kernel';
    const inputs = new Set(node.dataset.inputs.split(' '));
    const near = nodes.filter(n => n.classList.contains(kind) && inputs.has(n.dataset.name));
    node.addEventListener('mouseenter', () => {
      node.classList.add('here'); near.forEach(n => n.classList.add('from')); });
    node.addEventListener('mouseleave', () => {
      node.classList.remove('here'); near.forEach(n => n.classList.remove('from')); });
  }
}
"""


def page(title: str, reports: Mapping[str, Row]) -> str:
    """The page for ``reports`` by target."""
    body = "".join(_target(name, report) for name, report in reports.items())
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>{escape(title)}</h1>\n{body}<script>{_SCRIPT}</script></body></html>\n"
    )


def _target(name: str, report: Row) -> str:
    kernels = report.get("kernels", [])
    calls = sum(kernel.get("calls", 1) for kernel in kernels)
    head = (
        f"<h2>Target {escape(name)}, level {escape(str(report.get('optimize_level', '?')))}</h2>"
        f"<p>{calls} kernel calls of {len(kernels)} kernels.</p>"
        + "".join(f"<p>Note: {escape(note)}</p>" for note in report.get("notes", []))
    )
    sections = (
        _memory(report.get("memory_plan", {})),
        _decisions(report.get("decisions", [])),
        _placement(report.get("placement", [])),
        _graph(report.get("graph", {})),
    )
    return head + "".join(sections)


def _memory(plan: Row) -> str:
    parts = ["<h3>Memory</h3>"]
    if plan.get("note"):
        parts.append(f"<p>{escape(plan['note'])}</p>")
    if not plan.get("tiers"):
        return "".join([*parts, "<p>No memory plan on record.</p>"])
    swatches = "".join(
        f'<span style="background:{colour}"></span>{kind}' for kind, colour in KINDS.items()
    )
    parts.append(
        f'<p class="key">{swatches}. Line: bytes alive. Dashed: the bound, which no arena can '
        "undercut. Rest the pointer on a box for its name.</p>"
    )
    for tier in plan["tiers"]:
        parts.append(
            f"<p><b>{escape(tier['tier'])}</b>: arena {size_text(tier['arena_bytes'])}, bound "
            f"{size_text(tier['bound_bytes'])}, ratio {ratio_text(tier)}; "
            f"{escape(tier['method'])}</p>"
        )
        parts.append(timeline(with_ends(tier), plan.get("steps", [])))
    return "".join(parts)


def _decisions(rows: Sequence[Row]) -> str:
    cells = [
        (
            row["fired"],
            (
                row["pass_name"],
                row["subject"],
                "done" if row["fired"] else "declined",
                us_text(row.get("gain_us")),
                row["reason"],
            ),
        )
        for row in rows
    ]
    table = _table(("pass", "subject", "", "gain us", "why"), cells)
    return (
        f'<h3>Decisions</h3><input class="filter" placeholder="filter: a name, a pass">'
        f'<div class="scroll">{table}</div>'
    )


def _placement(rows: Sequence[Row]) -> str:
    cells = [
        (
            row["where"] != "host",
            (
                row["op"],
                row["where"],
                str(row["count"]),
                us_text(row.get("estimated_us")),
                row.get("reason", ""),
            ),
        )
        for row in sorted(rows, key=lambda row: -row.get("estimated_us", 0.0))
    ]
    columns = ("operator", "where", "count", "estimated us", "why")
    return f"<h3>Placement</h3>{_table(columns, cells)}"


def _table(columns: Sequence[str], rows: Iterable[tuple[bool, Sequence[str]]]) -> str:
    """A table; rows whose flag is False are dimmed, columns of numbers are aligned right."""
    numeric = {i for i, name in enumerate(columns) if name in ("gain us", "count", "estimated us")}
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(
        _element(
            "tr",
            "" if strong else "declined",
            "".join(
                _element("td", "number" if index in numeric else "", escape(str(cell)))
                for index, cell in enumerate(cells)
            ),
        )
        for strong, cells in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _element(tag: str, kind: str, inner: str) -> str:
    return f'<{tag} class="{kind}">{inner}</{tag}>' if kind else f"<{tag}>{inner}</{tag}>"


def _graph(graph: Row) -> str:
    if not graph:
        return ""
    before, after = graph["before"], graph["after"]
    return (
        f"<h3>Graph</h3><p>{len(before)} nodes before, {len(after)} after. Left: the model's "
        "operators, grey where none is left (folded, merged, dead or a view). Right: the kernel "
        "that each became part of.</p>"
        f'<div class="scroll">{fusion(before, after)}</div>'
    )
