"""The unified operator interface: one :class:`OpSpec` per standard operator."""

from __future__ import annotations

from uif_tvm.ops import elementwise, shape
from uif_tvm.ops.spec import OpSpec

REGISTRY: dict[str, OpSpec] = {
    spec.name: spec for family in (elementwise, shape) for spec in family.SPECS
}

__all__ = ["REGISTRY", "OpSpec"]
