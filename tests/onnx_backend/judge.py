"""One node test on one runtime: what came of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.onnx_backend.cases import compare, data_sets, load_cases

#: What can come of a test. A refusal is a typed error of ours at import.
PASSED, WRONG, REFUSED, FAILED, CRASHED, HUNG = (
    "passed", "wrong", "refused", "failed", "crashed", "hung",
)  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """What came of a test.

    Args:
        status: one of the constants above.
        message: what is wrong, "" for a test that passed.
        host_ops: operators that ran on the host, by name.
    """

    status: str
    message: str = ""
    host_ops: tuple[str, ...] = ()


def judge(runtime: str, name: str, level: int = 2) -> Verdict:
    """Run the test ``name`` on ``"uif"`` or ``"ort"``."""
    case = load_cases()[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _judge_uif(case, level) if runtime == "uif" else _judge_ort(case)


def _judge_uif(case: Any, level: int) -> Verdict:
    import uif_tvm.onnx_backend as backend
    from uif_tvm.errors import UifError

    used: list[str] = []
    try:
        prepared = backend.prepare(case.model, "CPU", optimize_level=level, cache_dir=None)
        message = _differences(case, lambda inputs: list(prepared.run(inputs)))
    except UifError as error:
        status = REFUSED if error.stage in ("import", "place") else FAILED
        return Verdict(status, f"{error.code}: {error}")
    except Exception as error:
        return Verdict(FAILED, f"{type(error).__name__}: {str(error)[-600:]}")
    for engine in prepared.engines:
        named = [row["op"] for row in engine.placement() if row["where"] == "host"]
        calls = engine.get_stats()["host_fallbacks"]
        used += named or ["unnamed"] * calls
    return Verdict(WRONG if message else PASSED, message, tuple(sorted(set(used))))


def _judge_ort(case: Any) -> Verdict:
    from tests.onnx_backend.ort import OrtModel

    try:
        message = _differences(case, OrtModel(case.model).run)
    except Exception as error:
        return Verdict(FAILED, f"{type(error).__name__}: {str(error)[:300]}")
    return Verdict(WRONG if message else PASSED, message)


def _differences(case: Any, run: Callable[[list[Any]], list[Any]]) -> str:
    for inputs, expected in data_sets(case):
        have = run(inputs)
        try:
            compare(case, expected, have)
        except (AssertionError, AttributeError, TypeError) as error:
            return " ".join(str(error).split())[:600] or type(error).__name__
    return ""
