"""What every frontend returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from uif_tvm.signature import Signature

if TYPE_CHECKING:
    import tvm


@dataclass(frozen=True)
class ImportedModel:
    """A model in Relax, before any pass of ours.

    Args:
        mod: one function ``main`` whose parameters are exactly the user's inputs, in order, and
            whose result is always a tuple; weights are ``relax.Constant``. Variables carry the
            source's node names as name hints, so that reports can point back.
        signature: the inputs and outputs under the names the model's author gave them.
        source: ``"onnx"`` or ``"torch"``.
        op_histogram: source operator name -> how often it occurred.
        specialised: inputs whose example value is compiled in; the runtime refuses others.
        host_reasons: operator that runs on the host -> reason code, where it is not that no
            kernel exists.
        composed: operators taken apart at import into those that their standard's own function
            body consists of -> count.
        strings: texts of the model's constants in the order of their ids, see
            :mod:`uif_tvm.runtime.strings`.
        removed: source operators that mean nothing at inference (dropout, identity) -> count.
    """

    mod: tvm.IRModule
    signature: Signature
    source: str
    op_histogram: Mapping[str, int] = field(default_factory=dict)
    removed: Mapping[str, int] = field(default_factory=dict)
    specialised: tuple[str, ...] = ()
    host_reasons: Mapping[str, str] = field(default_factory=dict)
    composed: Mapping[str, int] = field(default_factory=dict)
    strings: tuple[str, ...] = ("",)
