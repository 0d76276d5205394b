"""Reproducers: a failing pass leaves a folder that fails again, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import tvm
from tvm import relax

from tests.models import context, module
from uif_tvm.compiler.graph_pass import GraphPass, PassDriver
from uif_tvm.compiler.reproducer import replay
from uif_tvm.errors import CompileError, UsageError

MOD = module([("x", (2,), "float32")], lambda x: [relax.op.exp(x)])
REQUEST = {
    "target": "cpu", "level": 2, "facts": [], "disabled_passes": [], "disabled_fusion": [],
}  # fmt: skip


class Broken(GraphPass):
    """Fails on every module."""

    name = "broken"

    def apply(self, mod, ctx):
        raise IndexError("off by one")


def failed(tmp_path, monkeypatch, **options):
    ctx = context(**options)
    spec = replace(ctx.target, phase_overrides={"canonicalise": lambda _: [Broken()]})
    monkeypatch.setattr("uif_tvm.target.registry.get_target", lambda _: spec)
    with pytest.raises(CompileError) as caught:
        PassDriver(ctx).run([Broken()], MOD, "canonicalise")
    return caught.value


def test_folder_is_named_and_replays(tmp_path, monkeypatch):
    error = failed(tmp_path, monkeypatch, save_temps=tmp_path)
    folder = tmp_path / "cpu" / "failed-broken"
    assert f"a reproducer is in {folder}" in str(error)
    assert {path.name for path in folder.iterdir()} == {"before.json", "before.py", "reproduce.py"}
    assert "R.exp(x)" in (folder / "before.py").read_text()
    with pytest.raises(CompileError, match="IndexError: off by one"):
        replay(folder, phase="canonicalise", graph_pass="broken", **REQUEST)


def test_without_save_temps_it_is_in_a_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    error = failed(tmp_path, monkeypatch)
    (folder,) = tmp_path.iterdir()
    assert str(folder) in str(error)


def test_failure_that_cannot_be_saved_is_still_told(tmp_path, monkeypatch):
    (tmp_path / "taken").write_text("")
    error = failed(tmp_path, monkeypatch, save_temps=tmp_path / "taken")
    assert "IndexError: off by one" in str(error)
    assert "no reproducer could be written: NotADirectoryError" in str(error)


def test_script_runs_as_it_is(tmp_path, monkeypatch):
    """The pass of the shipped pipeline does not fail on this module, and the script says so."""
    from uif_tvm.relay_passes.dead_code import PASS

    def fail(mod, ctx):
        raise RuntimeError("only this time")

    with monkeypatch.context() as patch:
        patch.setattr(type(PASS), "apply", lambda self, mod, ctx: fail(mod, ctx))
        with pytest.raises(CompileError):
            PassDriver(context(save_temps=tmp_path)).run([PASS], MOD, "canonicalise")
    script = tmp_path / "cpu" / "failed-dead-code" / "reproduce.py"
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "the pass succeeded\n"), done.stderr


def test_pass_that_is_gone(tmp_path):
    (tmp_path / "before.json").write_text(tvm.ir.save_json(MOD))
    with pytest.raises(UsageError, match="phase canonicalise has no pass gone at level 2"):
        replay(tmp_path, phase="canonicalise", graph_pass="gone", **REQUEST)
