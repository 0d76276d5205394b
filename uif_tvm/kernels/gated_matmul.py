"""Both factors of a gated linear layer in one packed matmul.

``y[..., n] = f(sum_k x[..., k] w[k, n] + b[n]) * (sum_k x[..., k] v[k, n] + c[n])``. A panel of
the packed weights is ``h`` columns of ``w`` followed by the same ``h`` columns of ``v``, so one
register tile holds what the copy-out stage multiplies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from uif_tvm.kernels import activation
from uif_tvm.kernels.matmul import PACKED_MATMUL, pack_weight, shape64, tile_sums
from uif_tvm.target.schedule import COLUMNS_ATTR, FAMILY_ATTR

if TYPE_CHECKING:
    from tvm import te


def _relu(x: Any) -> Any:
    from tvm import tirx

    zero = tirx.const(0, str(x.ty.dtype))
    return tirx.Select(x < zero, zero, x)  # NaN stays NaN


def _sigmoid(x: Any) -> Any:
    from tvm import tirx

    return tirx.sigmoid(x)


#: Relax operator -> its formula.
ACTIVATIONS: Mapping[str, Callable[[Any], Any]] = {
    "relax.nn.silu": activation.silu,
    "relax.nn.gelu": activation.gelu,
    "relax.nn.gelu_tanh": activation.gelu_tanh,
    "relax.nn.relu": _relu,
    "relax.sigmoid": _sigmoid,
}


def pack_pair(
    gate: np.ndarray[Any, Any], up: np.ndarray[Any, Any], n_block: int
) -> np.ndarray[Any, Any]:
    """Two ``[K, N]`` as ``[ceil(N / h), K, 2 h]`` with ``h = n_block / 2``."""
    half = n_block // 2
    return np.concatenate([pack_weight(gate, half), pack_weight(up, half)], 2)


def gated_matmul(
    x: te.Tensor,
    packed: te.Tensor,
    gate_bias: te.Tensor | None,
    up_bias: te.Tensor | None,
    width: int,
    m_block: int,
    function: str,
) -> te.Tensor:
    """``[..., M, K]`` and weights of :func:`pack_pair` to ``[..., M, N]``.

    Args:
        gate_bias, up_bias: ``[N]`` or ``None``.
        width: N.
        m_block: rows of one register tile.
        function: key of :data:`ACTIVATIONS`.
    """
    from tvm import te

    half = int(packed.shape[2]) // 2
    acc = tile_sums(x, packed, m_block, {FAMILY_ATTR: PACKED_MATMUL, COLUMNS_ATTR: half})
    formula = ACTIVATIONS[function]

    def copy_out(*index: Any) -> Any:
        *batch, m, n = index
        at = (*batch, m // m_block, n // half, m % m_block)
        gate, up = acc[(*at, n % half)].asobject(), acc[(*at, n % half + half)].asobject()
        gate = gate if gate_bias is None else gate + gate_bias[n]
        return formula(gate) * (up if up_bias is None else up + up_bias[n])

    return te.compute(shape64(*x.shape[:-1], width), copy_out, name="gated_matmul")
