"""One mutant through the public flow, and what became of it."""

from __future__ import annotations

import tempfile
import traceback
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

#: What may become of a damaged model: a typed refusal, or a model that runs.
ACCEPTED = ("refused", "ran")
#: Codes of typed errors that nevertheless tell of a fault of ours.
INTERNAL = ("UIF-COMPILE-PASS", "UIF-INTERNAL")
MAX_ELEMENTS = 1 << 20


def attempt(
    data: bytes, inputs: Mapping[str, Any], level: int, suffix: str = "onnx"
) -> dict[str, str]:
    """The ``outcome`` and its ``message``.

    ``refused`` and ``ran`` are right. ``internal``: a typed error that tells of a fault of ours.
    ``memory``, ``untyped``: what no user should see.
    """
    import uif_tvm
    from uif_tvm.errors import UifError

    with tempfile.TemporaryDirectory(prefix="uif-fuzz-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path, out = f"{folder}/m.{suffix}", f"{folder}/m.uif"
        with open(path, "wb") as file:
            file.write(data)
        try:
            example = dict(inputs) if suffix == "onnx" else tuple(inputs.values())
            uif_tvm.export(path, example, output_path=out, optimize_level=level)
            uif_tvm.load(out, threads=1).run(dict(inputs))
        except UifError as error:
            internal = error.code in INTERNAL
            return {"outcome": "internal" if internal else "refused", "message": str(error)}
        except MemoryError:
            return {"outcome": "memory", "message": _told()}
        except Exception:
            return {"outcome": "untyped", "message": _told()}
    return {"outcome": "ran", "message": ""}


def _told() -> str:
    return "\n".join(traceback.format_exc().splitlines()[-8:])


def fitting(data: bytes, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs of the types and static sizes that a mutant declares, where these are small.

    So a mutant with another signature is not refused for its inputs alone.
    """
    import onnx
    from onnx import helper

    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception:
        return dict(inputs)
    weights = {tensor.name for tensor in model.graph.initializer}
    found = {}
    for value in model.graph.input:
        if value.name in weights:
            continue
        tensor, old = value.type.tensor_type, inputs.get(value.name)
        try:
            dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        except Exception:
            return dict(inputs)
        dims = [dim.dim_value if dim.HasField("dim_value") else 2 for dim in tensor.shape.dim]
        if min(dims, default=0) < 0 or int(np.prod(dims, dtype=object)) > MAX_ELEMENTS:
            return dict(inputs)
        same = old is not None and old.dtype == dtype and list(old.shape) == dims
        found[value.name] = old if same else np.zeros(dims, dtype)
    return found
