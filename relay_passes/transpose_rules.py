"""How operators take their data in another order of axes.

The *order* ``a`` of a tensor ``v`` says that ``permute_dims(v, a)`` is what exists: its axis ``k``
is axis ``a[k]`` of ``v``. A :class:`Rule` has a *label*, the order that an operator computes in,
and tells for each label in which orders it then reads its operands and makes its results:

    f(x, y), f element-wise        reads label, label; makes label
    softmax(x, axis)               reads label; makes label; axis -> label.index(axis)
    sum(x, axis)                   reads label; makes label without the axis
    reshape(x)                     label permutes groups of axes that belong together
    matmul(x, W)                   label keeps the last axis (two for a product of batches)

Axes of extent 1 may stand anywhere: moving them moves no element (see :func:`essential`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tvm_ffi
from tvm import relax
from tvm.ir import Call

from uif_tvm.relax_util import op_name
from uif_tvm.standard_ops import call as standard_call
from uif_tvm.standard_ops import read

if TYPE_CHECKING:
    from uif_tvm.ops.spec import OpSpec

Order = tuple[int, ...]


def compose(outer: Order, inner: Order) -> Order:
    """The order of ``permute_dims(permute_dims(x, outer), inner)``."""
    return tuple(outer[axis] for axis in inner)


def inverse(order: Order) -> Order:
    """``compose(order, inverse(order))`` is no change."""
    return tuple(order.index(axis) for axis in range(len(order)))


def identity(rank: int) -> Order:
    """No change."""
    return tuple(range(rank))


def essential(order: Order, shape: Sequence[Any]) -> Order:
    """``order`` without the axes of extent 1: equal ones store the same elements alike."""
    return tuple(axis for axis in order if not is_one(shape[axis]))


def is_one(extent: Any) -> bool:
    """Whether an extent is known to be 1."""
    return isinstance(extent, int) and extent == 1


def shape_of(expr: Any) -> tuple[Any, ...] | None:
    """Extents of a tensor, ints where known; ``None`` where not even the rank is."""
    shape = getattr(getattr(expr, "ty", None), "shape", None)
    values = getattr(shape, "values", None)
    if values is None:
        return None
    return tuple(int(getattr(e, "value", -1)) if hasattr(e, "value") else e for e in values)


class Rule:
    """An operator of ``rank``-axis labels that reads ``operands`` tensors; see the module text."""

    def __init__(self, node: Call, operands: list[Any], rank: int) -> None:
        self.node, self.operands, self.rank = node, operands, rank
        self.shapes = [shape_of(operand) for operand in operands]

    def refuses(self, label: Order) -> str | None:
        """Why ``label`` is none to compute in, ``None`` when it is one."""
        return None

    def needs(self, label: Order) -> list[Order | None]:
        """Order of each operand; ``None``: it is read as it is.

        An order longer than the operand's rank is that of the operand with leading axes of
        extent 1.
        """
        return [label for _ in self.operands]

    def gives(self, label: Order) -> Order:
        """Order of the result, of each one where there are several."""
        return label

    def from_operand(self, index: int, order: Order) -> Order | None:
        """The label that reads operand ``index`` in ``order``."""
        return order if len(self.shapes[index] or ()) == self.rank else None

    def from_result(self, order: Order) -> Order | None:
        """The label that makes the result in ``order``."""
        return order

    def rebuild(self, label: Order, operands: list[Any]) -> Any:
        """The operator over operands of the orders that it needs."""
        return Call(self.node.op, [*operands, *self.node.args[len(operands):]],
                    self.node.attrs, self.node.ty_args)  # fmt: skip


class Elementwise(Rule):
    """Same position in, same position out; operands broadcast."""

    def needs(self, label: Order) -> list[Order | None]:
        """Tensors of one element broadcast in any order."""
        return [
            None if shape is None or all(map(is_one, shape)) else label for shape in self.shapes
        ]


class Standard(Rule):
    """Operators that name axes in their attributes, rebuilt from their specification."""

    def __init__(
        self, node: Call, spec: OpSpec, operands: list[Any], attrs: Mapping[str, Any], rank: int
    ) -> None:
        given = [operand for operand in operands if operand is not None]
        super().__init__(node, given, rank)
        self.spec, self.attrs, self.all_operands = spec, attrs, operands

    def rebuild(self, label: Order, operands: list[Any]) -> Any:
        """See :meth:`Rule.rebuild`."""
        moved = iter(operands)
        full = [None if operand is None else next(moved) for operand in self.all_operands]
        return standard_call(self.spec.name, *full, **(dict(self.attrs) | self.moved(label)))

    def moved(self, label: Order) -> dict[str, Any]:
        """The attributes that differ under ``label``."""
        raise NotImplementedError


class AlongAxes(Standard):
    """Operators along the axes that attribute ``axis`` or ``axes`` names; the rank stays.

    Only the first operand is moved, all of them where the operator takes a list.
    """

    #: Kernels that run along the last axes: these have to stay the last.
    ROWS = frozenset("softmax log_softmax lp_normalize layer_norm rms_norm".split())

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.name = "axes" if "axes" in self.attrs else "axis"
        value = self.attrs[self.name]
        listed = [value] if isinstance(value, int) else list(value)
        self.axes = [int(axis) % self.rank for axis in listed]

    def refuses(self, label: Order) -> str | None:
        """See :class:`AlongAxes`."""
        count = len(self.axes)
        last = list(range(self.rank - count, self.rank))
        if self.spec.name in self.ROWS and self.axes == last and list(label[-count:]) != last:
            return f"axis {self.attrs[self.name]} of {self.spec.name} has to stay the last"
        found = [label.index(axis) for axis in self.axes]
        if len(self.operands) > 1 and not self.spec.variadic and found != sorted(found):
            return f"the axes of {self.spec.name}'s parameters have to keep their order"
        return None

    def needs(self, label: Order) -> list[Order | None]:
        """See :class:`AlongAxes`."""
        first: list[Order | None] = [label]
        return first * len(self.operands) if self.spec.variadic else (
            first + [None] * (len(self.operands) - 1)
        )  # fmt: skip

    def moved(self, label: Order) -> dict[str, Any]:
        """The same axes where they are now."""
        found = [label.index(axis) for axis in self.axes]
        single = isinstance(self.attrs[self.name], int)
        return {self.name: found[0] if single else tuple(found)}


class Reduction(Standard):
    """Reductions over ``axis``, an integer or a list; all axes where it is ``None``."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        value = self.attrs["axis"]
        listed = range(self.rank) if value is None else [value] if isinstance(value, int) else value
        self.axes = sorted(int(axis) % self.rank for axis in listed)
        self.kept = [axis for axis in range(self.rank) if axis not in self.axes]

    def refuses(self, label: Order) -> str | None:
        """Reductions over the last axes read rows; they keep doing so."""
        last = list(range(self.rank - len(self.axes), self.rank))
        if self.axes == last and sorted(label[len(self.kept) :]) != last:
            return f"the axes {self.axes} of {self.spec.name} have to stay the last"
        return None

    def gives(self, label: Order) -> Order:
        """See :meth:`Rule.gives`."""
        if self.attrs["keepdims"]:
            return label
        return tuple(self.kept.index(axis) for axis in label if axis in self.kept)

    def from_result(self, order: Order) -> Order | None:
        """Axes reduced away stay where they are."""
        if self.attrs["keepdims"]:
            return order
        rest = iter(order)
        return tuple(
            self.kept[next(rest)] if axis in self.kept else axis for axis in range(self.rank)
        )

    def moved(self, label: Order) -> dict[str, Any]:
        """The same axes where they are now."""
        value = self.attrs["axis"]
        if value is None:
            return {}
        found = sorted(label.index(axis) for axis in self.axes)
        return {"axis": found[0] if isinstance(value, int) else tuple(found)}


class PerAxis(Standard):
    """Operators with one attribute value for every axis: pad, tile, broadcast_to."""

    LISTS: Mapping[str, tuple[str, ...]] = {
        "pad": ("before", "after"),
        "tile": ("repeats",),
        "broadcast_to": ("shape",),
    }

    def needs(self, label: Order) -> list[Order | None]:
        """See :meth:`Rule.needs`; a fill value has no axes."""
        return [label, *[None] * (len(self.operands) - 1)]

    def moved(self, label: Order) -> dict[str, Any]:
        """The same values in the new order."""
        names = self.LISTS[self.spec.name]
        return {name: tuple(self.attrs[name][axis] for axis in label) for name in names}


class Product(Rule):
    """``matmul``: the axes of the matrices stay, those of batches may change places."""

    def refuses(self, label: Order) -> str | None:
        """See :class:`Product`."""
        count = 1 if len(self.shapes[1] or ()) == 2 else 2
        last = tuple(range(self.rank - count, self.rank))
        return None if label[-count:] == last else "the axes of a matmul's matrices have to stay"

    def needs(self, label: Order) -> list[Order | None]:
        """See :class:`Product`."""
        return [label, None if len(self.shapes[1] or ()) == 2 else label]


class Regroup(Rule):
    """``reshape``, ``squeeze`` and ``expand_dims``: labels permute groups of axes.

    Args:
        node: the call.
        operand: what it reshapes.
        groups: (axes of the operand, axes of the result) that hold the same elements.
    """

    def __init__(self, node: Call, operand: Any, groups: list[tuple[Order, Order]]) -> None:
        super().__init__(node, [operand], len(groups))
        self.groups, self.result = groups, shape_of(node) or ()

    def needs(self, label: Order) -> list[Order | None]:
        """See :meth:`Rule.needs`."""
        return [self._axes(label, 0, len(self.shapes[0] or ()))]

    def gives(self, label: Order) -> Order:
        """See :meth:`Rule.gives`."""
        return self._axes(label, 1, len(self.result))

    def from_operand(self, index: int, order: Order) -> Order | None:
        """See :meth:`Rule.from_operand`."""
        return self._label(essential(order, self.shapes[0] or ()), 0)

    def from_result(self, order: Order) -> Order | None:
        """See :meth:`Rule.from_result`."""
        return self._label(essential(order, self.result), 1)

    def rebuild(self, label: Order, operands: list[Any]) -> Any:
        """A reshape to the permuted shape."""
        shape = [self.result[axis] for axis in self.gives(label)]
        return relax.op.reshape(operands[0], relax.ShapeExpr(shape))

    def _axes(self, label: Order, side: int, rank: int) -> Order:
        moved = [axis for group in label for axis in self.groups[group][side]]
        return (*moved, *(axis for axis in range(rank) if axis not in moved))

    def _label(self, order: Order, side: int) -> Order | None:
        left, label = list(order), []
        while left:
            found = next(
                (
                    at for at, group in enumerate(self.groups)
                    if group[side] and tuple(left[: len(group[side])]) == group[side]
                ),
                None,
            )  # fmt: skip
            if found is None:
                return None
            label.append(found)
            del left[: len(self.groups[found][side])]
        return tuple(label) if len(label) == self.rank else None


def regroup(before: Sequence[Any], after: Sequence[Any]) -> list[tuple[Order, Order]] | None:
    """Groups of axes of two shapes of one reshape that hold the same elements, finest first.

    ``None`` where extents of run time leave that open.
    """
    old = [axis for axis, extent in enumerate(before) if not is_one(extent)]
    new = [axis for axis, extent in enumerate(after) if not is_one(extent)]
    if not all(isinstance(extent, int) for extent in (*before, *after)):
        same = len(old) == len(new) and all(
            tvm_ffi.structural_equal(before[a], after[b]) for a, b in zip(old, new, strict=True)
        )
        return [((a,), (b,)) for a, b in zip(old, new, strict=True)] if same else None
    if 0 in (*before, *after):
        return None
    groups = []
    while old:
        left, right = [old.pop(0)], [new.pop(0)]
        a, b = before[left[0]], after[right[0]]
        while a != b:
            if a < b:
                left.append(old.pop(0))
                a *= before[left[-1]]
            else:
                right.append(new.pop(0))
                b *= after[right[-1]]
        groups.append((tuple(left), tuple(right)))
    return groups


_REDUCTIONS = frozenset(
    "sum mean max min prod std variance l1_norm l2_norm log_sum log_sum_exp sum_square all any "
    "argmax argmin".split()
)
#: Reductions whose result over all axes depends on their order.
_POSITIONS = frozenset(("argmax", "argmin"))
_ALONG = frozenset(
    "softmax log_softmax lp_normalize layer_norm rms_norm concat split flip cumsum cumprod cummax "
    "cummin roll repeat strided_slice".split()
)
_FAMILIES = ("elementwise", "binary", "activation")
_UNSPECIFIED = frozenset(("relax.square", "relax.nn.relu6"))


def find_rule(node: Call) -> Rule | None:
    """The rule of an operator, ``None`` for those that need the order they were given."""
    name, shape = op_name(node), shape_of(node)
    if name in _UNSPECIFIED and shape is not None:
        return Elementwise(node, [node.args[0]], len(shape))
    found = read(node)
    if found is None:
        return None
    spec, operands, attrs = found
    shapes = [shape_of(operand) for operand in operands if operand is not None]
    if not shapes or any(given is None for given in shapes):
        return None
    first = shapes[0] or ()
    if spec.name in ("reshape", "squeeze", "expand_dims"):
        groups = None if shape is None else regroup(first, shape)
        return None if not groups else Regroup(node, operands[0], groups)
    if spec.name == "matmul":
        ranks = [len(given or ()) for given in shapes]
        fits = ranks[0] > 2 and ranks[1] in (2, ranks[0])
        return Product(node, list(node.args), ranks[0]) if fits else None
    if spec.name == "dynamic_quantize":
        return None
    if spec.family in _FAMILIES and shape is not None and None not in operands:
        return Elementwise(node, operands, len(shape))
    rank = len(first)
    if spec.name == "broadcast_to":
        rank = len(shape or ())
    if spec.name in PerAxis.LISTS and all(
        len(attrs[item]) == rank for item in PerAxis.LISTS[spec.name]
    ):
        return PerAxis(node, spec, operands, attrs, rank)
    axis = attrs.get("axis", attrs.get("axes"))
    if spec.name in _REDUCTIONS and (axis is not None or spec.name not in _POSITIONS):
        return Reduction(node, spec, operands, attrs, rank)
    along = spec.name in _ALONG and axis is not None
    return AlongAxes(node, spec, operands, attrs, rank) if along else None
