"""What the fused attention kernel computes; how is the schedules' business.

    y[b, h, q] = sum_k softmax_k(scale q[b, h, q] . k[b, h', k] + mask) v[b, h', k]

with ``h' = h // (heads / groups)``. Operands lie as ``[batch, heads, positions, features]`` or, as
linear layers leave them, as rows ``[batch, positions, columns]`` with a head's features side by
side from some column on. The description of an instance travels with the kernel, so that a
schedule can write its own loops; the tensor expressions here are its meaning, and what a target
without such a schedule runs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from uif_tvm.kernels.matmul import shape64
from uif_tvm.kernels.norm import NO_FAMILY, PEAK, SUM, accumulator, row_fold
from uif_tvm.target.schedule import FAMILY_ATTR

if TYPE_CHECKING:
    from tvm import te
    from tvm.tirx import PrimFunc

#: Family of the anchor block.
FUSED_ATTENTION = "fused_attention"
#: Function attribute that holds the :class:`AttentionForm`, as JSON.
FORM_ATTR = "uif.attention"


@dataclass(frozen=True)
class View:
    """Where the heads of one operand lie.

    Args:
        rows: as ``[batch, positions, columns]`` instead of ``[batch, heads, positions, features]``.
        start: with ``rows``, the column of head 0's first feature.
    """

    rows: bool = False
    start: int = 0

    def index(self, b: Any, h: Any, s: Any, d: Any, features: int) -> tuple[Any, ...]:
        """Indices of feature ``d`` of head ``h`` at position ``s``."""
        return (b, s, self.start + h * features + d) if self.rows else (b, h, s, d)

    def positions(self, shape: Any) -> Any:
        """How many positions an operand of ``shape`` has."""
        return shape[1] if self.rows else shape[2]


@dataclass(frozen=True)
class AttentionForm:
    """One instance: extents that must be known, the operator's attributes, and the views.

    Args:
        heads: heads of queries.
        groups: heads of keys and values; divides ``heads``.
        depth: features of queries and keys.
        width: features of values and of the result.
        scale: factor of the scores, never 0 here.
        causal, offset, softcap, before, after: as the operator has them.
    """

    heads: int
    groups: int
    depth: int
    width: int
    scale: float
    causal: bool = False
    offset: int = 0
    softcap: float = 0.0
    before: int = -1
    after: int = -1
    query: View = View()
    key: View = View()
    value: View = View()
    result: View = View()

    def dumps(self) -> str:
        """As text, for the function attribute."""
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def loads(text: str) -> AttentionForm:
        """Inverse of :meth:`dumps`."""
        fields: dict[str, Any] = json.loads(text)
        for name in ("query", "key", "value", "result"):
            fields[name] = View(**fields[name])
        return AttentionForm(**fields)


def form_of(func: PrimFunc) -> AttentionForm | None:
    """The description that ``func`` carries, ``None`` when it is no fused attention."""
    attrs: Mapping[str, Any] = func.attrs or {}
    return AttentionForm.loads(str(attrs[FORM_ATTR])) if FORM_ATTR in attrs else None


def result_shape(form: AttentionForm, batch: Any, positions: Any) -> tuple[Any, ...]:
    """Shape of the result."""
    if form.result.rows:
        return shape64(batch, positions, form.heads * form.width)
    return shape64(batch, form.heads, positions, form.width)


def fused_attention(
    query: te.Tensor,
    key: te.Tensor,
    value: te.Tensor,
    mask: te.Tensor | None,
    form: AttentionForm,
) -> te.Tensor:
    """See the module text; a query that sees no key gives zeros."""
    from tvm import te, tirx

    wide, dtype = accumulator(str(query.dtype)), str(query.dtype)
    batch, queries = query.shape[0], form.query.positions(query.shape)
    keys, share = form.key.positions(key.shape), form.heads // form.groups
    rows = (batch, form.heads, queries)
    zero, low = tirx.const(0, wide), tirx.const(-math.inf, wide)

    d = te.reduce_axis((0, form.depth), name="d")

    def product(b: Any, h: Any, q: Any, k: Any) -> Any:
        left = query[form.query.index(b, h, q, d, form.depth)].astype(wide)
        right = key[form.key.index(b, h // share, k, d, form.depth)].astype(wide)
        return te.sum(left * right, axis=d)

    products = te.compute(shape64(*rows, keys), product, name="products")

    def score(b: Any, h: Any, q: Any, k: Any) -> Any:
        s = products[b, h, q, k] * tirx.const(form.scale, wide)
        if form.softcap:
            cap = tirx.const(form.softcap, wide)
            s = cap * tirx.tanh(s / cap)
        if mask is not None:
            given = mask[_broadcast((b, h, q, k), mask.shape)]
            is_bool = str(mask.dtype) == "bool"
            s = tirx.Select(given, s, low) if is_bool else s + given.astype(wide)
        hidden = [limit for limit in _hidden(form, q, k) if limit is not None]
        return tirx.Select(tirx.any(*hidden), low, s) if hidden else s

    scores = te.compute(products.shape, score, name="scores")
    peak = row_fold(rows, keys, lambda r, k: scores[(*r, k)], PEAK, wide, "peak", NO_FAMILY)

    def power(b: Any, h: Any, q: Any, k: Any) -> Any:
        top = peak[b, h, q]
        return tirx.exp(scores[b, h, q, k] - tirx.Select(top == low, zero, top))

    powers = te.compute(products.shape, power, name="powers")
    total = row_fold(rows, keys, lambda r, k: powers[(*r, k)], SUM, wide, "total", NO_FAMILY)
    k = te.reduce_axis((0, keys), name="k")

    def weighted(b: Any, h: Any, q: Any, n: Any) -> Any:
        right = value[form.value.index(b, h // share, k, n, form.width)].astype(wide)
        return te.sum(powers[b, h, q, k] * right, axis=k)

    sums = te.compute(
        shape64(*rows, form.width), weighted, name="sums", attrs={FAMILY_ATTR: FUSED_ATTENTION}
    )

    def divided(b: Any, h: Any, q: Any, n: Any) -> Any:
        whole = total[b, h, q]
        one = tirx.const(1, wide)
        return (sums[b, h, q, n] / tirx.Select(whole == zero, one, whole)).astype(dtype)

    def place(*index: Any) -> Any:
        if not form.result.rows:
            return divided(*index)
        b, q, column = index
        return divided(b, column // form.width, q, column % form.width)

    return te.compute(result_shape(form, batch, queries), place, name="attention")


def _hidden(form: AttentionForm, q: Any, k: Any) -> list[Any]:
    """Conditions under which query ``q`` may not see key ``k`` by its position."""
    distance = q + form.offset - k
    return [
        distance < 0 if form.causal else None,
        distance > form.before if form.before >= 0 else None,
        -distance > form.after if form.after >= 0 else None,
    ]


def _broadcast(index: tuple[Any, ...], shape: Any) -> tuple[Any, ...]:
    """Where an operand of ``shape``, aligned at the last axis, is read."""
    from tvm import tirx

    own = index[len(index) - len(shape) :]
    return tuple(
        0 if isinstance(n, tirx.IntImm) and int(n) == 1 else i
        for i, n in zip(own, shape, strict=True)
    )
