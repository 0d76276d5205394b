"""From a path or a ``ModelProto`` to a parsed model, trusting nothing in it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uif_tvm.errors import ImportModelError

MAX_PROTO_BYTES = 2**31 - 1
"""Protobuf's own limit on one message."""


@dataclass(frozen=True)
class LoadedModel:
    """A parsed model and the folder its external data may come from.

    Args:
        proto: the model, not yet validated.
        folder: where the model file lies, resolved; ``None`` for a model without a file, which
            therefore can have no external data.
    """

    proto: Any
    folder: Path | None


def load_model(model: Any) -> LoadedModel:
    """Read a model from a path, or take a ``ModelProto`` as it is.

    Raises:
        ImportModelError: not a readable ONNX file.
    """
    import onnx

    if isinstance(model, onnx.ModelProto):
        return LoadedModel(model, None)
    if isinstance(model, (bytes, bytearray)):
        return LoadedModel(_parse(bytes(model), "the given bytes"), None)
    if not isinstance(model, (str, os.PathLike)):
        raise ImportModelError(
            f"an ONNX model is a path or an onnx.ModelProto, not {type(model).__name__}",
            code="UIF-IMPORT-KIND",
        )
    path = Path(model)
    try:
        if not path.is_file():
            reason = "is a folder" if path.is_dir() else "does not exist"
            raise ImportModelError(
                f"{path} {reason}", code="UIF-IMPORT-FILE", hint="pass the path of an .onnx file"
            )
        if path.stat().st_size > MAX_PROTO_BYTES:
            raise ImportModelError(
                f"{path} is larger than protobuf's limit of 2 GiB",
                code="UIF-IMPORT-FILE",
                hint="save the weights as external data, see onnx.save_model",
            )
        data = path.read_bytes()
    except ImportModelError:
        raise
    except (OSError, ValueError) as exc:
        raise ImportModelError(f"cannot read {path}: {exc}", code="UIF-IMPORT-FILE") from exc
    return LoadedModel(_parse(data, str(path)), path.resolve().parent)


def _parse(data: bytes, what: str) -> Any:
    import onnx
    from google.protobuf.message import DecodeError

    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except (DecodeError, ValueError, RuntimeError) as exc:
        raise ImportModelError(
            f"{what} is not an ONNX model, or is damaged: {exc}",
            code="UIF-IMPORT-PARSE",
            hint="check the file against its source; onnx.checker.check_model must accept it",
        ) from exc
    if not proto.HasField("graph"):
        raise ImportModelError(
            f"{what} holds no graph", code="UIF-IMPORT-PARSE", hint="is it an ONNX model at all?"
        )
    return proto
