"""CompileReport: what the compiler did and why; data first, text second.

Passes and the schedule selector write into a :class:`ReportBuilder`; ``finish`` freezes it into
plain JSON-able data that is stored in the artifact.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Decision:
    """One rewrite considered: fired or declined, where, why, and the predicted gain.

    Args:
        pass_name: the pass that decided.
        subject: the op or kernel concerned, by source name.
        fired: True when the rewrite was done.
        reason: why, or why not.
        gain_us: predicted saving per run in microseconds, where the pass can tell.
        bytes_saved, launches_saved, flops_saved: what the prediction is made of.
        basis: ``roofline`` for an estimate, ``measured`` for a figure on record, else empty.
    """

    pass_name: str
    subject: str
    fired: bool
    reason: str
    gain_us: float | None = None
    bytes_saved: float = 0.0
    launches_saved: float = 0.0
    flops_saved: float = 0.0
    basis: str = ""


@dataclass(frozen=True)
class KernelChoice:
    """How one kernel was implemented.

    Args:
        kernel: unique kernel name.
        ops: kernels of single operators fused into it.
        sources: source names of the values that these compute, over all call sites.
        rule: the schedule rule that won.
        kind: ``tuned``, ``hand-written``, ``library``, ``generic`` or ``host``.
        detail: tile sizes and the like.
        declined: rules asked before, each with its reason.
        calls: call sites in the model.
        flops, bytes: per call, estimated.
        cached: True when compiled code came from the kernel cache.
    """

    kernel: str
    ops: tuple[str, ...]
    rule: str
    kind: str
    sources: tuple[str, ...] = ()
    detail: str = ""
    declined: tuple[str, ...] = ()
    calls: int = 1
    flops: float = 0.0
    bytes: float = 0.0
    cached: bool = False


@dataclass(frozen=True)
class Placement:
    """Where one op kind runs: ``native``, ``composed`` or ``host``, with a reason code.

    ``estimated_us`` is the roofline's lower bound for all ``count`` of them.
    """

    op: str
    where: str
    count: int
    reason: str = ""
    estimated_us: float = 0.0


@dataclass
class ReportBuilder:
    """Mutable while one compilation runs; nothing reads it back to decide anything."""

    decisions: list[Decision] = field(default_factory=list)
    kernels: list[KernelChoice] = field(default_factory=list)
    placements: list[Placement] = field(default_factory=list)
    passes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    #: Offsets and lifetimes of all planned tensors; empty where none are planned.
    memory_plan: dict[str, Any] = field(default_factory=dict)
    #: ``before`` and ``after``: the nodes of :func:`uif_tvm.compiler.graph_view.graph`.
    graph: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def decide(
        self,
        pass_name: str,
        subject: str,
        fired: bool,
        reason: str,
        gain_us: float | None = None,
        **figures: Any,
    ) -> None:
        """Record one rewrite that was done or declined; see :class:`Decision`."""
        self.decisions.append(Decision(pass_name, subject, fired, reason, gain_us, **figures))

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the wall time of the body to ``phase``, in seconds."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start

    def finish(self, **header: Any) -> dict[str, Any]:
        """The report as plain data: ``header`` (versions, target, level) first."""
        return header | {
            "passes": list(self.passes),
            "placement": [asdict(item) for item in self.placements],
            "kernels": [asdict(item) for item in self.kernels],
            "decisions": [asdict(item) for item in self.decisions],
            "memory": dict(self.memory),
            "memory_plan": dict(self.memory_plan),
            "graph": dict(self.graph),
            "seconds": {name: round(value, 4) for name, value in self.seconds.items()},
            "notes": list(self.notes),
        }
