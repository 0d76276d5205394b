"""Operators that only move elements."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from uif_tvm.kernels import movement
from uif_tvm.kernels.legalize.rules import Legalizer, default, shape_of, standard

if TYPE_CHECKING:
    from tvm.ir import Call
    from tvm.relax import BlockBuilder, Expr


def _split(bb: BlockBuilder, call: Call) -> Expr:
    """Ours where a part is empty, which TVM's refuses."""
    from tvm import tirx

    parts, shape = call.attrs.indices_or_sections, shape_of(call.args[0])
    if isinstance(parts, tirx.IntImm) or shape is None:
        return default(bb, call)
    axis, cuts = int(call.attrs.axis) % len(shape), [int(part) for part in parts]
    if not isinstance(shape[axis], tirx.IntImm):
        return default(bb, call)
    bounds = [0, *cuts, int(shape[axis])]
    if all(first < last for first, last in itertools.pairwise(bounds)):
        return default(bb, call)
    return bb.call_te(
        lambda x: movement.split(x, cuts, axis), call.args[0], primfunc_name_hint="split"
    )


def _pad(bb: BlockBuilder, call: Call) -> Expr:
    """A constant to fill with becomes an immediate: convolutions absorb zeros that they can see."""
    from uif_tvm.relax_util import constant_array
    from uif_tvm.standard_ops import read

    found = read(call)
    if found is None:
        return call
    _, (x, value), attrs = found
    known = None if value is None else constant_array(value)
    if value is None or (known is not None and known.size == 1):
        number = 0 if known is None else known.reshape(-1)[0].item()
        return bb.call_te(
            lambda data: movement.pad(data, number, **attrs), x, primfunc_name_hint="pad"
        )
    return bb.call_te(
        lambda data, fill: movement.pad(data, fill, **attrs), x, value, primfunc_name_hint="pad"
    )


#: Operator name -> legalisation.
LEGALIZE: dict[str, Legalizer] = {"relax.split": _split, "uif.pad": _pad} | {
    f"uif.{name}": standard(getattr(movement, name))
    for name in (
        "depth_to_space",
        "repeat",
        "roll",
        "space_to_depth",
        "tile",
        "trilu",
    )
}
