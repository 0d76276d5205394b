"""ONNX frontend: ``.onnx`` files and ``ModelProto`` objects become Relax modules."""

from __future__ import annotations

from uif_tvm.frontends.onnx.entry import import_onnx

__all__ = ["import_onnx"]
