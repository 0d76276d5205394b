"""One instance through the public flow: export, load, run, compare. Runs in a worker process."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from uif_tvm.errors import EnvironmentFault, UifError
from uif_tvm.selection.arrays import Array, dtype_name, load_arrays

#: A measurement ends after this many runs or this many seconds, whichever is first.
MAX_RUNS, MAX_SECONDS = 20, 0.1
#: Operators that round to integers: engines may fall on either side of a tie.
QUANTISING = frozenset(
    "QuantizeLinear DynamicQuantizeLinear QLinearConv QLinearMatMul ConvInteger "
    "QLinearAdd QLinearMul QLinearSigmoid QLinearLeakyRelu QLinearAveragePool "
    "QLinearGlobalAveragePool QLinearConcat QLinearSoftmax".split()
)
#: Share of a quantising operator's results that may lie one step apart.
STEPS_APART = 0.01
#: Operators that quantise their activations inside, as they find them: engines that compute in
#: floating point are the more exact ones.
SELF_QUANTISING = frozenset("DynamicQuantizeLSTM DynamicQuantizeMatMul QAttention".split())
#: Relative L2 distance allowed to these: 8 bits are half a percent of each operand.
SELF_QUANTISED_L2 = 0.02
#: Error codes of a machine that cannot run the target's code.
_ELSEWHERE = frozenset({"UIF-ENV-HOST"})

_STAGES = {"usage": "import", "place": "import", "load": "run"}


class _Enough(Exception):
    """The stage that was asked for is over."""


def verify(
    folder: str, target: str, level: int, op: str, notes: Sequence[str], until: str = ""
) -> dict[str, Any]:
    """Verdict on the instance in ``folder`` (see :mod:`.capture_onnx` for its files).

    Args:
        target: target id.
        level: optimisation level.
        op: operator, for the rule of comparison.
        notes: of the instance: ``random``, ``settled`` ...
        until: ``import`` to stop when the model is imported and placed.

    Returns:
        ``verdict``: ``native``, ``composed``, ``host``, ``folded``, ``removed``, ``unsupported``
        or ``failed``; ``stage`` and ``reason`` where it is one of the last two; ``checked``:
        ``values``, ``types``, ``run``, ``compiled`` or ``imported``; ``ms``: median time of a run.
    """
    place = Path(folder)
    model = next(place.glob("model.*"))
    feeds = load_arrays(place / "inputs.npz")
    with tempfile.TemporaryDirectory(prefix="uif-coverage-") as scratch:
        built = _build(model, feeds, Path(scratch, "m.uif"), target, level, until)
        if "engine" not in built:
            return built
        engine, verdict = built.pop("engine"), built
        outcome = _run(engine, feeds)
        if isinstance(outcome, dict):
            return {**verdict, **outcome}
        outputs, milliseconds = outcome
        host_ms = engine.get_stats()["host_ms"]
    verdict |= {"ms": milliseconds, "host_ms": sum(host_ms.values())}
    if not (place / "expected.npz").exists():
        return verdict | {"checked": "run", "reason": "no evaluator here knows this operator"}
    expected = load_arrays(place / "expected.npz")
    return verdict | _judge(outputs, expected, op, notes, place)


def _build(
    model: Path, feeds: Mapping[str, Array], path: Path, target: str, level: int, until: str
) -> dict[str, Any]:
    """Export and load; the verdict with the engine, or the failure."""
    import uif_tvm

    phase = ["import"]

    def follow(name: str, done: int, total: int) -> None:
        phase[0] = "compile" if name != "import" or done == total else "import"
        if until == "import" and name != "import":
            raise _Enough  # the first phase after placement

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = uif_tvm.export(
                str(model),
                dict(feeds) if model.suffix == ".onnx" else None,
                output_path=str(path),
                optimize_level=level,
                target_device=target,
                progress=follow,
            )
    except _Enough:
        return {"verdict": "native", "reason": "", "checked": "imported"}
    except UifError as error:
        return failure(error)
    except Exception as error:  # not ours: then it is a bug of ours
        return {
            "verdict": "failed",
            "stage": phase[0],
            "reason": brief(error),
        }
    verdict: dict[str, Any] = _placed(result.report)
    try:
        verdict["engine"] = uif_tvm.load(str(path), threads=_threads())
    except EnvironmentFault as error:
        if error.code in _ELSEWHERE:
            return verdict | {"checked": "compiled", "reason": "this machine cannot run it"}
        return failure(error)
    except UifError as error:
        return failure(error)
    return verdict


def _threads() -> int:
    return int(os.environ.get("TVM_NUM_THREADS") or 1)


def failure(error: UifError) -> dict[str, Any]:
    """The verdict that an error of ours stands for."""
    reason = error.message
    ops = getattr(error, "ops", ())
    if ops:
        reason = "; ".join(dict.fromkeys(op.reason for op in ops))
    return {
        "verdict": "unsupported" if error.exit_code == 3 else "failed",
        "stage": _STAGES.get(error.stage, error.stage),
        "code": error.code,
        "reason": reason,
        "hint": error.hint or "",
    }


def _placed(report: Mapping[str, Any]) -> dict[str, Any]:
    """Where the operator runs, from the compile report."""
    rows = report["placement"]
    where = {row["where"] for row in rows}
    for name in ("host", "composed"):
        if name in where:
            reasons = dict.fromkeys(row["reason"] for row in rows if row["where"] == name)
            return {"verdict": name, "reason": "; ".join(filter(None, reasons))}
    if rows:
        kinds = sorted({str(kernel["kind"]) for kernel in report["kernels"]})
        return {"verdict": "native", "reason": "", "kernels": kinds}
    return {"verdict": "removed" if report.get("removed_ops") else "folded", "reason": ""}


def _run(engine: Any, feeds: Mapping[str, Array]) -> tuple[list[Array], float] | dict[str, Any]:
    """Outputs and the median time, or the failure."""
    names = {spec.name for spec in engine.inputs}
    given = {name: array for name, array in feeds.items() if name in names}
    if len(given) != len(names):  # a program's inputs have names of PyTorch's
        given = dict(zip((spec.name for spec in engine.inputs), feeds.values(), strict=True))
    try:
        outputs = engine.run(given)
        times: list[float] = []
        end = time.perf_counter() + MAX_SECONDS
        while len(times) < MAX_RUNS and (not times or time.perf_counter() < end):
            start = time.perf_counter()
            engine.run(given)
            times.append(time.perf_counter() - start)
    except UifError as error:
        return failure(error)
    except Exception as error:
        return {"verdict": "failed", "stage": "run", "reason": brief(error)}
    return outputs, statistics.median(times) * 1e3


def _judge(
    outputs: Sequence[Array],
    expected: Mapping[str, Array],
    op: str,
    notes: Sequence[str],
    folder: Path,
) -> dict[str, Any]:
    random = "random" in notes
    fault = compare(outputs, list(expected.values()), op, values=not random)
    if fault is None:
        return {"checked": "types" if random else "values"}
    second = second_opinion(folder)
    if second is not None and compare(outputs, second, op, values=not random) is None:
        return {"checked": "values", "remark": f"ONNX Runtime departs from ONNX here: {fault}"}
    return {"verdict": "failed", "stage": "numeric", "reason": fault, "checked": "values"}


def second_opinion(folder: Path) -> list[Array] | None:
    """What ONNX's own reference gives, ``None`` where it cannot tell."""
    model = folder / "model.onnx"
    if not model.exists():
        return None
    import onnx

    from uif_tvm.selection.onnx_node import by_reference

    try:
        results = by_reference(onnx.load(model), load_arrays(folder / "inputs.npz"))
    except Exception:  # it refuses in many ways; then there is no second opinion
        return None
    return [np.asarray(value) for value in results]


def compare(
    have: Sequence[Array], want: Sequence[Array], op: str = "", values: bool = True
) -> str | None:
    """The first departure of ``have`` from ``want``, ``None`` if there is none.

    The rule is that of ``--verify``: floats within 1e-3 (float32) relative and 1e-4 of the largest
    value, everything else equal; results of operators that round to integers may lie one step
    apart in 1% of places, as engines divide in different orders; those of operators that quantise
    inside may have a relative L2 distance of 2%.
    """
    from uif_tvm.compiler.verify import departure

    op = op.rpartition("::")[2]
    if len(have) != len(want):
        return f"{len(have)} outputs instead of {len(want)}"
    for index, (left, right) in enumerate(zip(have, want, strict=True)):
        ours, theirs = np.asarray(left), np.asarray(right)
        if not values:
            same = (ours.shape, dtype_name(ours)) == (theirs.shape, dtype_name(theirs))
            fault = None if same else f"{_type(ours)} instead of {_type(theirs)}"
        elif (op in QUANTISING and _steps(ours, theirs)) or (
            op in SELF_QUANTISING and _near(ours, theirs)
        ):
            fault = None
        elif dtype_name(ours) == dtype_name(theirs) == "string":
            same = ours.shape == theirs.shape and ours.tolist() == theirs.tolist()
            fault = None if same else "other texts"
        else:
            fault = departure(ours, theirs)
        if fault:
            return f"output {index}: {fault}"
    return None


def _steps(ours: Array, theirs: Array) -> bool:
    if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype) or ours.dtype.kind not in "iu":
        return False
    apart = np.abs(ours.astype(np.int64) - theirs.astype(np.int64))
    return bool(apart.size) and int(apart.max()) <= 1 and float(apart.mean()) <= STEPS_APART


def _near(ours: Array, theirs: Array) -> bool:
    if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype) or ours.dtype.kind != "f":
        return False
    distance = float(np.linalg.norm((ours - theirs).astype(np.float64).ravel()))
    return distance <= SELF_QUANTISED_L2 * float(np.linalg.norm(theirs.astype(np.float64).ravel()))


def _type(array: Array) -> str:
    return f"{dtype_name(array)}{list(array.shape)}"


def brief(error: BaseException) -> str:
    """The telling line of an error, which native libraries hide among source excerpts."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" |^")]
    telling = [line for line in lines if "error:" in line or "Check failed" in line]
    # "Exception from src/core.cpp:84:" and the like say nothing by themselves.
    telling = telling or [line for line in lines if not line.endswith(":")] or lines
    return f"{type(error).__name__}: {(telling or ['no message'])[0]}"[:300]
