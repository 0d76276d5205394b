"""Pictures of a compile report as plain SVG: the memory timeline and the graph's fusion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from uif_tvm.cli.output import size_text

Row = Mapping[str, Any]

#: Fill colours by kind of buffer; readable on white for the colour-blind (Okabe and Ito, 2008).
KINDS = {
    "activation": "#56b4e9",
    "workspace": "#e69f00",
    "transfer": "#cc79a7",
    "constant": "#009e73",
}
_OTHER = "#999999"
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 1100, 420, 90, 1080, 12, 40


def timeline(tier: Row, steps: Sequence[str]) -> str:
    """Offsets (up) over steps (right): one box per buffer, and the bytes alive as a line.

    White between boxes below the line's height is fragmentation; a gap between the top of the
    boxes and the dashed bound is what the plan wastes.
    """
    buffers = tier["buffers"]
    last = max([len(steps), *(row["end"] for row in buffers)], default=1) or 1
    top = max(tier["arena_bytes"], tier["bound_bytes"], 1)
    wide: float = (_RIGHT - _LEFT) / last
    high: float = (_HEIGHT - _TOP - _BOTTOM) / top

    def x(step: float) -> float:
        return _LEFT + step * wide

    def y(offset: float) -> float:
        return _HEIGHT - _BOTTOM - offset * high

    parts = [_box(row, x, y, steps) for row in buffers]
    line = " ".join(f"{x(step):.2f},{y(alive):.2f}" for step, alive in _alive(buffers, last))
    parts.append(f'<polyline class="alive" points="{line}"/>')
    parts.append(
        f'<line class="bound" x1="{_LEFT}" x2="{_RIGHT}" y1="{y(tier["bound_bytes"]):.2f}" '
        f'y2="{y(tier["bound_bytes"]):.2f}"/>'
    )
    for part in range(5):
        offset = tier["arena_bytes"] * part // 4
        parts.append(_text(_LEFT - 8, y(offset) + 4, size_text(offset), "end"))
    for part in range(5):
        step = last * part // 4
        parts.append(_text(x(step), _HEIGHT - _BOTTOM + 16, str(step), "middle"))
    parts.append(_text(_LEFT, _HEIGHT - 6, "step (kernel calls in order)", "start"))
    return _svg(_WIDTH, _HEIGHT, parts, f"memory of tier {tier['tier']} over one run")


def _box(row: Row, x: Any, y: Any, steps: Sequence[str]) -> str:
    by = steps[row["first"]] if row["first"] < len(steps) else ""
    hint = (
        f"{row['name']} ({row['kind']}) of {row.get('source') or by}\n"
        f"{size_text(row['size'])} at offset {row['offset']}\n"
        f"steps {row['first']} to {row['end'] - 1}, written by {by or 'the caller'}"
    )
    width, height = x(row["end"]) - x(row["first"]), y(row["offset"]) - y(row["end_offset"])
    return (
        f'<rect x="{x(row["first"]):.2f}" y="{y(row["end_offset"]):.2f}" '
        f'width="{max(width, 0.5):.2f}" height="{max(height, 0.5):.2f}" '
        f'fill="{KINDS.get(row["kind"], _OTHER)}"><title>{escape(hint)}</title></rect>'
    )


def with_ends(tier: Row) -> dict[str, Any]:
    """The tier with ``end_offset`` in every buffer, as :func:`timeline` wants it."""
    buffers = [dict(row) | {"end_offset": row["offset"] + row["size"]} for row in tier["buffers"]]
    return dict(tier) | {"buffers": buffers}


def _alive(buffers: Iterable[Row], last: int) -> list[tuple[int, int]]:
    """Corners of the curve of live bytes."""
    changes: dict[int, int] = {}
    for row in buffers:
        changes[row["first"]] = changes.get(row["first"], 0) + row["size"]
        changes[row["end"]] = changes.get(row["end"], 0) - row["size"]
    points, alive = [(0, 0)], 0
    for step in sorted(changes):
        points.append((step, alive))
        alive += changes[step]
        points.append((step, alive))
    return [*points, (last, alive)]


_ROW, _COLUMN, _GAP = 22, 520, 60
#: Most letters of an operator, of operator and name together, and of a type, in one box.
_OP, _LABEL, _TYPE = 34, 62, 26


def fusion(before: Sequence[Row], after: Sequence[Row]) -> str:
    """The model's operators on the left, the kernels that they became on the right.

    Operators are listed kernel by kernel; what became no kernel of its own (folded, dead, a view)
    stands grey where it came in. The page highlights a node's inputs under the pointer.
    """
    numbers = [{node["name"]: index for index, node in enumerate(rows)} for rows in (before, after)]
    placed = _placed(before, after)
    height = _ROW * (sum(max(len(rows), 1) for _, rows in placed) + 1)
    parts, top = [], 4
    for kernel, rows in placed:
        size = max(len(rows), 1) * _ROW
        for index, node in enumerate(rows):
            parts.append(_node(node, 0, top + index * _ROW, _ROW - 4, kernel is None, numbers[0]))
        if kernel is not None:
            left = _COLUMN + _GAP
            parts.append(_node(kernel, left, top, size - 4, False, numbers[1], "kernel"))
            if rows:
                middle = top + size / 2 - 2
                parts.append(
                    f'<path class="into" d="M{_COLUMN},{top} L{left},{top} '
                    f'L{left},{top + size - 4} L{_COLUMN},{top + size - 4} Z"/>'
                )
                parts.append(_text(_COLUMN + _GAP / 2, middle + 4, str(len(rows)), "middle"))
        top += size
    return _svg(2 * _COLUMN + _GAP, height, parts, "operators and the kernels they became")


def _placed(before: Sequence[Row], after: Sequence[Row]) -> list[tuple[Row | None, list[Row]]]:
    """Kernels in order with their operators; operators without a kernel before the next one."""
    waiting: dict[str, list[int]] = {}
    for index, node in enumerate(before):
        waiting.setdefault(_plain(node["name"]), []).append(index)
    taken: list[tuple[Row, list[int]]] = []
    used: set[int] = set()
    for kernel in after:
        rows = []
        for source in kernel.get("sources", [kernel["name"]]):
            left = waiting.get(_plain(source))
            if left:
                rows.append(left.pop(0))
        used.update(rows)
        taken.append((kernel, sorted(rows)))
    alone = [index for index in range(len(before)) if index not in used]
    placed: list[tuple[Row | None, list[Row]]] = []
    for kernel, rows in taken:
        first = min(rows, default=-1)
        while alone and alone[0] < first:
            placed.append((None, [before[alone.pop(0)]]))
        placed.append((kernel, [before[index] for index in rows]))
    return placed + [(None, [before[index]]) for index in alone]


def _plain(name: str) -> str:
    return name.partition("#")[0]


def _node(
    node: Row,
    left: float,
    top: float,
    height: float,
    gone: bool,
    numbers: Mapping[str, int],
    kind: str = "op",
) -> str:
    op = _cut(node["op"], _OP)
    # The end of a long name tells more than its beginning.
    label = f"{op}  {_cut(node['name'], _LABEL - len(op), at_end=False)}"
    hint = f"{node['op']}\n{node['name']}: {node['type']}\nof {', '.join(node['inputs']) or '-'}"
    inputs = " ".join(str(numbers[name]) for name in node["inputs"] if name in numbers)
    line = top + min(height, _ROW - 4) - 4
    return (
        f'<g class="node {kind}{" gone" if gone else ""}" data-name="{numbers[node["name"]]}" '
        f'data-inputs="{inputs}"><title>{escape(hint)}</title>'
        f'<rect x="{left}" y="{top}" width="{_COLUMN}" height="{height}" rx="3"/>'
        + _text(left + 8, line, label, "start")
        + _text(left + _COLUMN - 8, line, _cut(node["type"], _TYPE), "end")
        + "</g>"
    )


def _cut(text: str, most: int, at_end: bool = True) -> str:
    if len(text) <= most:
        return text
    return text[: most - 1] + "…" if at_end else "…" + text[1 - most :]


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(width: float, height: float, parts: Iterable[str], label: str) -> str:
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" role="img" '
        f'aria-label="{escape(label)}" xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )
