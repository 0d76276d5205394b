"""What a rewrite is worth: bytes, launches and operations saved, priced by the target's numbers.

A pass that can lose as well as win states a :class:`Gain` and asks :func:`consider`; the answer
and the figures become a :class:`~uif_tvm.compiler.report.Decision`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from uif_tvm.target.spec import dtype_bytes

if TYPE_CHECKING:
    import tvm

    from uif_tvm.compiler.context import CompileContext
    from uif_tvm.target.spec import TargetSpec

#: Measured time of a kernel in microseconds, or ``None`` when none is on record.
KernelTimes = Callable[["tvm.tirx.PrimFunc"], float | None]


@dataclass(frozen=True)
class Gain:
    """What a rewrite saves per run; negative figures are costs.

    Args:
        bytes: memory traffic saved, reads and writes together.
        launches: kernel launches saved.
        flops: arithmetic saved, operations of ``dtype``.
        dtype: element type of the arithmetic.
        measured_us: measured saving in microseconds, which outweighs any estimate.
    """

    bytes: float = 0.0
    launches: float = 0.0
    flops: float = 0.0
    dtype: str = "float32"
    measured_us: float | None = None

    def __add__(self, other: Gain) -> Gain:
        """Both savings together; a measured figure of one does not speak for the sum."""
        return Gain(
            self.bytes + other.bytes,
            self.launches + other.launches,
            self.flops + other.flops,
            self.dtype,
        )

    def microseconds(self, target: TargetSpec) -> float:
        """Time saved: measured if known, else traffic, arithmetic and launches at peak rates."""
        if self.measured_us is not None:
            return self.measured_us
        roofline = target.roofline
        peak = roofline.gflops.get(self.dtype) or min(roofline.gflops.values())
        traffic = self.bytes / (roofline.gbps * 1e3)
        return traffic + self.flops / (peak * 1e3) + self.launches * roofline.launch_us

    def figures(self) -> dict[str, Any]:
        """The figures as a decision stores them."""
        return {
            "bytes_saved": self.bytes,
            "launches_saved": self.launches,
            "flops_saved": self.flops,
            "basis": "roofline" if self.measured_us is None else "measured",
        }


def tensor_bytes(ty: Any) -> float:
    """Traffic of reading or writing a tensor of a Relax type once.

    Extents settled at run time count as 1, and what is no tensor of known rank as nothing.
    """
    from tvm import tirx

    extents = getattr(getattr(ty, "shape", None), "values", None)
    if extents is None:
        return 0.0
    known = (int(extent) if isinstance(extent, tirx.IntImm) else 1 for extent in extents)
    return float(prod(known) * dtype_bytes(str(ty.dtype)))


def consider(
    ctx: CompileContext, pass_name: str, subject: str, gain: Gain, fired: str, declined: str = ""
) -> bool:
    """Whether a rewrite pays; the decision goes into the report either way.

    Args:
        subject: the operator or kernel concerned, by source name.
        fired: what the rewrite does, for the report.
        declined: why it would not pay, for the report; the figures are added.
    """
    saved = gain.microseconds(ctx.target)
    pays = saved > 0
    reason = fired if pays else f"does not pay: {declined or fired}, {-saved:.3g} us lost"
    ctx.report.decide(pass_name, subject, pays, reason, gain_us=saved, **gain.figures())
    return pays
