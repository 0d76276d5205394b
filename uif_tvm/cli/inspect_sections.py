"""The sections of ``uif inspect``: decisions, memory plan, placement; as tables of text."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from uif_tvm.cli.output import counted, print_fields, print_table, size_text

#: Rows of a table without ``--all``.
TOP = 12

Row = Mapping[str, Any]


def matching(decisions: Iterable[Row], pattern: str | None) -> list[Row]:
    """Decisions whose pass, subject or reason fits ``pattern`` (``*``, ``?``; else a part)."""
    if pattern is None:
        return list(decisions)
    wild = pattern if any(sign in pattern for sign in "*?[") else f"*{pattern}*"
    fields = ("pass_name", "subject", "reason")
    return [
        row
        for row in decisions
        if any(fnmatch.fnmatchcase(str(row[key]).lower(), wild.lower()) for key in fields)
    ]


def print_decisions(rows: Sequence[Row], everything: bool, pattern: str | None) -> None:
    """What each pass did and declined, then the decisions with the largest gains."""
    if not rows:
        click.echo(
            "  no decisions on record"
            if pattern is None
            else f"  no decision's pass, subject or reason fits {pattern!r}"
        )
        return
    passes = list(dict.fromkeys(str(row["pass_name"]) for row in rows))
    print_table(
        "decisions by pass, in the order they ran",
        ("pass", "done>", "declined>", "gain us>", "bytes saved>", "launches saved>"),
        [_pass_row(name, [row for row in rows if row["pass_name"] == name]) for name in passes],
    )
    # Declines of the same size of gain come after what was done, so that both are seen.
    order = sorted(rows, key=lambda row: (not row["fired"], -abs(row.get("gain_us") or 0.0)))
    for fired, title in ((True, "done, largest gain first"), (False, "declined")):
        chosen = [row for row in order if bool(row["fired"]) == fired]
        shown = chosen if everything or pattern is not None else chosen[:TOP]
        if not chosen:
            continue
        print_table(
            title,
            ("pass", "subject", "gain us>", "from", "why"),
            [
                (
                    row["pass_name"],
                    row["subject"],
                    us_text(row.get("gain_us")),
                    row.get("basis", ""),
                    row["reason"],
                )
                for row in shown
            ],
        )
        if len(shown) < len(chosen):
            click.echo(f"  and {len(chosen) - len(shown)} more; show them with --all")


def _pass_row(name: str, rows: Sequence[Row]) -> tuple[Any, ...]:
    done = [row for row in rows if row["fired"]]
    gains = [row["gain_us"] for row in done if row.get("gain_us") is not None]
    return (
        name,
        len(done),
        len(rows) - len(done),
        us_text(sum(gains)) if gains else "",
        size_text(int(sum(row.get("bytes_saved", 0.0) for row in done))),
        f"{sum(row.get('launches_saved', 0.0) for row in done):g}",
    )


def us_text(microseconds: float | None) -> str:
    """Microseconds with three digits, none of them after a thousand; empty where unknown."""
    if microseconds is None:
        return ""
    whole = abs(microseconds) >= 1000
    return f"{microseconds:,.0f}" if whole else f"{microseconds:.3g}"


def print_placement(rows: Sequence[Row]) -> None:
    """Where each kind of operator runs, at what share of the estimated time, and why."""
    whole = sum(row.get("estimated_us", 0.0) for row in rows) or 1.0
    print_table(
        "placement, most estimated time first",
        ("operator", "where", "count>", "estimated us>", "share>", "why"),
        [
            (
                row["op"],
                row["where"],
                row["count"],
                us_text(row.get("estimated_us")),
                f"{100 * row.get('estimated_us', 0.0) / whole:.1f}%",
                row.get("reason", ""),
            )
            for row in sorted(rows, key=lambda row: -row.get("estimated_us", 0.0))
        ],
    )


def peak_step(buffers: Sequence[Row]) -> tuple[int, int]:
    """The first step at which the most bytes are alive, and these bytes."""
    changes: dict[int, int] = {}
    for row in buffers:
        changes[row["first"]] = changes.get(row["first"], 0) + row["size"]
        changes[row["end"]] = changes.get(row["end"], 0) - row["size"]
    alive = most = at = 0
    for step in sorted(changes):
        alive += changes[step]
        if alive > most:
            most, at = alive, step
    return at, most


def print_memory(plan: Row, figures: Mapping[str, int], everything: bool) -> None:
    """The arena of every tier against its bound, and what fills it at its peak."""
    for name, size in figures.items():
        click.echo(f"  {name}: {size_text(size)}")
    if plan.get("note"):
        click.echo(f"  note: {plan['note']}")
    steps = plan.get("steps", [])
    for tier in plan.get("tiers", []):
        _print_tier(tier, steps, everything)
    if not plan.get("tiers"):
        click.echo("  no memory plan on record for this target")
    aliases = plan.get("aliases", [])
    if aliases:
        shown = aliases if everything else aliases[:TOP]
        print_table(
            f"{counted(len(aliases), 'value')} in another's memory",
            ("value", "of", "why"),
            [(row["name"], row["of"], row["why"]) for row in shown],
        )


def _print_tier(tier: Row, steps: Sequence[str], everything: bool) -> None:
    buffers = tier["buffers"]
    step, alive = peak_step(buffers)
    click.echo()
    print_fields(
        f"tier {tier['tier']}",
        {
            "arena": f"{size_text(tier['arena_bytes'])} for {counted(len(buffers), 'buffer')}",
            "bound": f"{size_text(tier['bound_bytes'])} (no arena can be smaller); "
            f"arena / bound {ratio_text(tier)}",
            "found by": tier["method"],
            "peak": f"{size_text(alive)} alive at step {step} of {len(steps)}"
            + (f", {steps[step]}" if step < len(steps) else ""),
        },
    )
    at_peak = [row for row in buffers if row["first"] <= step < row["end"]]
    chosen = buffers if everything else at_peak
    print_table(
        "all buffers" if everything else "alive at the peak, largest first",
        ("buffer", "kind", "bytes>", "offset>", "from step>", "to step>", "of"),
        [
            (
                row["name"],
                row["kind"],
                size_text(row["size"]),
                row["offset"],
                row["first"],
                row["end"] - 1,
                row.get("source", ""),
            )
            for row in sorted(chosen, key=lambda row: -row["size"])
        ],
    )


def ratio_text(tier: Row) -> str:
    """Arena over bound, such as ``1.004``."""
    return f"{tier['arena_bytes'] / tier['bound_bytes']:.3f}" if tier["bound_bytes"] else "1.000"
