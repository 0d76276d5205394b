"""Normalisations that Relax lacks."""

from __future__ import annotations

from uif_tvm.kernels import normalization
from uif_tvm.kernels.legalize.rules import OUT_FUSABLE, Legalizer, standard

#: Operator name -> legalisation.
LEGALIZE: dict[str, Legalizer] = {
    "uif.lrn": standard(normalization.lrn, pattern=OUT_FUSABLE),
    "uif.lp_normalize": standard(normalization.lp_normalize, pattern=OUT_FUSABLE),
}
