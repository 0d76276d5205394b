"""A coverage report as one HTML page that needs nothing else: no scripts or fonts from anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uif_tvm.selection.coverage.report import CoverageReport, Result

_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 110rem; padding: 0 1rem;
       color: #1d2330; background: #fff; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid #e3e6ec;
         vertical-align: top; }
th { cursor: pointer; white-space: nowrap; background: #f5f6f9; position: sticky; top: 0; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
code { font-size: .85em; overflow-wrap: anywhere; }
.bar { display: flex; height: 1.1rem; border-radius: .3rem; overflow: hidden; background: #e3e6ec; }
.native { background: #3f9142; } .composed { background: #8cbf5c; } .host { background: #e0a52e; }
.folded, .removed { background: #9fb4cf; } .unsupported { background: #d0653a; }
.failed { background: #b3261e; } .unreached, .not-taken { background: #a5a9b2; }
.tag { border-radius: .3rem; padding: 0 .4rem; color: #fff; white-space: nowrap; }
input { padding: .3rem .5rem; width: 24rem; max-width: 100%; }
@media (prefers-color-scheme: dark) {
  body { background: #14171d; color: #e4e7ee; } th { background: #1f242d; }
  th, td { border-color: #2b313c; } .bar { background: #2b313c; } }
"""
_SCRIPT = """
document.querySelectorAll("th").forEach(head => head.addEventListener("click", () => {
  const body = head.closest("table").tBodies[0], at = head.cellIndex;
  const down = head.dataset.down = head.dataset.down === "1" ? "" : "1";
  const key = row => row.cells[at].dataset.key ?? row.cells[at].textContent;
  const rows = [...body.rows].sort((a, b) => {
    const x = key(a), y = key(b), order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
    return down ? -order : order; });
  body.append(...rows); }));
document.querySelectorAll("input").forEach(field => field.addEventListener("input", () => {
  const wanted = field.value.toLowerCase();
  for (const row of document.getElementById(field.dataset.table).tBodies[0].rows)
    row.hidden = !row.textContent.toLowerCase().includes(wanted); }));
"""


def write_html(report: CoverageReport, path: Path) -> None:
    """Write ``report`` to ``path``, in one step.

    Raises:
        ArtifactIOError: it cannot be written.
    """
    from uif_tvm.artifact.files import replacing

    with replacing(path) as file:
        file.write(render(report).encode())


def render(report: CoverageReport) -> str:
    """The page."""
    title = f"uif coverage: {', '.join(m.name for m in report.models)} on {report.target}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{len(report.results)} distinct operator instances, each compiled alone at level "
        f"{report.level}, run and compared, in {report.seconds:.0f} s. Times are of one run on "
        f"{report.threads} thread; click a column's head to sort.</p>",
        "<h2>Models</h2>",
        _models(report),
    ]
    if report.blockers():
        parts += ["<h2>What does not run on the target</h2>", _blockers(report)]
    parts += [
        "<h2>Instances</h2>",
        '<p><input data-table="instances" placeholder="filter: Conv, host, float16 ..."></p>',
        _instances(report),
        "<h2>Operators</h2>",
        _operators(report),
    ]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n"
        f"<script>{_SCRIPT}</script>\n</body>\n</html>\n"
    )


def _models(report: CoverageReport) -> str:
    rows: list[Sequence[Any]] = []
    for model in report.models:
        if model.error:
            rows.append((escape(model.name), "", "", "", escape(model.error["message"])))
            continue
        covered = report.coverage(model)
        rows.append(
            (
                escape(model.name),
                sum(use.count for use in model.uses),
                _share(covered["by_count"]),
                _share(covered["by_time"]),
                _bar(report, model),
            )
        )
    return _table(("model", "nodes>", "run, by count>", "run, by time>", "nodes by verdict"), rows)


def _bar(report: CoverageReport, model: Any) -> str:
    pieces = [
        f'<span class="{verdict}" style="flex:{row["count"]}" '
        f'title="{verdict}: {row["count"]}"></span>'
        for verdict, row in report.shares(model).items()
    ]
    return f'<div class="bar">{"".join(pieces)}</div>'


def _blockers(report: CoverageReport) -> str:
    return _table(
        ("operator", "is", "models", "nodes>", "time>", "why"),
        [
            (
                escape(b.op),
                _tag(b.verdict),
                escape(", ".join(b.models)),
                b.count,
                _share(b.share),
                escape(b.reason),
            )
            for b in report.blockers()
        ],
    )


def _operators(report: CoverageReport) -> str:
    return _table(
        ("operator", "nodes>", "distinct>", "time>", "run as"),
        [
            (
                escape(row.op),
                row.count,
                row.instances,
                _share(row.share),
                " ".join(f"{_tag(verdict)} {count}" for verdict, count in row.verdicts.items()),
            )
            for row in report.operators()
        ],
    )


def _instances(report: CoverageReport) -> str:
    columns = ["instance", "nodes>", "runs as", "ms>", "time>", "time is", "details"]
    rows = []
    total = sum(row["ms"] for row in report.shares().values())
    for result, nodes, ms, source in report.top("count", len(report.results)):
        each = report.milliseconds(result.instance.digest)[0]
        rows.append(
            [
                f"<code>{escape(result.instance.signature())}</code>",
                nodes,
                _tag(result.verdict),
                f"{each:.4g}" if source != "none" else "",
                _share(ms / total) if total and source != "none" else "",
                source if source != "none" else "",
                _details(result),
                *(escape(result.peers.get(p, {}).get("status", "")) for p in report.against),
            ]
        )
    return _table([*columns, *map(escape, report.against)], rows, identifier="instances")


def _details(result: Result) -> str:
    lines = [
        f"{result.stage}: {result.reason}" if result.stage else result.reason,
        ", ".join(result.kernels),
        result.remark,
        f"only {result.checked}" if result.checked not in ("values", "") else "",
        f"reproducer: {result.reproducer}" if result.reproducer else "",
        f"nodes: {', '.join(result.instance.nodes[:3])}",
    ]
    return "<br>".join(escape(line) for line in lines if line)


def _tag(verdict: str) -> str:
    return f'<span class="tag {verdict}">{verdict}</span>'


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.1f}%"


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]], identifier: str = "") -> str:
    """Cells are HTML already."""

    def cell(tag: str, column: str, content: Any) -> str:
        kind = ' class="number"' if column.endswith(">") else ""
        bare = str(content).rstrip("%")
        key = f' data-key="{bare}"' if kind and tag == "td" else ""
        return f"<{tag}{kind}{key}>{content}</{tag}>"

    head = "".join(cell("th", column, column.rstrip(">")) for column in columns)
    body = "\n".join(
        "<tr>" + "".join(cell("td", c, v) for c, v in zip(columns, row, strict=True)) + "</tr>"
        for row in rows
    )
    name = f' id="{identifier}"' if identifier else ""
    return f"<table{name}><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"
