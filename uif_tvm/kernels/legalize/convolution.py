"""Convolutions that Relax lacks."""

from __future__ import annotations

from uif_tvm.kernels import convolution, sampling
from uif_tvm.kernels.legalize.rules import Legalizer, standard

#: Operator name -> legalisation.
LEGALIZE: dict[str, Legalizer] = {
    **{f"uif.conv{rank}d_transpose": standard(convolution.conv_transpose) for rank in (1, 2, 3)},
    "uif.deform_columns": standard(sampling.deform_columns),
    "uif.im2col": standard(convolution.im2col),
    "uif.col2im": standard(convolution.col2im),
}
