"""ONNX frontend: ``.onnx`` files and ``ModelProto`` objects become Relax modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uif_tvm.frontends.imported import ImportedModel

__all__ = ["import_onnx"]


def import_onnx(
    model: Any,
    dummy_input: Any = None,
    *,
    host_fallback: bool = False,
    dynamic_shapes: Any = None,
) -> ImportedModel:
    """Import an ONNX model; see :func:`uif_tvm.frontends.onnx.entry.import_onnx`."""
    from uif_tvm.frontends.onnx import entry  # not at the top: converters import this package

    return entry.import_onnx(
        model, dummy_input, host_fallback=host_fallback, dynamic_shapes=dynamic_shapes
    )
