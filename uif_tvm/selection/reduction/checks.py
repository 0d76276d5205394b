"""Checks: whether a model still shows the fault that is being looked for."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from uif_tvm.errors import UsageError
from uif_tvm.selection.coverage.run import VERIFY
from uif_tvm.selection.isolation import Outcome, Pool

#: Checks that need no script, with what they look for.
BUILT_IN = {
    "uif-fails": "anything that fails, in the way in which the whole model does",
    "uif-wrong": "it runs, with other results than ONNX Runtime's (or ONNX's reference)",
    "export-fails": "it cannot be exported (export-fails:CODE for one error code)",
    "run-fails": "it cannot be loaded or run (run-fails:CODE for one error code)",
    "uif-crashes": "the process dies, or hangs longer than the time limit",
}
_EXPORT_STAGES = frozenset({"import", "compile"})


@dataclass(frozen=True)
class Answer:
    """What a check says: whether the fault is there, and what was seen."""

    there: bool
    detail: str = ""


class Check(Protocol):
    """Looks at the model in ``folder``: ``model.onnx``, ``inputs.npz`` and ``expected.npz``."""

    def __call__(self, folder: Path) -> Answer: ...


class CommandCheck:
    """A command of the user's; exit code 0 says that the fault is still there.

    Args:
        command: split as a shell does; ``{model}`` and ``{inputs}`` become paths.
        seconds: a command that takes longer is stopped, and counts as "the fault is not there".

    Raises:
        UsageError: it does not name the model, or is no command line.
    """

    def __init__(self, command: str, seconds: float) -> None:
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise _no_check(command, f"is no command line: {error}") from error
        if not any("{model}" in word for word in self._words):
            raise _no_check(command, "does not say where the model goes")
        self._seconds = seconds

    def __call__(self, folder: Path) -> Answer:
        """Run the command.

        Raises:
            UsageError: there is no such program.
        """
        places = {
            "{model}": str(folder / "model.onnx"),
            "{inputs}": str(folder / "inputs.npz"),
        }
        words = [_filled(word, places) for word in self._words]
        try:
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self._seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Answer(False, f"not done in {self._seconds:g} s")
        except OSError as error:
            raise _no_check(words[0], f"cannot be started: {error.strerror}") from error
        said = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
        return Answer(done.returncode == 0, f"exit code {done.returncode}: {(said or [''])[-1]}")


class BuiltInCheck:
    """One of ``BUILT_IN``, in a worker process.

    Args:
        name: key of ``BUILT_IN``.
        code: error code wanted; empty for any.
        pool: where it runs.
        target, level: as in :func:`uif_tvm.export`.
        seconds: time limit.
    """

    def __init__(
        self, name: str, code: str, pool: Pool, target: str, level: int, seconds: float
    ) -> None:
        self._name = name
        self._code = code
        self._pool = pool
        self._arguments = {"target": target, "level": level, "op": "", "notes": []}
        self._seconds = seconds
        self._first: tuple[str, str] | None = None
        self._until = ""

    def __call__(self, folder: Path) -> Answer:
        """Export, run and compare."""
        outcome = self._pool.run(
            VERIFY, self._seconds, folder=str(folder), until=self._until, **self._arguments
        )
        stage, code, detail = _seen(outcome)
        if self._first is None and stage:
            self._first = stage, code
            if stage == "import" and self._name in ("uif-fails", "export-fails"):
                self._until = stage  # what comes after takes time and cannot be the fault
        if self._name == "uif-fails":
            # What the whole model does is what is looked for, not the next best fault.
            return Answer(bool(stage) and (stage, code) == self._first, detail)
        wanted = {
            "uif-wrong": frozenset({"numeric"}),
            "export-fails": _EXPORT_STAGES,
            "run-fails": frozenset({"run"}),
            "uif-crashes": frozenset({"crash", "timeout"}),
        }[self._name]
        return Answer(stage in wanted and self._code in ("", code), detail)


def _seen(outcome: Outcome) -> tuple[str, str, str]:
    """Stage of the failure (empty if there is none), its code, and both in words."""
    if outcome.how != "done":
        stage = "run" if outcome.how == "error" else outcome.how
        return stage, "", f"{outcome.how}: {outcome.detail}"
    row: dict[str, Any] = outcome.value
    if row["verdict"] not in ("failed", "unsupported"):
        return "", "", f"it runs ({row['verdict']})"
    code = row.get("code", "")
    return row["stage"], code, f"{row['stage']} {code}: {row['reason']}"


def make_check(text: str, pool: Pool, target: str, level: int, seconds: float) -> Check:
    """The check that ``text`` names: one of ``BUILT_IN``, with a code or not, or a command.

    Raises:
        UsageError: neither.
    """
    name, _, code = text.partition(":")
    if name in BUILT_IN:
        if code and name not in ("export-fails", "run-fails"):
            raise _no_check(text, f"takes no error code; {name} is enough")
        return BuiltInCheck(name, code, pool, target, level, seconds)
    return CommandCheck(text, seconds)


def _filled(word: str, places: dict[str, str]) -> str:
    for mark, path in places.items():
        word = word.replace(mark, path)
    return word


def _no_check(text: str, fault: str) -> UsageError:
    known: Sequence[str] = sorted(BUILT_IN)
    return UsageError(
        f"the check {text!r} {fault}",
        code="UIF-USAGE-CHECK",
        hint='like --check "python check.py {model} {inputs}", whose exit code 0 says that the '
        f"fault is still there; or one of {', '.join(known)}",
    )
