"""Every command and every Python block of README.md runs, in order, in one folder.

A block that is not run has a comment right above it, ``<!-- not run: REASON -->``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+) -->\n)?^```(?P<kind>\w*)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
RUN = ("console", "python")


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text, its line, and why it is not run, if so."""

    kind: str
    body: str
    line: int
    reason: str | None

    @property
    def commands(self) -> list[str]:
        """Command lines of a console block, without comments."""
        lines = [line[2:] for line in self.body.splitlines() if line.startswith("$ ")]
        return [line.split("  #")[0].strip() for line in lines]


def blocks(text: str) -> list[Block]:
    """All fenced blocks of ``text``, in order."""
    return [
        Block(m["kind"], m["body"], text[: m.start("kind")].count("\n") + 1, m["reason"])
        for m in BLOCK.finditer(text)
    ]


README = blocks((ROOT / "README.md").read_text())


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Run all blocks once; line -> (command, exit code, output)."""
    folder = tmp_path_factory.mktemp("readme")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environ = {**os.environ, "PATH": path}
    results: dict[int, list[tuple[str, int, str]]] = {}
    for block in README:
        if block.reason is not None or block.kind not in RUN:
            continue
        lines = [["bash", "-c", command] for command in block.commands]
        if block.kind == "python":
            lines = [[sys.executable, "-c", block.body]]
        results[block.line] = []
        for line in lines:
            done = subprocess.run(
                line, cwd=folder, env=environ, capture_output=True, text=True, check=False
            )
            said = done.stdout + done.stderr
            results[block.line].append((line[-1], done.returncode, said))
    return results


@pytest.mark.parametrize(
    "block",
    [b for b in README if b.reason is None and b.kind in RUN],
    ids=lambda block: f"line-{block.line}",
)
def test_block_runs(block, outcomes):
    assert outcomes[block.line], "a console block without any '$ ' line"
    for command, code, said in outcomes[block.line]:
        assert code == 0, f"{command}\n{said}"
        assert "Traceback" not in said


def test_blocks_are_known_and_exceptions_have_reasons():
    assert sum(block.kind == "console" and block.reason is None for block in README) >= 3
    for block in README:
        assert block.kind in RUN, f"line {block.line}: mark the block as console or python"
        if block.reason is not None:
            assert len(block.reason) > 20, f"line {block.line}: say why it is not run"
    fences = (ROOT / "README.md").read_text().count("\n```")
    assert fences == 2 * len(README), "a fence is not closed"


def test_blocks_not_run_name_what_exists():
    """Of the exceptions at least the make targets and the files named in reasons must exist."""
    makefile = (ROOT / "Makefile").read_text()
    for block in README:
        if block.reason is None:
            continue
        for command in block.commands:
            if command.startswith("make "):
                assert re.search(rf"^{command.split()[1]}:", makefile, re.MULTILINE), command
        for name in re.findall(r"(?:tests|examples)/[\w/.]*\w", block.reason):
            assert (ROOT / name).exists(), name


def test_linked_files_exist():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / target).exists(), target
