"""A failing instance as a folder that anyone can run: model, inputs, expected results, script."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from uif_tvm.errors import ArtifactIOError

if TYPE_CHECKING:
    from uif_tvm.selection.coverage.report import Result

_SCRIPT = '''"""{title}

Found by ``uif coverage``: verdict {verdict}, stage {stage}.
{reason}

Run it with Python where uif is installed. It ends with exit code 0 once the fault is gone.
"""

import tempfile
from pathlib import Path

import numpy as np
import uif

HERE = Path(__file__).parent
TARGET = {target!r}
LEVEL = {level}
#: Relative tolerance by type, and absolute tolerance as a share of the largest value.
TOLERANCE = {tolerance}


def arrays(name):
    """Arrays by name; those of types NumPy lacks are stored as bytes under "name::type"."""
    found = {{}}
    with np.load(HERE / name, allow_pickle=False) as archive:
        for key in archive.files:
            name, separator, dtype = key.rpartition("::")
            if separator:
                import ml_dtypes

                kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
                found[name] = archive[key].view(kind)
            else:
                found[key] = archive[key]
    return found


inputs = arrays("inputs.npz")
with tempfile.TemporaryDirectory() as folder:
    path = str(Path(folder, "model.uif"))
    uif.export(
        str(HERE / {model!r}),
        {example},
        output_path=path,
        optimize_level=LEVEL,
        target_device=TARGET,
    )
    engine = uif.load(path, threads=1)
    outputs = engine.run({given})
for output in outputs:
    print("output", output.dtype, output.shape)
if (HERE / "expected.npz").exists():
    for output, expected in zip(outputs, arrays("expected.npz").values(), strict=True):
        assert output.shape == expected.shape, (output.shape, expected.shape)
        if {random}:
            continue  # random numbers: there are no values to compare
        if str(expected.dtype) not in TOLERANCE:
            assert output.tolist() == expected.tolist(), (output, expected)
            continue
        assert output.dtype == expected.dtype, (output.dtype, expected.dtype)
        relative, share = TOLERANCE[str(expected.dtype)]
        have, want = output.astype(np.float64), expected.astype(np.float64)
        finite = np.abs(want[np.isfinite(want)])
        largest = float(finite.max()) if finite.size else 0.0
        np.testing.assert_allclose(have, want, rtol=relative, atol=share * largest)
    print("right")
'''


def write_reproducer(result: Result, source: Path, folder: Path, target: str, level: int) -> Path:
    """Copy the instance in ``source`` to a folder of its own in ``folder``, with a script.

    Raises:
        ArtifactIOError: it cannot be written.
    """
    from uif_tvm.compiler.verify import ATOL_SHARE, RTOL

    instance = result.instance
    place = folder / f"{re.sub(r'[^A-Za-z0-9]+', '-', instance.op).strip('-')}-{instance.digest}"
    model = next(source.glob("model.*"))
    onnx = model.suffix == ".onnx"
    text = _SCRIPT.format(
        title=_plain(instance.signature()),
        verdict=result.verdict,
        stage=result.stage or "-",
        reason=_plain(result.reason),
        target=target,
        level=level,
        model=model.name,
        example="inputs" if onnx else "None",
        given="inputs" if onnx else "*inputs.values()",
        random="random" in instance.notes,
        tolerance={name: (RTOL[name], ATOL_SHARE[name]) for name in RTOL},
    )
    about = {
        "op": instance.op,
        "signature": instance.signature(),
        "nodes": instance.nodes,
        "verdict": result.verdict,
        "stage": result.stage,
        "reason": result.reason,
        "target": target,
        "optimize_level": level,
        "expected_by": instance.expected_by,
    }
    try:
        place.mkdir(parents=True, exist_ok=True)
        for file in source.iterdir():
            shutil.copyfile(file, place / file.name)
        (place / "repro.py").write_text(text, encoding="utf-8")
        (place / "about.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ArtifactIOError(
            f"cannot write the reproducer {place}: {error.strerror or error}",
            stage="run",
            code="UIF-COVERAGE-WRITE",
            hint="choose a folder that can be written with --reproducers, or none with "
            "--no-reproducers",
        ) from error
    return place


def _plain(text: str) -> str:
    """Text that cannot end a docstring."""
    return text.replace("\\", "/").replace('"""', "'''")
