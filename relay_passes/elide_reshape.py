"""Reshapes, squeezes and transposes that move no element become one reshape, or none.

    reshape(reshape(x, S), T)                        ->  reshape(x, T)
    reshape(x, shape of x)                           ->  x
    squeeze(x), expand_dims(x), flatten(x)           ->  reshape(x, S), and so as above
    permute_dims(x, p), p moves axes of 1 only       ->  reshape(x, S)
    reshape(permute_dims(reshape(x, S), p), T)       ->  reshape(x, T)
                                                     where p keeps the elements in their order
    expand(pad(x), axes of 1)                        ->  pad(expand(x))        the plane of a conv1d

All of it is exact: the elements and their order stay. A reshape of a tensor that exists is a view
and costs nothing by itself; but between two operators it keeps rewrites and fusion apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import mutator
from uif_tvm.relay_passes.local_rewrite import LocalRewrite
from uif_tvm.relay_passes.transpose_rules import essential, is_one, regroup, shape_of

from uif_tvm.compiler.gain import Gain
from uif_tvm.compiler.graph_pass import GraphPass
from uif_tvm.relax_util import calls, op_name
from uif_tvm.standard_ops import call as standard_call
from uif_tvm.standard_ops import read

if TYPE_CHECKING:
    from uif_tvm.compiler.context import CompileContext

_PADS = frozenset(("uif.pad", "relax.nn.pad"))
_VIEWS = frozenset(
    f"relax.{name}" for name in ("reshape", "squeeze", "expand_dims", "flatten", "permute_dims")
)


@mutator
class _Elide(LocalRewrite):
    def visit_call_(self, call: Call) -> Any:
        call = self.visit_expr_post_order(call)
        if op_name(call) not in _VIEWS:
            return call
        shape = shape_of(call)
        if shape is None or 0 in shape or not self._keeps_order(call):
            return call
        source, passed = self._source(call.args[0])
        if _same(shape_of(source), shape):
            what = f"no change of {_text(shape)} through {passed + 1} operators"
            self.fired(what, Gain(launches=passed + 1))
            return source
        moved = self._before_padding(source, shape)
        if moved is not None:
            return moved
        if passed:
            what = f"{passed + 1} operators became one reshape to {_text(shape)}"
            self.fired(what, Gain(launches=passed))
        elif op_name(call) == "relax.reshape":
            return call
        return relax.op.reshape(source, relax.ShapeExpr(list(shape)))

    def _keeps_order(self, call: Call) -> bool:
        """Whether ``call`` leaves the elements in the order of memory."""
        if op_name(call) != "relax.permute_dims":
            return True
        shape = shape_of(call.args[0])
        if shape is None:
            return False
        axes = call.attrs.axes
        order = range(len(shape))[::-1] if axes is None else [int(a) % len(shape) for a in axes]
        moving = essential(tuple(order), shape)
        return list(moving) == sorted(moving)

    def _source(self, expr: Any) -> tuple[Any, int]:
        """The tensor that ``expr`` is another shape of, and the operators in between."""
        passed = 0
        while True:
            value = self.made_by(expr)
            if value is None or op_name(value) not in _VIEWS:
                return expr, passed
            if shape_of(value.args[0]) is None or not self._keeps_order(value):
                return expr, passed
            expr, passed = value.args[0], passed + 1

    def _before_padding(self, source: Any, shape: tuple[Any, ...]) -> Any:
        """``pad(expand(x))`` for an expansion of ``source = pad(x)`` by axes of extent 1."""
        value = self.made_by(source)
        if value is None or op_name(value) not in _PADS or not self.alone(source):
            return None
        before = shape_of(value.args[0])
        padded = shape_of(source)
        groups = None if padded is None else regroup(padded, shape)
        if before is None or padded is None or groups is None or len(shape) <= len(before):
            return None
        # Every axis is one axis again, those of extent 1 before padding included.
        if any(len(old) != 1 or len(new) != 1 for old, new in groups):
            return None
        place = {old[0]: new[0] for old, new in groups}
        free = iter(a for a in range(len(shape)) if a not in place.values())
        for axis in range(len(before)):
            if axis not in place:
                place[axis] = next(free)
        if sorted(place.values()) != [place[axis] for axis in sorted(place)]:
            return None
        extents: list[Any] = [1] * len(shape)
        for axis, at in place.items():
            extents[at] = before[axis]
        data, _ = self._source(value.args[0])
        expanded = self.emit(relax.op.reshape(data, relax.ShapeExpr(extents)))
        made = _padded(value, expanded, place, len(shape))
        if made is not None:
            self.fired(f"expanded to {_text(tuple(extents))} before it is padded", Gain())
        return made


def _padded(call: Call, data: Any, place: dict[int, int], rank: int) -> Any:
    """The padding ``call`` of ``data``, whose axis ``place[a]`` was axis ``a``."""
    if op_name(call) == "relax.nn.pad":
        widths = [int(width) for width in call.attrs.pad_width]
        moved = [0] * (2 * rank)
        for axis, at in place.items():
            moved[2 * at : 2 * at + 2] = widths[2 * axis : 2 * axis + 2]
        attrs = call.attrs
        return relax.op.nn.pad(data, moved, str(attrs.pad_mode), float(attrs.pad_value))
    found = read(call)
    if found is None:
        return None
    _, (_, *fill), attrs = found
    sides = {
        name: tuple(
            next((attrs[name][axis] for axis, at in place.items() if at == new), 0)
            for new in range(rank)
        )
        for name in ("before", "after")
    }
    return standard_call("pad", data, *fill, **(dict(attrs) | sides))


def _same(old: tuple[Any, ...] | None, new: tuple[Any, ...]) -> bool:
    """Whether two shapes are equal, extents of run time by their form."""
    if old is None or len(old) != len(new):
        return False
    return all(
        a == b if isinstance(a, int) and isinstance(b, int) else tvm_ffi.structural_equal(a, b)
        for a, b in zip(old, new, strict=True)
        if not (is_one(a) and is_one(b))
    )


def _text(shape: tuple[Any, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"


class ElideReshape(GraphPass):
    """Drop and merge reshapes, squeezes and transposes that move no element."""

    name = "elide-reshape"

    def apply(self, mod: tvm.IRModule, ctx: CompileContext) -> tvm.IRModule:
        """See the module text."""
        if not any(op_name(call) in _VIEWS for _, call in calls(mod)):
            return mod
        return _Elide(mod, ctx, self.name).run()


PASS = ElideReshape()
