"""CoverageReport: what runs where, how much of the models that is, and what blocks the most."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uif_tvm.selection.coverage.instance import OpInstance

#: Best first. ``folded``: computed at import. ``removed``: nothing is left to do at run time.
#: ``unreached``: nobody could compute its operands. ``not-taken``: in a branch that these inputs do
#: not take and do not fit; it is left out of all shares.
VERDICTS = (
    "native", "composed", "host", "folded", "removed", "unsupported", "failed", "unreached",
    "not-taken",
)  # fmt: skip
#: Verdicts of operators that run, or need not.
RUNNING = frozenset({"native", "composed", "host", "folded", "removed"})
#: What stops or slows a model, worst first.
BLOCKING = ("failed", "unsupported", "host")


@dataclass
class Result:
    """Verdict on one instance.

    Args:
        instance: what was tried.
        verdict: one of ``VERDICTS``.
        stage: of the failure: ``import``, ``compile``, ``run``, ``numeric``, ``crash`` or
            ``timeout``.
        reason, code, hint: in words; the error's stable code; what to do.
        checked: ``values``, ``types`` (random results), ``run`` (nothing to compare with),
            ``compiled`` (this machine cannot run the target's code) or empty.
        ms: measured median time of a run alone, one thread.
        roofline_ms: the target's lower bound for its arithmetic and memory traffic.
        host_ms: of ``ms``, what was spent on the host.
        kernels: kinds of kernels it became.
        peers: engine -> ``status``, ``detail`` and ``ms``.
        reproducer: folder, empty where none was written.
        remark: what else is worth knowing.
    """

    instance: OpInstance
    verdict: str
    stage: str = ""
    reason: str = ""
    code: str = ""
    hint: str = ""
    checked: str = ""
    ms: float | None = None
    roofline_ms: float = 0.0
    host_ms: float = 0.0
    kernels: list[str] = field(default_factory=list)
    peers: dict[str, dict[str, Any]] = field(default_factory=dict)
    reproducer: str = ""
    remark: str = ""


@dataclass(frozen=True)
class Use:
    """One instance in one model."""

    digest: str
    count: int
    calls: float
    nodes: tuple[str, ...]


@dataclass
class ModelCoverage:
    """One model: its operators, and which instances they are.

    Args:
        error: why it could not be taken apart, as :meth:`UifError.to_dict` gives it; else None.
    """

    name: str
    path: str
    histogram: dict[str, int] = field(default_factory=dict)
    functions: dict[str, int] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=dict)
    uses: list[Use] = field(default_factory=list)
    error: dict[str, Any] | None = None


@dataclass(frozen=True)
class Blocker:
    """One kind of operator that does not run on the target, over all models."""

    op: str
    verdict: str
    models: tuple[str, ...]
    count: int
    share: float
    reason: str


@dataclass(frozen=True)
class OperatorRow:
    """One kind of operator over all models.

    Args:
        verdicts: verdict -> nodes.
        instances: distinct ones.
        share: of the time of all models, between 0 and 1.
    """

    op: str
    count: int
    instances: int
    share: float
    verdicts: Mapping[str, int]


@dataclass
class CoverageReport:
    """Coverage of one or several models on one target.

    Args:
        target, level: what was compiled for, and how.
        threads: threads that times were measured with.
        results: digest -> verdict, in the order of first use.
    """

    target: str
    level: int
    threads: int
    models: list[ModelCoverage] = field(default_factory=list)
    results: dict[str, Result] = field(default_factory=dict)
    against: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def right(self) -> bool:
        """No instance failed, and every model could be taken apart."""
        failed = any(result.verdict == "failed" for result in self.results.values())
        return not failed and not any(model.error for model in self.models)

    def having(self, *verdicts: str) -> list[Result]:
        """Results with one of ``verdicts``."""
        return [result for result in self.results.values() if result.verdict in verdicts]

    def milliseconds(self, digest: str) -> tuple[float, str]:
        """Time of one call and where it is from: ``measured``, ``roofline`` or ``none``.

        Where nothing was measured it is the roofline's bound, scaled by how far those that were
        measured lie above theirs. Control flow has none: the operators in its bodies do.
        """
        result = self.results[digest]
        if result.verdict in ("folded", "removed") or "body" in result.instance.notes:
            return 0.0, "none"
        if result.ms is not None:
            return result.ms, "measured"
        return result.roofline_ms * self._scale, "roofline"

    @property
    def _scale(self) -> float:
        """Measured time over the roofline's, of all instances that have both."""
        pairs = [(r.ms, r.roofline_ms) for r in self.results.values() if r.ms and r.roofline_ms]
        bound = sum(pair[1] for pair in pairs)
        return sum(pair[0] for pair in pairs) / bound if bound else 1.0

    def uses(self, model: ModelCoverage | None = None) -> Iterator[tuple[ModelCoverage, Use]]:
        """Uses in one model, or in all."""
        for candidate in self.models if model is None else [model]:
            for use in candidate.uses:
                yield candidate, use

    def shares(self, model: ModelCoverage | None = None) -> dict[str, dict[str, float]]:
        """Verdict -> its nodes (``count``, ``by_count``) and time (``ms``, ``by_time``); shares
        are between 0 and 1.
        """
        counts: Counter[str] = Counter()
        times: dict[str, float] = defaultdict(float)
        for _, use in self.uses(model):
            verdict = self.results[use.digest].verdict
            counts[verdict] += use.count
            times[verdict] += self.milliseconds(use.digest)[0] * use.calls
        nodes = sum(counts.values()) - counts["not-taken"]
        total = sum(times.values())
        return {
            verdict: {
                "count": counts[verdict],
                "by_count": counts[verdict] / nodes if nodes and verdict != "not-taken" else 0.0,
                "ms": times[verdict],
                "by_time": times[verdict] / total if total else 0.0,
            }
            for verdict in VERDICTS
            if counts[verdict]
        }

    def coverage(self, model: ModelCoverage | None = None) -> dict[str, float | None]:
        """Shares that run, by nodes and by time; ``native_*`` leaves out the host.

        Operators that could not be reached count as not running. ``None`` by time where no
        operator takes any.
        """
        shares = self.shares(model)
        timed = any(row["ms"] for row in shares.values())

        def total(key: str, verdicts: frozenset[str]) -> float | None:
            if key == "by_time" and not timed:
                return None
            return sum(row[key] for verdict, row in shares.items() if verdict in verdicts)

        chip = RUNNING - {"host"}
        return {
            "by_count": total("by_count", RUNNING),
            "by_time": total("by_time", RUNNING),
            "native_by_count": total("by_count", chip),
            "native_by_time": total("by_time", chip),
        }

    def operators(self) -> list[OperatorRow]:
        """Kinds of operators, most frequent first."""
        verdicts: dict[str, Counter[str]] = defaultdict(Counter)
        digests: dict[str, set[str]] = defaultdict(set)
        times: dict[str, float] = defaultdict(float)
        for _, use in self.uses():
            result = self.results[use.digest]
            op = result.instance.op
            verdicts[op][result.verdict] += use.count
            digests[op].add(use.digest)
            times[op] += self.milliseconds(use.digest)[0] * use.calls
        whole = sum(times.values())
        rows = [
            OperatorRow(
                op, found.total(), len(digests[op]), times[op] / whole if whole else 0.0,
                dict(found.most_common()),
            )
            for op, found in verdicts.items()
        ]  # fmt: skip
        return sorted(rows, key=lambda row: (-row.count, row.op))

    def histogram(self) -> dict[str, int]:
        """Operator -> nodes, over all models, most frequent first."""
        total: Counter[str] = Counter()
        for model in self.models:
            total.update(model.histogram)
        return dict(total.most_common())

    def top(self, by: str, count: int = 20) -> list[tuple[Result, int, float, str]]:
        """(result, nodes, milliseconds per run of all models, source) of the largest instances.

        Args:
            by: ``count`` or ``time``.
        """
        nodes: Counter[str] = Counter()
        times: dict[str, float] = defaultdict(float)
        for _, use in self.uses():
            nodes[use.digest] += use.count
            times[use.digest] += self.milliseconds(use.digest)[0] * use.calls
        order = list(self.results)
        key: Mapping[str, float] = nodes if by == "count" else times
        ranked = sorted((d for d in order if key[d]), key=lambda digest: -key[digest])
        return [
            (self.results[d], nodes[d], times[d], self.milliseconds(d)[1]) for d in ranked[:count]
        ]

    def blockers(self) -> list[Blocker]:
        """Operators that do not run on the target: those that stop most models first."""
        found: dict[tuple[str, str], dict[str, Any]] = {}
        total = 0.0
        for model, use in self.uses():
            result = self.results[use.digest]
            spent = self.milliseconds(use.digest)[0] * use.calls
            total += spent
            if result.verdict not in BLOCKING:
                continue
            row = found.setdefault(
                (result.instance.op, result.verdict),
                {"models": {}, "count": 0, "ms": 0.0, "reason": result.reason},
            )
            row["models"][model.name] = None
            row["count"] += use.count
            row["ms"] += spent
        rows = [
            Blocker(
                op, verdict, tuple(row["models"]), row["count"],
                row["ms"] / total if total else 0.0, row["reason"],
            )
            for (op, verdict), row in found.items()
        ]  # fmt: skip
        return sorted(
            rows,
            key=lambda b: (BLOCKING.index(b.verdict), -len(b.models), -b.share, -b.count, b.op),
        )

    def to_json(self) -> dict[str, Any]:
        """The report as plain data; :mod:`.schema` says what is in it."""
        from uif_tvm.selection.coverage.schema import document

        return document(self)

    def write_html(self, path: str | os.PathLike[str]) -> None:
        """Write everything as one page that needs nothing else.

        Raises:
            ArtifactIOError: it cannot be written.
        """
        from uif_tvm.selection.coverage.html import write_html

        write_html(self, Path(path))
