"""Reads and writes at positions given by data; order; tensors made by a rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uif_tvm.kernels import creation, indexing, sorting
from uif_tvm.kernels.legalize.rules import OPAQUE, Legalizer, formulas, standard

if TYPE_CHECKING:
    from tvm import te
    from tvm.ir import Call
    from tvm.relax import BlockBuilder, Expr


def _gather_elements(x: te.Tensor, indices: te.Tensor, axis: int) -> te.Tensor:
    return indexing.gather_elements(x, indices, axis % len(x.shape))


def _scatter_elements(
    x: te.Tensor, indices: te.Tensor, updates: te.Tensor, axis: int, reduction: str
) -> te.Tensor:
    return indexing.scatter_elements(x, indices, updates, axis % len(x.shape), reduction)


def _index(x: te.Tensor, *indices: te.Tensor, axes: tuple[int, ...]) -> te.Tensor:
    return indexing.advanced_gather(x, list(indices), [axis % len(x.shape) for axis in axes])


def _index_put(
    x: te.Tensor,
    values: te.Tensor,
    *indices: te.Tensor,
    axes: tuple[int, ...],
    accumulate: bool,
) -> te.Tensor:
    at = [axis % len(x.shape) for axis in axes]
    return indexing.advanced_scatter(x, list(indices), values, at, accumulate)


def _masked_fill(x: Any, mask: Any, value: Any) -> Any:
    from tvm import tirx

    return tirx.Select(mask, value, x)


def _sorted(*results: str) -> Legalizer:
    """Parts (``values``, ``positions``) of a sort along an axis, ``k`` of them if so many count."""

    def legalize(bb: BlockBuilder, call: Call) -> Expr:
        from tvm import relax

        from uif_tvm.standard_ops import read

        found = read(call)
        if found is None:
            return call
        _, (x,), attrs = found
        axis = attrs["axis"] % max(len(x.ty.shape), 1)
        descending = bool(attrs.get("largest", attrs.get("descending")))
        ordered = bb.emit(
            bb.call_te(
                lambda data: sorting.sort(data, axis, descending), x, primfunc_name_hint="sort"
            )
        )
        parts = [
            bb.emit(relax.TupleGetItem(ordered, ("values", "positions").index(name)))
            for name in results
        ]
        if "k" in attrs:
            parts = [
                bb.emit(
                    bb.call_te(
                        lambda data: sorting.first(data, axis, attrs["k"]),
                        part,
                        primfunc_name_hint="first",
                    )
                )
                for part in parts
            ]
        return parts[0] if len(parts) == 1 else relax.Tuple(parts)

    return legalize


#: Operator name -> legalisation.
LEGALIZE: dict[str, Legalizer] = {
    "uif.gather_elements": standard(_gather_elements),
    "uif.gather_nd": standard(indexing.gather_nd),
    "uif.scatter_elements": standard(_scatter_elements, pattern=OPAQUE),
    "uif.scatter_nd": standard(indexing.scatter_nd, pattern=OPAQUE),
    "uif.index": standard(_index),
    "uif.index_put": standard(_index_put, pattern=OPAQUE),
    **formulas({"masked_fill": _masked_fill}),
    "uif.sort": _sorted("values", "positions"),
    "uif.argsort": _sorted("positions"),
    "uif.topk": _sorted("values", "positions"),
    "uif.searchsorted": standard(sorting.searchsorted),
    "uif.one_hot": standard(creation.one_hot),
    "uif.arange": standard(creation.arange),
    "uif.eye": standard(creation.eye),
}
