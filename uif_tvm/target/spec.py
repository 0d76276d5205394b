"""TargetSpec: everything the framework may know about a chip, in one frozen value.

Nothing outside ``targets/`` and ``schedules/`` names a chip; what differs between chips is a
number or an object in here. A spec is complete or refused when it is built.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from uif_tvm.errors import TargetError

if TYPE_CHECKING:
    from uif_tvm.target.schedule import KernelPlanner, ScheduleRule


_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True)
class Machine:
    """The numbers that schedules are parameterised by.

    Args:
        vector_bytes: width of one vector register, bytes.
        vector_registers: architectural vector registers.
        l1_bytes, l2_bytes, l3_bytes: data cache sizes; L1 and L2 per core, L3 shared.
        cores: cores that one inference may use.
    """

    vector_bytes: int
    vector_registers: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    cores: int

    def lanes(self, dtype: str) -> int:
        """Elements of ``dtype`` that one vector register holds (at least 1)."""
        return max(1, self.vector_bytes // dtype_bytes(dtype))


@dataclass(frozen=True)
class MemoryTier:
    """One memory: name, bytes, bandwidth, TIR storage scope, and what may live there."""

    name: str
    bytes: int
    gbps: float
    scope: str = "global"
    holds: tuple[str, ...] = ("weights", "activations", "workspace")


@dataclass(frozen=True)
class Roofline:
    """Peak rates; ``source`` says whether they were measured (calibrated) or declared.

    Args:
        gflops: dtype -> peak GFLOP/s of the whole target.
        gbps: memory bandwidth, GB/s.
        launch_us: cost of starting one kernel, microseconds.
    """

    gflops: Mapping[str, float]
    gbps: float
    launch_us: float
    source: str

    def seconds(self, flops: float, nbytes: float, dtype: str = "float32") -> float:
        """Lower bound for a kernel: the larger of compute and memory time, plus its launch."""
        peak = self.gflops.get(dtype) or min(self.gflops.values())
        return max(flops / (peak * 1e9), nbytes / (self.gbps * 1e9)) + self.launch_us * 1e-6


@dataclass(frozen=True)
class Refusal:
    """Why something is declined: a stable reason code and a sentence with the values in it."""

    code: str
    detail: str

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"


class Capability(Protocol):
    """Says whether the target runs an op instance natively; ``None`` means yes."""

    def __call__(
        self, op: str, attrs: Mapping[str, Any], dtypes: tuple[str, ...]
    ) -> Refusal | None: ...


@dataclass(frozen=True)
class Requirement:
    """What the machine that runs the code must have, checked before any native code is opened.

    Args:
        arch: machine name as ``platform.machine()`` prints it.
        features: CPU feature flags as the operating system names them.
        runtime: package -> version specifier.
        firmware: component -> version specifier.
    """

    arch: str
    features: tuple[str, ...] = ()
    runtime: Mapping[str, str] = field(default_factory=dict)
    firmware: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Deviation:
    """A known departure from the backend specification, with its reason."""

    case: str
    reason: str


@dataclass(frozen=True)
class TargetSpec:
    """A target's manifest. See the module text; fields are checked on construction.

    Args:
        id: what users type, lower case with hyphens.
        vendor: who answers for it.
        description: one line.
        tvm_target: TVM's JSON form of the target, e.g. ``{"kind": "llvm", "mcpu": ...}``.
        machine: see :class:`Machine`.
        memory: tiers, fastest first.
        roofline: see :class:`Roofline`.
        requirement: see :class:`Requirement`.
        capability: predicate over op instances.
        planner: chooses blocked layouts and packing for whole-graph passes, or ``None``.
        schedules: rules from specific to general; the first that applies wins.
        phase_overrides: phase name -> factory of extra passes that run at its end.
        detected: True when the values describe the host found at import time.
        verified: False when no machine of this kind has run the code (compile-tested only).
    """

    id: str
    vendor: str
    description: str
    tvm_target: Mapping[str, Any]
    machine: Machine
    memory: tuple[MemoryTier, ...]
    roofline: Roofline
    requirement: Requirement
    capability: Capability
    schedules: tuple[ScheduleRule, ...]
    planner: KernelPlanner | None = None
    phase_overrides: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    deviations: tuple[Deviation, ...] = ()
    detected: bool = False
    verified: bool = True

    def __post_init__(self) -> None:
        def refuse(what: str) -> NoReturn:
            raise TargetError(
                f"manifest of target {self.id!r} is incomplete: {what}",
                code="UIF-TARGET-BROKEN",
                target=self.id or "(no id)",
                hint="fill the field in the target's target.py",
            )

        if not _ID.fullmatch(self.id):
            refuse(f"id must be lower case letters, digits, hyphens, got {self.id!r}")
        if not self.vendor or not self.description:
            refuse("vendor and description must say who answers for it and what it is")
        if "kind" not in self.tvm_target:
            refuse("tvm_target has no 'kind'")
        if not self.memory:
            refuse("memory needs at least one tier")
        if not self.schedules:
            refuse("schedules needs at least one rule (the generic one)")
        if not self.roofline.gflops or min(self.roofline.gflops.values()) <= 0:
            refuse("roofline.gflops needs a positive peak per dtype")
        if self.roofline.source not in ("declared", "calibrated"):
            refuse(f"roofline.source must be declared or calibrated, got {self.roofline.source!r}")
        if self.roofline.gbps <= 0 or self.roofline.launch_us < 0:
            refuse("roofline.gbps must be positive and launch_us not negative")
        for item in fields(Machine):
            # A chip may lack a third cache, but nothing else of these.
            least = 0 if item.name == "l3_bytes" else 1
            if getattr(self.machine, item.name) < least:
                refuse(f"machine.{item.name} must be at least {least}")
        for tier in self.memory:
            if tier.bytes <= 0 or tier.gbps <= 0:
                refuse(f"memory tier {tier.name!r} needs positive bytes and gbps")
        if not self.requirement.arch:
            refuse("requirement.arch must name the machine that runs the code")
        if not callable(self.capability):
            refuse("capability must be a function of (op, attrs, dtypes)")
        names = [rule.name for rule in self.schedules]
        if len(set(names)) != len(names):
            refuse(f"schedules have equal names: {', '.join(names)}")

    @property
    def schedule_version(self) -> str:
        """Changes whenever a rule or the planner changes its output: part of every cache key."""
        rules = ",".join(f"{rule.name}@{rule.version}" for rule in self.schedules)
        return f"{rules};planner@{self.planner.version}" if self.planner else rules


_BITS = re.compile(r"[a-z]+([0-9]*)")


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element of a scalar type (sub-byte types and ``bool`` count as one byte)."""
    match = _BITS.match(dtype)
    return max(1, int(match[1]) // 8) if match and match[1] else 1
