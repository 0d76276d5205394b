"""The command as a whole: help, versions, and the exit code and text of every kind of failure."""

from __future__ import annotations

import importlib
import json
import logging
import os
import signal
import subprocess
import sys
import time

import click
import pytest

from uif_tvm import errors
from uif_tvm.cli import main as entry

from .conftest import command, invoke


@pytest.mark.parametrize("verb", entry.VERBS)
def test_help_of_a_verb_agrees_with_the_table(verb):
    module, text = entry.VERBS[verb]
    loaded = importlib.import_module(f"uif_tvm.cli.{module}").command
    assert isinstance(loaded, click.Command)
    assert loaded.name == verb
    assert (loaded.help or "").splitlines()[0] == text
    result = invoke(verb, "--help")
    assert result.exit_code == 0
    assert text in result.output


def test_help_lists_all_verbs_and_imports_none():
    code = (
        "import sys, uif_command\n"
        "sys.argv = ['uif', '--help']\n"
        "try: uif_command.main()\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = {'tvm', 'numpy', 'torch', 'onnx', 'rich'} & set(sys.modules)\n"
        "verbs = [m for m in sys.modules if m.startswith('uif_tvm.cli.')]\n"
        "print(sorted(heavy), verbs)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for verb in entry.VERBS:
        assert verb in done.stdout
    assert done.stdout.splitlines()[-1] == "[] ['uif_tvm.cli.main']"


def test_version():
    import uif_tvm

    assert invoke("--version").output.strip() == f"uif {uif_tvm.__version__}"


@pytest.mark.parametrize(
    "arguments", [["frobnicate"], ["export"], ["export", "--no-such-option"], ["run", "-O9"]]
)
def test_usage_mistakes_are_code_2(arguments):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert "Error" in result.output
    assert "Traceback" not in result.output


ERRORS = [
    (errors.UsageError("bad flag", hint="say it right"), 2),
    (errors.ImportModelError("bad file", hint="mend it"), 2),
    (errors.UnsupportedError([errors.UnsupportedOp("Foo", 2, "nobody made it")]), 3),
    (errors.CompileError("no luck", hint="try -O0"), 1),
    (errors.ArtifactError("torn", hint="export it again"), 1),
    (errors.EnvironmentFault("too old", hint="pip install newer"), 4),
    (errors.ArtifactIOError("disk full", hint="make room"), 4),
    (TimeoutError("30 s are over"), 5),
    (RuntimeError("should not happen"), 70),
    (KeyboardInterrupt(), 130),
]


@pytest.fixture
def failing_verb(monkeypatch):
    """Make ``uif env`` raise what the test sets."""
    module = importlib.import_module("uif_tvm.cli.env")

    def arm(error: BaseException) -> None:
        def body(**_: object) -> None:
            raise error

        monkeypatch.setattr(module.command, "callback", body)

    return arm


@pytest.mark.parametrize(("error", "code"), ERRORS, ids=lambda x: type(x).__name__)
def test_every_error_has_its_code_and_no_traceback(failing_verb, error, code, monkeypatch):
    monkeypatch.delenv(entry.TRACEBACK_VARIABLE, raising=False)
    failing_verb(error)
    result = invoke("env")
    assert result.exit_code == code
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    if isinstance(error, errors.UifError):
        assert error.message in result.stderr
        assert error.code in result.stderr
        if error.hint:
            assert f"remedy: {error.hint}" in result.stderr
    if code == 70:
        assert "bug in uif" in result.stderr
        assert f"{entry.TRACEBACK_VARIABLE}=1" in result.stderr


def test_json_errors_are_json_on_stdout(failing_verb):
    failing_verb(errors.UnsupportedError([errors.UnsupportedOp("Foo", 2, "unknown", ("n1",))]))
    result = invoke("env", "--json")
    body = json.loads(result.stdout)
    assert (body["schema"], body["schema_version"]) == ("uif.error", 2)
    assert body["error"]["code"] == "UIF-IMPORT-UNSUPPORTED"
    assert body["error"]["ops"] == [
        {"op": "Foo", "count": 2, "reason": "unknown", "locations": ["n1"], "hint": None}
    ]


def test_traceback_on_request(failing_verb, monkeypatch):
    monkeypatch.setenv(entry.TRACEBACK_VARIABLE, "1")
    failing_verb(ValueError("inner"))
    result = invoke("env")
    assert isinstance(result.exception, ValueError)


def test_reader_that_goes_away_is_no_error():
    """``uif env --json | head -0``: no message, no traceback."""
    read, write = os.pipe()
    os.close(read)
    process = subprocess.Popen(
        [sys.executable, "-c", "import uif_command; uif_command.main()", "env", "--json"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(write)
    _, complaints = process.communicate(timeout=60)
    assert process.returncode == entry.PIPE_CLOSED
    assert complaints == ""


full_device = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")


@full_device
@pytest.mark.parametrize(
    "arguments",
    [["env"], ["env", "--json"], ["targets", "list"], ["targets", "show", "cpu"], ["--help"]],
    ids=" ".join,
)
@pytest.mark.parametrize(
    "setting", [{}, {"PYTHONUNBUFFERED": "1"}, {"PYTHONIOENCODING": "ascii"}], ids=str
)
def test_full_stdout(arguments, setting):
    """Text, JSON, tables and help, at the first write or at the last flush: one line."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", "import uif_command; uif_command.main()", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **setting},
            check=False,
        )
    assert done.stderr == "error: cannot write to stdout: No space left on device\n"
    assert done.returncode == entry.ENVIRONMENT


@full_device
def test_full_stdout_keeps_the_code_of_another_error():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", "import uif_command; uif_command.main()",
             "targets", "show", "no-such-chip", "--json"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert "no-such-chip" in done.stderr
    assert done.stderr.count("cannot write to stdout: No space left on device") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", ["env", "env --json", "--version"])
def test_closed_stdout(arguments):
    python = f'exec "{sys.executable}" -c "import uif_command; uif_command.main()"'
    done = subprocess.run(
        ["sh", "-c", f"{python} {arguments} >&-"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == "error: cannot write to stdout: it is closed\n"
    assert done.returncode == entry.ENVIRONMENT


def test_interrupt_in_the_middle(tmp_path):
    """Ctrl-C while a verb works ends it with 130 and one word."""
    code = (
        "import time, importlib, uif_command, signal, sys\n"
        # What runs in the background of a shell starts with interrupts ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def body(**_): print('working', flush=True); time.sleep(60)\n"
        "importlib.import_module('uif_tvm.cli.env').command.callback = body\n"
        "sys.argv = ['uif', 'env']\n"
        "uif_command.main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "working\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, complaints = process.communicate(timeout=30)
    assert process.returncode == entry.INTERRUPTED
    assert complaints == "interrupted\n"


def test_version_guard_stops_every_verb_but_env(monkeypatch, tmp_path):
    from uif_tvm import compat

    tested = {package.name: package.tested for package in compat.PACKAGES}
    bad = tested | {"apache-tvm-ffi": "0.1.15.post2"}
    monkeypatch.setattr(compat, "installed_versions", lambda: bad)
    monkeypatch.delenv(compat.GUARD_VARIABLE, raising=False)
    stopped = invoke("targets", "list")
    assert stopped.exit_code == 4
    assert 'pip install "apache-tvm-ffi>=0.1.14.post0,<0.1.15"' in stopped.stderr
    explained = invoke("env")
    assert explained.exit_code == 4
    assert "segmentation fault" in explained.stdout
    assert 'pip install "apache-tvm-ffi>=0.1.14.post0,<0.1.15"' in explained.stdout


def test_command_starts_where_the_import_is_refused(tmp_path):
    """With a fake newer tvm-ffi on the path, ``import uif_tvm`` fails but ``uif env`` explains."""
    info = tmp_path / "apache_tvm_ffi-0.1.15.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: apache-tvm-ffi\nVersion: 0.1.15\n")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    environ.pop("UIF_VERSION_GUARD", None)
    refused = subprocess.run(
        [sys.executable, "-c", "import uif"],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 1
    assert "EnvironmentFault" in refused.stderr
    assert "pip install" in refused.stderr
    explained = command("env", "--json", env=environ)
    assert explained.returncode == 4
    assert json.loads(explained.stdout)["verdict"] == "broken"
    stopped = command("targets", "list", env=environ)
    assert stopped.returncode == 4
    assert "Traceback" not in stopped.stderr


@pytest.mark.parametrize(
    ("arguments", "quiet", "level"),
    [
        (["probe"], False, "WARNING"),
        (["-q", "probe"], True, "WARNING"),
        (["probe", "-q"], True, "WARNING"),
        (["-v", "probe", "-v"], False, "DEBUG"),
        (["probe", "-v"], False, "INFO"),
    ],
)
def test_log_options_stand_before_the_verb_or_after_it(monkeypatch, arguments, quiet, level):
    seen = {}

    @click.command("probe")
    @click.pass_context
    def probe(ctx):
        seen.update(ctx.obj, level=logging.getLevelName(logging.getLogger().level))

    entry._take_log_options(probe)
    monkeypatch.setattr(entry.LazyGroup, "get_command", lambda self, ctx, name: probe)
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    assert (seen["quiet"], seen["level"]) == (quiet, level)
