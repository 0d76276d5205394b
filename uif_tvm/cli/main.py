"""The ``uif`` command: a lazily loaded verb per file, and one place that turns errors into codes.

Exit codes: 0 ok, 1 a check failed, 2 usage, 3 unsupported, 4 device or environment, 5 timeout,
70 our bug, 130 interrupted, 141 the reader of our output went away.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

import click

from uif_tvm.errors import UifError

#: verb -> (module in this package, one line of help). Help lives here, so that ``uif --help``
#: imports no verb; a test checks that it equals the first line of the verb's own help.
VERBS: Mapping[str, tuple[str, str]] = {
    "export": ("export", "Compile a model into a .uif file."),
    "run": ("run", "Run a .uif file on inputs from .npy or .npz files."),
    "bench": ("bench", "Measure the latency of a .uif file."),
    "inspect": ("inspect", "Say what is in a .uif file or an ONNX model."),
    "coverage": ("coverage", "Say what of models runs on a target, by trying it."),
    "reduce": ("reduce", "Shrink a failing ONNX model to the smallest one that still fails."),
    "targets": ("targets", "List targets, or show one."),
    "ops": ("ops", "List the standard operators, or show one."),
    "passes": ("passes", "List the graph passes, or show one."),
    "env": ("env", "Show versions, whether they fit together, and what is missing."),
}

ENVIRONMENT, TIMEOUT, BUG, INTERRUPTED, PIPE_CLOSED = 4, 5, 70, 130, 141

#: Set to ``1`` to get Python's traceback with every error.
TRACEBACK_VARIABLE = "UIF_TRACEBACK"


class StdoutFault(Exception):
    """Stdout does not take what is written: a full disk, a bad descriptor."""


class _Stdout:
    """Stdout whose faults can be told from those of other files."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    @property
    def buffer(self) -> _Stdout:
        """The bytes below; click writes to these where the text encoding is ASCII."""
        return _Stdout(self._stream.buffer)

    def write(self, data: str | bytes) -> int:
        """Write ``data``; raises :class:`StdoutFault`."""
        with _told_apart():
            return int(self._stream.write(data))

    def flush(self) -> None:
        """Flush; raises :class:`StdoutFault`."""
        with _told_apart():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _told_apart() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # no fault: the reader has seen enough
        raise
    except OSError as error:
        raise StdoutFault(error.strerror or str(error)) from error


class LazyGroup(click.Group):
    """A group that imports a verb's module only when that verb runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Verbs in the order of the table: the order in which a newcomer needs them."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import ``uif_tvm.cli.<module>`` and return its ``command``."""
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"uif_tvm.cli.{VERBS[cmd_name][0]}")
        command = cast(click.Command, module.command)
        _take_log_options(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table of verbs, without importing them."""
        with formatter.section("Verbs"):
            formatter.write_dl([(verb, text) for verb, (_, text) in VERBS.items()])


def _verbosity(ctx: click.Context, param: click.Parameter, value: int) -> None:
    """``-v`` and ``-q``, which mean the same before the verb and after it."""
    settings = ctx.find_root().ensure_object(dict)
    if param.name == "quiet":
        settings["quiet"] = bool(value) or settings.get("quiet", False)
        return
    settings["verbose"] = count = int(value) + settings.get("verbose", 0)
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(count, 2)]
    logging.basicConfig(
        stream=sys.stderr, level=level, format="%(levelname)s %(name)s: %(message)s", force=True
    )


def _log_options() -> list[click.Option]:
    verbose, quiet = "Log to stderr; twice for debugging.", "No progress display."
    return [
        click.Option(
            ["-v", "--verbose"], count=True, callback=_verbosity, expose_value=False, help=verbose
        ),
        click.Option(
            ["-q", "--quiet"], is_flag=True, callback=_verbosity, expose_value=False, help=quiet
        ),
    ]


def _take_log_options(command: click.Command) -> None:
    """Give a verb, and the verbs below it, the options of the root."""
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            _take_log_options(inner)
    if not any(param.name == "quiet" for param in command.params):
        command.params.extend(_log_options())


def _version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from uif_tvm import __version__

        click.echo(f"uif {__version__}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, callback=_version, expose_value=False, is_eager=True)
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Compile PyTorch and ONNX models for any chip that has a target, and run them.

    \b
      uif export model.onnx -o model.uif
      uif run model.uif --input x=@x.npy --output-dir out
    """
    if ctx.invoked_subcommand != "env":
        from uif_tvm import compat

        compat.check()


_take_log_options(cli)


def main(args: Sequence[str] | None = None) -> None:
    """Entry point of the ``uif`` command; always ends in ``SystemExit``."""
    arguments = list(sys.argv[1:] if args is None else args)
    sys.exit(_guarded(arguments))


def _guarded(arguments: list[str]) -> int:
    """Run the command line with a watched stdout; returns the exit code."""
    stdout = sys.stdout
    if stdout is None:  # Python's way to say that the descriptor is closed
        _report_stdout("it is closed")
        return ENVIRONMENT
    sys.stdout = cast(TextIO, _Stdout(stdout))
    try:
        return _run(arguments)
    except StdoutFault as fault:
        if _wants_traceback():
            raise
        _report_stdout(fault)
        _discard_stdout()
        return ENVIRONMENT
    finally:
        sys.stdout = stdout


def _run(arguments: list[str]) -> int:
    """Every way that the command line can end becomes an exit code and a readable message."""
    as_json = "--json" in arguments
    try:
        if "_UIF_COMPLETE" in os.environ:  # the shell asks for completions
            cli.main(arguments, prog_name="uif")
        # Not cli.main: it would turn a closed pipe into exit code 1 by itself.
        with cli.make_context("uif", arguments) as ctx:
            result = cli.invoke(ctx)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except StdoutFault:
        raise
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        if _wants_traceback():
            raise
        error.show(file=sys.stderr)
        if as_json:
            _emit_error({"code": "UIF-USAGE", "stage": "usage", "message": error.format_message()})
        return error.exit_code
    except UifError as error:
        if _wants_traceback():
            raise
        click.echo(f"error: {error}", err=True)
        if as_json:
            _emit_error(error.to_dict())
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except BrokenPipeError:
        _discard_stdout()
        return PIPE_CLOSED
    except TimeoutError as error:
        if _wants_traceback():
            raise
        click.echo(f"error: timed out: {error}", err=True)
        return TIMEOUT
    except Exception as error:
        if _wants_traceback():
            raise
        _report_bug(error)
        if as_json:
            _emit_error({"code": "UIF-INTERNAL", "message": f"{type(error).__name__}: {error}"})
        return BUG


def _wants_traceback() -> bool:
    return os.environ.get(TRACEBACK_VARIABLE, "") not in ("", "0")


def _emit_error(error: dict[str, object]) -> None:
    from uif_tvm.cli.output import emit_json

    try:
        emit_json("error", {"error": error})
    except BrokenPipeError:
        _discard_stdout()
    except StdoutFault as fault:  # the error is told on stderr, and its exit code stays
        _report_stdout(fault)
        _discard_stdout()


def _report_stdout(fault: object) -> None:
    click.echo(f"error: cannot write to stdout: {fault}", err=True)


def _discard_stdout() -> None:
    """Python would complain once more when it flushes stdout at exit."""
    with suppress(OSError, ValueError):  # no descriptor: nothing is flushed to one
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report_bug(error: Exception) -> None:
    click.echo(
        f"internal error: {type(error).__name__}: {error}\n"
        "  This is a bug in uif, not in your command.\n"
        f"  Run it again with {TRACEBACK_VARIABLE}=1 for the traceback, and report that together\n"
        "  with the output of: uif env",
        err=True,
    )


if __name__ == "__main__":
    main()
