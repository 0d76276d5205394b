"""Every example runs and says what it promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

#: script -> (arguments, what its output must contain)
EXPECTED = {
    "demo.py": (["Hello", "2026"], ["Hello 2026", "they agree", "latency_ms", "ONNX Runtime"]),
    "torch_model.py": ([], ["inputs:", "largest difference from PyTorch"]),
    "onnx_model.py": ([__file__, sys.executable], ["test_examples.py: python", "elf"]),
    "serving.py": ([], ["0 wrong answers"]),
    "custom_op.py": ([], ["acme_swoosh: native", "ONNX: largest", "PyTorch: largest"]),
    "inspect_placement.py": ([], ["level 0:", "level 3:", "placement:"]),
}
#: Helpers that are no example themselves.
HELPERS = {"fetch.py"}


def test_every_example_is_tested():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(EXPECTED) | HELPERS


@pytest.mark.parametrize("script", EXPECTED)
def test_example(script, tmp_path):
    arguments, fragments = EXPECTED[script]
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / script), *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for fragment in fragments:
        assert fragment in done.stdout
