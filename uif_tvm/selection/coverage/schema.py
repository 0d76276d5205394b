"""The JSON document of a coverage report, and the check that one is well formed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from uif_tvm.selection.coverage.instance import OpInstance

if TYPE_CHECKING:
    from uif_tvm.selection.coverage.report import CoverageReport, ModelCoverage, Result

#: Raised when a key changes its meaning or goes away.
SCHEMA_VERSION = 1

_TEXT, _NUMBER, _COUNT, _LIST, _MAP = str, (int, float), int, list, dict
_MAYBE_NUMBER = (int, float, type(None))

#: Keys of each part and their types; a part may not have others.
PARTS: Mapping[str, Mapping[str, Any]] = {
    "report": {
        "coverage_version": _COUNT,
        "target": _TEXT,
        "optimize_level": _COUNT,
        "threads": _COUNT,
        "against": _LIST,
        "seconds": _NUMBER,
        "summary": _MAP,
        "histogram": _MAP,
        "models": _LIST,
        "instances": _LIST,
        "top_by_count": _LIST,
        "top_by_time": _LIST,
        "blockers": _LIST,
    },
    "summary": {
        "models": _COUNT,
        "nodes": _COUNT,
        "instances": _COUNT,
        "verdicts": _MAP,
        "coverage": _MAP,
    },
    "model": {
        "name": _TEXT,
        "path": _TEXT,
        "inputs": _MAP,
        "histogram": _MAP,
        "functions": _MAP,
        "verdicts": _MAP,
        "coverage": _MAP,
        "uses": _LIST,
        "error": (dict, type(None)),
    },
    "instance": {
        "digest": _TEXT,
        "op": _TEXT,
        "opset": _COUNT,
        "signature": _TEXT,
        "attributes": _MAP,
        "inputs": _LIST,
        "outputs": _LIST,
        "notes": _LIST,
        "verdict": _TEXT,
        "stage": _TEXT,
        "reason": _TEXT,
        "code": _TEXT,
        "hint": _TEXT,
        "checked": _TEXT,
        "expected_by": _TEXT,
        "remark": _TEXT,
        "count": _COUNT,
        "ms": _MAYBE_NUMBER,
        "host_ms": _NUMBER,
        "roofline_ms": _NUMBER,
        "flops": _NUMBER,
        "bytes": _NUMBER,
        "kernels": _LIST,
        "peers": _MAP,
        "reproducer": _TEXT,
    },
    "use": {"digest": _TEXT, "count": _COUNT, "calls": _NUMBER, "nodes": _LIST},
    "top": {"digest": _TEXT, "count": _COUNT, "ms": _NUMBER, "source": _TEXT},
    "blocker": {
        "op": _TEXT,
        "verdict": _TEXT,
        "models": _LIST,
        "count": _COUNT,
        "time_share": _NUMBER,
        "reason": _TEXT,
    },
}
#: Part -> key -> the part that each entry of that list is.
NESTED = {
    "report": {
        "models": "model",
        "instances": "instance",
        "top_by_count": "top",
        "top_by_time": "top",
        "blockers": "blocker",
    },
    "model": {"uses": "use"},
}


def document(report: CoverageReport) -> dict[str, Any]:
    """``report`` as plain data."""
    return {
        "coverage_version": SCHEMA_VERSION,
        "target": report.target,
        "optimize_level": report.level,
        "threads": report.threads,
        "against": list(report.against),
        "seconds": round(report.seconds, 3),
        "summary": {
            "models": len(report.models),
            "nodes": sum(use.count for _, use in report.uses()),
            "instances": len(report.results),
            "verdicts": report.shares(),
            "coverage": report.coverage(),
        },
        "histogram": report.histogram(),
        "models": [_model(report, model) for model in report.models],
        "instances": [_instance(result) for result in report.results.values()],
        "top_by_count": _top(report, "count"),
        "top_by_time": _top(report, "time"),
        "blockers": [
            {
                "op": b.op,
                "verdict": b.verdict,
                "models": list(b.models),
                "count": b.count,
                "time_share": b.share,
                "reason": b.reason,
            }
            for b in report.blockers()
        ],
    }


def faults(part: Any, kind: str = "report", where: str = "report") -> list[str]:
    """What is wrong with a document, nothing where it is well formed."""
    if not isinstance(part, Mapping):
        return [f"{where} is no object"]
    rules = PARTS[kind]
    found = [f"{where}.{key} is missing" for key in rules if key not in part]
    found += [f"{where}.{key} is not known" for key in part if key not in rules]
    for key, types in rules.items():
        value = part.get(key)
        if key in part and (not isinstance(value, types) or isinstance(value, bool)):
            found.append(f"{where}.{key} is {type(value).__name__}")
    for key, inner in NESTED.get(kind, {}).items():
        for index, item in enumerate(part.get(key) or ()):
            found += faults(item, inner, f"{where}.{key}[{index}]")
    if kind == "report" and "summary" in part:
        found += faults(part["summary"], "summary", "report.summary")
    return found


def _top(report: CoverageReport, by: str) -> list[dict[str, Any]]:
    return [
        {"digest": result.instance.digest, "count": nodes, "ms": ms, "source": source}
        for result, nodes, ms, source in report.top(by)
    ]


def _model(report: CoverageReport, model: ModelCoverage) -> dict[str, Any]:
    return {
        "name": model.name,
        "path": model.path,
        "inputs": model.inputs,
        "histogram": model.histogram,
        "functions": model.functions,
        "verdicts": report.shares(model),
        "coverage": report.coverage(model),
        "uses": [
            {"digest": u.digest, "count": u.count, "calls": u.calls, "nodes": list(u.nodes)}
            for u in model.uses
        ],
        "error": model.error,
    }


def _instance(result: Result) -> dict[str, Any]:
    instance: OpInstance = result.instance
    return {
        "digest": instance.digest,
        "op": instance.op,
        "opset": instance.version,
        "signature": instance.signature(),
        "attributes": instance.attributes,
        "inputs": [vars(item) for item in instance.inputs],
        "outputs": [vars(item) for item in instance.outputs],
        "notes": instance.notes,
        "verdict": result.verdict,
        "stage": result.stage,
        "reason": result.reason,
        "code": result.code,
        "hint": result.hint,
        "checked": result.checked,
        "expected_by": instance.expected_by,
        "remark": result.remark,
        "count": instance.count,
        "ms": result.ms,
        "host_ms": result.host_ms,
        "roofline_ms": result.roofline_ms,
        "flops": instance.flops,
        "bytes": instance.bytes,
        "kernels": result.kernels,
        "peers": result.peers,
        "reproducer": result.reproducer,
    }
