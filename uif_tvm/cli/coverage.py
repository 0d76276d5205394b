"""``uif coverage``: what of a model runs on a target, found out by compiling and running it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from uif_tvm.cli.export import dummy_input
from uif_tvm.cli.output import (
    PhaseProgress,
    counted,
    emit_json,
    import_option,
    json_option,
    print_table,
)
from uif_tvm.cli.tensors import input_option, shape_option, split_assignment
from uif_tvm.errors import UifError, UsageError

if TYPE_CHECKING:
    from uif_tvm.selection.coverage import CoverageReport, ModelCoverage, Result

FAILED, UNSUPPORTED = 1, 3
_SHORT_REASON = 160


@click.command("coverage")
@click.argument("models", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--target", default="cpu", show_default=True, help="What to compile for.")
@click.option(
    "--against",
    metavar="ENGINES",
    help="Run the same instances through these too: onnxruntime,openvino,tvm.",
)
@click.option(
    "-O",
    "--optimize-level",
    "level",
    type=click.IntRange(0, 3),
    default=2,
    show_default=True,
    help="As in uif export.",
)
@shape_option
@input_option
@click.option(
    "--jobs", type=click.IntRange(min=1), help="Instances tried at once; default: one per core."
)
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="For one instance.",
)
@click.option(
    "--reproducers",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where failing instances are saved; default: uif-coverage-failures.",
)
@click.option("--no-reproducers", is_flag=True, help="Save none.")
@click.option(
    "--fail-on",
    type=click.Choice(["unsupported", "host"]),
    help="Exit with code 3 when operators are not supported, or when they run on the host.",
)
@click.option("--top", type=click.IntRange(min=1), default=20, show_default=True, help="Rows.")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write a page with everything.")  # fmt: skip
@import_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    models: tuple[Path, ...],
    target: str,
    against: str | None,
    level: int,
    shapes: tuple[str, ...],
    inputs: tuple[str, ...],
    jobs: int | None,
    time_limit: float,
    reproducers: Path | None,
    no_reproducers: bool,
    fail_on: str | None,
    top: int,
    html: Path | None,
    imports: tuple[str, ...],
    as_json: bool,
) -> None:
    """Say what of models runs on a target, by trying it.

    MODELS are .onnx and .pt2 files. Every distinct operator instance (attributes, types, shapes,
    constants) is compiled alone, run in a process of its own and compared with ONNX Runtime,
    ONNX's reference or PyTorch. Several models give a ranking of what blocks most of them; inputs
    of one of them are then named MODEL:NAME.

    Exit code 1 when an instance gives wrong results, fails or crashes.
    """
    from uif_tvm.selection.coverage import REPRODUCERS, coverage

    feeds, unread = _inputs(models, shapes, inputs)
    with PhaseProgress("coverage", quiet=bool((ctx.obj or {}).get("quiet"))) as progress:
        report = coverage(
            [str(model) for model in models if model not in unread],
            target,
            inputs=feeds,
            against=[name.strip() for name in against.split(",")] if against else (),
            optimize_level=level,
            jobs=jobs,
            time_limit=time_limit,
            reproducers=None if no_reproducers else str(reproducers or REPRODUCERS),
            imports=imports,
            progress=progress,
        )
    _add_unread(report, unread)
    if html is not None:
        report.write_html(html)
    if as_json:
        emit_json("coverage", report.to_json())
    else:
        _print(report, top)
        if html is not None:
            click.echo(f"wrote {html}")
    ctx.exit(exit_code(report, fail_on))


def exit_code(report: CoverageReport, fail_on: str | None) -> int:
    """0 unless something failed, or is what the caller cannot live with."""
    if not report.right:
        return FAILED
    intolerable = {"unsupported": ("unsupported",), "host": ("unsupported", "host")}
    if fail_on and report.having(*intolerable[fail_on]):
        return UNSUPPORTED
    return 0


def _inputs(
    models: tuple[Path, ...], shapes: tuple[str, ...], inputs: tuple[str, ...]
) -> tuple[list[dict[str, Any] | None], dict[Path, UifError]]:
    """Inputs per model that can be read, and the errors of those that cannot.

    Options apply to every model that has an input of their name, or to one: ``MODEL:NAME=...``.
    """
    if len(models) == 1:
        return [dummy_input(models[0], shapes, inputs)], {}
    used: set[str] = set()
    feeds: list[dict[str, Any] | None] = []
    unread: dict[Path, UifError] = {}
    for model in models:
        try:
            names = _input_names(model)
            own = _meant(shapes, "--input-shape", model, names)
            arrays = _meant(inputs, "--input", model, names)
            used.update(own, arrays)
            feeds.append(dummy_input(model, tuple(own.values()), tuple(arrays.values())))
        except UifError as error:
            unread[model] = error
    # A model that cannot be read may be the one that is meant.
    stray = [] if unread else [text for text in (*shapes, *inputs) if text not in used]
    if stray:
        raise UsageError(f"no model has the input of {stray[0]!r}", code="UIF-USAGE-INPUT")
    if len(unread) == len(models):
        raise next(iter(unread.values()))
    return feeds, unread


def _meant(texts: tuple[str, ...], option: str, model: Path, names: set[str]) -> dict[str, str]:
    """Those of ``texts`` that are for ``model``, as given -> without its name in front.

    ``MODEL:NAME=...`` is for that model alone, and beats ``NAME=...``.
    """
    plain, own = {}, {}
    for text in texts:
        name = split_assignment(text, option)[0]
        prefix = f"{model.stem}:"
        if name.startswith(prefix) and name.removeprefix(prefix) in names:
            own[text] = text.removeprefix(prefix)
        elif name in names:
            plain[text] = text
    settled = {split_assignment(text, option)[0] for text in own.values()}
    used = {t: t for t in plain if split_assignment(t, option)[0] not in settled}
    return used | own


def _input_names(model: Path) -> set[str]:
    if model.suffix.lower() != ".onnx":
        return set()
    from uif_tvm.cli.onnx_file import summarise

    return {spec.name for spec in summarise(model).signature.inputs}


def _add_unread(report: CoverageReport, unread: dict[Path, UifError]) -> None:
    from uif_tvm.selection.coverage import ModelCoverage

    for path, error in unread.items():
        report.models.append(ModelCoverage(path.stem, str(path), error=error.to_dict()))


# --- text -------------------------------------------------------------------------------------


def _print(report: CoverageReport, top: int) -> None:
    _print_models(report)
    _print_operators(report)
    _print_top(report, "count", top)
    _print_top(report, "time", top)
    _print_blockers(report)
    _print_failures(report)
    _print_peers(report)
    for model in report.models:
        if model.error:
            click.echo(f"{model.name} could not be read: {model.error['message']}")
            if model.error.get("hint"):
                click.echo(f"  remedy: {model.error['hint']}")


def _print_models(report: CoverageReport) -> None:
    shown = [name for name in _verdicts() if report.having(name)]
    rows = [_model_row(report, model, model.name, shown) for model in report.models]
    if len(rows) > 1:
        rows.append(_model_row(report, None, "all", shown))
    tried = len(report.results)
    columns = ("model", "nodes>", "run, by count>", "run, by time>", *(f"{n}>" for n in shown))
    print_table(
        f"{counted(tried, 'operator instance')} on {report.target} -O{report.level}, "
        f"each compiled and run ({report.seconds:.0f} s)",
        columns,
        rows,
    )


def _model_row(
    report: CoverageReport, model: ModelCoverage | None, name: str, shown: list[str]
) -> tuple[Any, ...]:
    if model is not None and model.error:
        return (name, "not read", *[""] * (2 + len(shown)))
    shares, covered = report.shares(model), report.coverage(model)
    return (
        name,
        sum(int(row["count"]) for row in shares.values()),
        _percent(covered["by_count"]),
        _percent(covered["by_time"]),
        *(int(shares[verdict]["count"]) if verdict in shares else "" for verdict in shown),
    )


def _verdicts() -> tuple[str, ...]:
    from uif_tvm.selection.coverage.report import VERDICTS

    return VERDICTS


def _percent(share: float | None) -> str:
    if share is None:
        return "-"
    # Never 100% where something is missing, never 0% where something is there.
    if share >= 1 - 1e-12 or share <= 0:
        return f"{share:.0%}"
    return f"{min(max(share * 100, 0.1), 99.9):.1f}%"


def _print_operators(report: CoverageReport) -> None:
    timed = any(row.share for row in report.operators())
    print_table(
        "operators",
        ("operator", "nodes>", "distinct>", "time>", "run as"),
        [
            (
                row.op,
                row.count,
                row.instances,
                _percent(row.share) if timed else "-",
                ", ".join(f"{count} {verdict}" for verdict, count in row.verdicts.items())
                if len(row.verdicts) > 1
                else next(iter(row.verdicts)),
            )
            for row in report.operators()
        ],
    )


def _print_top(report: CoverageReport, by: str, count: int) -> None:
    rows = []
    whole = sum(row["ms"] for row in report.shares().values())
    for result, nodes, ms, source in report.top(by, count):
        each = report.milliseconds(result.instance.digest)[0]
        rows.append(
            (
                result.instance.signature(),
                nodes,
                f"{each:.3g}" if source != "none" else "",
                _percent(ms / whole) if whole and source != "none" else "",
                _where(result),
            )
        )
    estimated = any(source == "roofline" for *_, source in report.top(by, count))
    source = "measured alone, 1 thread" if not estimated else "measured, else roofline"
    title = "most frequent instances" if by == "count" else f"most time ({source})"
    print_table(title, ("instance", "nodes>", "ms each>", "time>", "runs as"), rows)


def _where(result: Result) -> str:
    if result.verdict in ("native", "composed"):
        kinds = ", ".join(result.kernels)
        text = f"{result.verdict} ({kinds})" if kinds else result.verdict
    elif result.verdict in ("failed", "unreached"):
        text = f"{result.verdict}: {result.stage}" if result.stage else result.verdict
    else:
        text = result.verdict
    return text + (f", {result.checked} only" if result.checked not in ("values", "") else "")


def _print_blockers(report: CoverageReport) -> None:
    blockers = report.blockers()
    if not blockers:
        return
    several = len(report.models) > 1
    print_table(
        "what blocks most models" if several else "what does not run on the target",
        ("operator", "is", *(("models>",) if several else ()), "nodes>", "time>", "why"),
        [
            (
                b.op,
                b.verdict,
                *((len(b.models),) if several else ()),
                b.count,
                _percent(b.share),
                _short(b.reason),
            )
            for b in blockers
        ],
    )


def _print_failures(report: CoverageReport) -> None:
    for result in report.having("failed", "unsupported"):
        instance = result.instance
        more = f" and {instance.count - 1} more" if instance.count > 1 else ""
        click.echo(f"{result.verdict} at {result.stage}: {instance.signature()}")
        click.echo(f"  node {instance.nodes[0]}{more}")
        click.echo(f"  {result.reason}")
        if result.hint:
            click.echo(f"  remedy: {result.hint}")
        if result.reproducer:
            click.echo(f"  reproducer: {result.reproducer}")
    for result in report.results.values():
        if result.remark:
            click.echo(f"note on {result.instance.signature()}: {result.remark}")


def _print_peers(report: CoverageReport) -> None:
    if not report.against:
        return
    rows = []
    for peer in report.against:
        asked = [r for r in report.results.values() if peer in r.peers]
        counts = Counter(r.peers[peer]["status"] for r in asked)
        both = [(r.ms, r.peers[peer]["ms"]) for r in asked if r.ms and r.peers[peer].get("ms")]
        times = f"{sum(a for a, _ in both):.3g} / {sum(b for _, b in both):.3g}" if both else ""
        listed = ", ".join(f"{n} {status}" for status, n in counts.most_common())
        rows.append((peer, len(asked), counts["right"], listed, times))
    print_table(
        "other engines on the same instances",
        ("engine", "instances>", "right>", "how it went", "ms, ours / theirs>"),
        rows,
    )
    for result in report.results.values():
        ours = result.verdict if result.verdict in ("failed", "unsupported") else "right"
        for peer, row in result.peers.items():
            if row["status"] in ("wrong", "crash", "timeout", "unsupported"):
                click.echo(f"{peer} {row['status']} (ours: {ours}): {result.instance.signature()}")
                click.echo(f"  {_short(row['detail'])}")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHORT_REASON else line[: _SHORT_REASON - 3] + "..."
