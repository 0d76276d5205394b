"""PyTorch dtypes and tensors as TVM's."""

from __future__ import annotations

import numpy as np
import torch
import tvm

from uif_tvm.frontends.torch.registry import RefusedError

#: PyTorch dtype -> TVM dtype name.
DTYPES: dict[torch.dtype, str] = {
    torch.float64: "float64",
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int64: "int64",
    torch.int32: "int32",
    torch.int16: "int16",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.bool: "bool",
}


def dtype_name(dtype: torch.dtype) -> str:
    """The TVM name of a PyTorch dtype.

    Raises:
        RefusedError: complex, quantised and 8-bit float dtypes.
    """
    name = DTYPES.get(dtype)
    if name is None:
        kind = "complex numbers are" if dtype.is_complex else f"dtype {dtype} is"
        raise RefusedError(f"{kind} not supported", "use a real dtype: float32, float16, int64 ...")
    return name


def is_float(dtype: str) -> bool:
    """True for float16, bfloat16, float32 and float64."""
    return "float" in dtype


def compute_dtype(dtype: str) -> str:
    """The dtype PyTorch's CPU kernels compute in: half precision goes through float32."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def tensor_to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The values as a C-contiguous NumPy array (bfloat16 through ``ml_dtypes``)."""
    dense = tensor.to_dense() if tensor.layout != torch.strided else tensor
    dense = dense.detach().resolve_conj().resolve_neg().cpu()
    name = dtype_name(dense.dtype)
    shape = tuple(dense.shape)
    dense = dense.contiguous()
    if name == "bfloat16":
        import ml_dtypes

        bits = dense.view(torch.int16).numpy()
        return np.ascontiguousarray(bits).reshape(shape).view(ml_dtypes.bfloat16)
    return np.ascontiguousarray(dense.numpy()).reshape(shape)


def tensor_to_tvm(tensor: torch.Tensor) -> tvm.runtime.Tensor:
    """A copy of the values as a TVM tensor in host memory."""
    return tvm.runtime.tensor(tensor_to_numpy(tensor))
