"""The runtime alone: what is missing is named, what is not needed stays out."""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from uif_tvm.errors import EnvironmentFault
from uif_tvm.runtime import ffi


@pytest.fixture(autouse=True)
def fresh():
    ffi.runtime.cache_clear()
    yield
    ffi.runtime.cache_clear()


def test_without_tvm(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentFault, match="runtime is not installed") as caught:
        ffi.runtime()
    assert caught.value.code == "UIF-ENV-TVM"
    assert "pip install 'apache-tvm==" in caught.value.hint


def test_library_that_does_not_load(monkeypatch):
    def fail(path, mode):
        raise OSError(f"{path}: invalid ELF header")

    monkeypatch.setattr(ctypes, "CDLL", fail)
    with pytest.raises(EnvironmentFault, match=r"libtvm_runtime\.so: invalid ELF header"):
        ffi.runtime()


def test_frameworks_are_left_out_of_the_import_only(tmp_path):
    """Neither is one imported along, nor is it kept from importing afterwards."""
    script = """
import sys
from uif_tvm.runtime.ffi import runtime
runtime()
assert "torch" not in sys.modules
import torch
import tvm
import numpy as np
from uif_tvm.runtime.inputs import as_array
assert (as_array(torch.ones(3, dtype=torch.bfloat16), "x") == 1).all()
assert tvm.runtime.from_dlpack(torch.ones(3)).numpy().tolist() == [1, 1, 1]
print("fine")
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout == "fine\n", done.stderr


def test_only_the_importing_thread_is_refused():
    outcome = {}

    def other():
        outcome["other"] = importlib.util.find_spec("json.decoder") is not None

    with ffi._absent(frozenset({"json.decoder"})):
        held = sys.modules.pop("json.decoder")
        try:
            with pytest.raises(ModuleNotFoundError, match="left out on purpose"):
                importlib.util.find_spec("json.decoder")
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
        finally:
            sys.modules["json.decoder"] = held
    assert outcome == {"other": True}
    assert importlib.util.find_spec("json.decoder") is not None
