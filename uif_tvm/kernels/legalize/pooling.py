"""Pooling that Relax lacks."""

from __future__ import annotations

from uif_tvm.kernels import pooling
from uif_tvm.kernels.legalize.rules import OUT_FUSABLE, Legalizer, standard
from uif_tvm.kernels.legalize.whole import whole

#: Operator name -> legalisation.
LEGALIZE: dict[str, Legalizer] = {
    "uif.avg_pool": standard(pooling.avg_pool, pattern=OUT_FUSABLE),
    "uif.lp_pool": standard(pooling.lp_pool, pattern=OUT_FUSABLE),
    "uif.max_pool_with_indices": standard(pooling.max_pool_with_indices),
    "uif.adaptive_max_pool": standard(pooling.adaptive_max_pool),
    "uif.max_unpool": whole(pooling.max_unpool),
}
