"""Symbolic dimension tensors written out as real tensors."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx

from uif_tvm.frontends.onnx.values import Symbolic


def materialise(bb: relax.BlockBuilder, value: Symbolic, name: str) -> relax.Expr:
    """A tensor that holds the elements, computed from the symbolic dimensions."""
    flat = [
        tirx.const(item, "int64") if isinstance(item, int) else item
        for item in value.elements.reshape(-1)
    ]
    variables = list({v for item in flat for v in tirx.analysis.undefined_vars(item)})
    shape = tuple(value.elements.shape)

    def compute(*params: Any) -> te.Tensor:
        mapping = dict(zip(variables, params, strict=True))
        items = [tirx.stmt_functor.substitute(item, mapping) for item in flat]

        def element(*index: Any) -> Any:
            position: Any = tirx.const(0, "int64")
            for at, extent in zip(index, shape, strict=True):
                position = position * extent + at
            result = items[-1]
            for number in range(len(items) - 2, -1, -1):
                result = tirx.Select(position == number, items[number], result)
            return result.astype(value.dtype)

        return te.compute(shape, element, name="dims")

    return bb.emit(bb.call_te(compute, *variables, primfunc_name_hint="dims"), name)
