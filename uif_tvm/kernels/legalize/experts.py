"""Mixtures of experts."""

from __future__ import annotations

from uif_tvm.kernels import experts
from uif_tvm.kernels.legalize.rules import Legalizer, standard
from uif_tvm.kernels.legalize.whole import whole

#: Operator name -> legalisation.
LEGALIZE: dict[str, Legalizer] = {
    "uif.moe_routing": whole(experts.moe_routing),
    "uif.grouped_matmul": standard(experts.grouped_matmul),
}
