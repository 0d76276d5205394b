"""What every verb prints with: JSON envelopes, tables on stdout, progress on stderr."""

from __future__ import annotations

import json
import math
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

#: Raised when a key of any ``--json`` output changes its meaning or goes away.
JSON_VERSION = 2

#: Work shorter than this shows no progress display, seconds.
PATIENCE = 1.0

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document on stdout."
)

import_option = click.option(
    "--import",
    "imports",
    multiple=True,
    metavar="MODULE",
    help="A module that registers operators; repeatable.",
)

threads_option = click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="Threads; default: TVM_NUM_THREADS or OMP_NUM_THREADS where set, else physical cores.",
)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Warnings of ours as one line on stderr, without a place in the source; others as usual."""
    from uif_tvm.errors import HostFallbackWarning, TrainModeWarning

    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Any, category: Any, *rest: Any, **more: Any) -> None:
            if issubclass(category, (HostFallbackWarning, TrainModeWarning)):
                click.echo(f"warning: {message}", err=True)
            else:
                usual(message, category, *rest, **more)

        warnings.showwarning = show
        yield


def emit_json(kind: str, body: Mapping[str, Any]) -> None:
    """Print ``body`` on stdout as JSON under ``schema: uif.<kind>`` and its version.

    NaN and infinities, which JSON has no words for, become strings.
    """
    document = {"schema": f"uif.{kind}", "schema_version": JSON_VERSION, **body}
    text = json.dumps(_plain(document), indent=2, ensure_ascii=False, allow_nan=False)
    sys.stdout.write(text.encode("utf-8", "backslashreplace").decode("utf-8") + "\n")
    sys.stdout.flush()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if hasattr(value, "item"):  # NumPy scalars
        return _plain(value.item())
    return str(value)


def stdout_console() -> Console:
    """A Rich console for data; wide when it is not a terminal, so that nothing is cut off."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else 160)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """One table on stdout. A column whose name ends in ``>`` is aligned right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    if title:
        click.echo(title)  # as a title of Rich's it would be folded at the table's width
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        right = column.endswith(">")
        table.add_column(column.rstrip(">"), justify="right" if right else "left", overflow="fold")
    for row in rows:
        # Text, not str: names of tensors may look like Rich markup.
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    stdout_console().print(table)


def print_fields(title: str, fields: Mapping[str, Any]) -> None:
    """Name and value, one line each, on stdout."""
    if title:
        click.echo(title)
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        click.echo(f"  {name.ljust(width)}  {value}")


def size_text(nbytes: int) -> str:
    """Bytes for people: ``38.5 MiB``."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= factor:
            return f"{round(nbytes / factor, 1):g} {unit}"
    return f"{nbytes} B"


def counted(count: int, noun: str) -> str:
    """``1 kernel``, ``2 kernels``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


class PhaseProgress:
    """Progress on stderr, shown once the work has taken longer than a second.

    On a terminal it is a live display; in a log file it is a line per phase. Call it as
    ``progress(phase, done, total)``; ``total`` 0 means unknown.
    """

    def __init__(self, title: str, quiet: bool = False) -> None:
        self._title = title
        self._quiet = quiet
        self._lock = threading.Lock()
        self._state = ("", 0, 0)
        self._display: Progress | None = None
        self._task: TaskID | None = None
        self._printed = ""
        self._timer: threading.Timer | None = None
        self._late = False

    def __enter__(self) -> PhaseProgress:
        if not self._quiet:
            self._timer = threading.Timer(PATIENCE, self._begin)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._quiet = True
            if self._timer is not None:
                self._timer.cancel()
            if self._display is not None:
                self._display.stop()

    def __call__(self, phase: str, done: int, total: int) -> None:
        """Tell that ``done`` of ``total`` steps of ``phase`` are finished."""
        with self._lock:
            self._state = (phase, done, total)
            if self._late and not self._quiet:
                self._show()

    def _begin(self) -> None:
        with self._lock:
            if self._quiet:
                return
            self._late = True
            if sys.stderr.isatty():
                from rich.console import Console
                from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

                self._display = Progress(
                    TextColumn("{task.description}"),
                    BarColumn(bar_width=28),
                    TextColumn("{task.fields[count]}"),
                    TimeElapsedColumn(),
                    console=Console(stderr=True),
                    transient=True,
                )
                self._task = self._display.add_task(self._title, total=None, count="")
                self._display.start()
            self._show()

    def _show(self) -> None:
        phase, done, total = self._state
        text = f"{self._title}: {phase}" if phase else self._title
        if self._display is not None and self._task is not None:
            count = f"{done}/{total}" if total else ""
            self._display.update(
                self._task, description=text, completed=done, total=total or None, count=count
            )
        elif phase != self._printed:
            self._printed = phase
            click.echo(text, err=True)
