"""Liveness over all of ``main``: which memory each value lives in, and from when until when.

``main`` is in the form that ``CallTIRRewrite`` leaves: ``a = alloc_tensor(...)``, then calls of
kernels and host functions that read and write such tensors. Every call is a step. The two branches
of an ``If`` are numbered one after the other, so that what lives in one of them only never meets
what lives in the other only, and what was made before lives as long as the later branch needs it.

Two kinds of knowledge about a value:

- it *is* an allocation: the allocation itself, under another name or reshaped;
- it *may touch* allocations: the result of an unknown function may be one of its arguments, that
  of an ``If`` is one branch's or the other's.

Every allocation lives until the last step that may touch it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tvm import relax, tirx
from tvm.ir import Call, GlobalVar, PrimType

from uif_tvm.compiler.memory.workspace_calls import kernel_of
from uif_tvm.relax_util import HOST_FUNCTIONS, op_name

_ALLOC = "relax.builtin.alloc_tensor"
#: Another shape over the same bytes.
_SAME_BYTES = frozenset({"relax.reshape", "relax.memory.ensure_zero_offset"})
#: Results that hold no tensor, whatever the arguments.
_NO_TENSOR = frozenset({"relax.shape_of", "relax.tensor_to_shape", "relax.null_value"})
GETTER = "vm.builtin.tuple_getitem"


@dataclass(eq=False)
class Allocation:
    """Memory of one value: an ``alloc_tensor`` of ``main``, or a weight.

    Args:
        var: the variable it is bound to (of a weight: the first one).
        source: the value's name in the model, as far as the IR has kept it.
        first, end: steps of its first use, and after its last.
        branches: how many ``If`` branches it stands in.
        weight: place among the weights; ``None`` of what ``main`` allocates.
        uses: the steps that use it.
    """

    var: Any
    source: str
    first: int = -1
    end: int = -1
    branches: int = 0
    weight: int | None = None
    uses: list[int] = field(default_factory=list)

    @property
    def shape(self) -> tuple[Any, ...]:
        """Extents; integers, or expressions of symbolic sizes."""
        return tuple(
            int(extent.value) if isinstance(extent, tirx.IntImm) else extent
            for extent in self.var.ty.shape.values
        )

    @property
    def dtype(self) -> str:
        """Element type."""
        return str(self.var.ty.dtype.dtype)

    @property
    def is_static(self) -> bool:
        """Whether every extent is known."""
        return all(isinstance(extent, int) for extent in self.shape)


@dataclass(frozen=True)
class Origin:
    """What a value is, and what it may touch. See the module text."""

    exact: Allocation | None = None
    touches: frozenset[Allocation] = frozenset()
    #: Of a tuple that is known: its fields'.
    fields: tuple[Origin, ...] | None = None


_NOTHING = Origin()


@dataclass
class Liveness:
    """Everything that is known about ``main``.

    Args:
        steps: name of the kernel or function that each step calls.
        allocations: in the order in which they stand.
        weights: by their place among the weights.
        outputs: origin of each field of the result.
        views: (name of a value, the allocation that it is in another shape).
        origins: of every variable.
        functions: whether functions are values here, which may hold on to what they saw.
    """

    steps: list[str] = field(default_factory=list)
    allocations: list[Allocation] = field(default_factory=list)
    weights: dict[int, Allocation] = field(default_factory=dict)
    outputs: tuple[Origin, ...] = ()
    views: list[tuple[str, Allocation]] = field(default_factory=list)
    origins: dict[Any, Origin] = field(default_factory=dict)
    functions: bool = False


def analyse(main: relax.Function) -> Liveness:
    """Liveness of ``main``, in the form described in the module text."""
    walk = _Walk(main.params[-1] if main.params else None)
    result = walk.sequence(main.body)
    walk.touch(result, len(walk.live.steps))
    walk.live.outputs = result.fields if result.fields is not None else (result,)
    walk.live.origins = walk.origins
    # What nothing uses still needs a place to be written to, for one step.
    for item in walk.live.allocations:
        if item.first < 0:
            item.first, item.end = 0, 1
    return walk.live


class _Walk:
    def __init__(self, weights: Any) -> None:
        self.live = Liveness()
        self._weights = weights
        self.origins: dict[Any, Origin] = {}
        self._allocations: dict[Any, Allocation] = {}
        self._depth = 0

    def sequence(self, seq: Any) -> Origin:
        """Walk a block of code; returns the origin of its value."""
        for block in seq.blocks:
            for binding in block.bindings:
                self.origins[binding.var] = self._bound(binding.var, binding.value)
        return self._of(seq.body)

    def touch(self, origin: Origin, step: int) -> None:
        """All that ``origin`` may touch is alive at ``step``."""
        for item in origin.touches:
            if item.first < 0:
                item.first = step
            item.end = max(item.end, step + 1)
            if item.uses[-1:] != [step]:
                item.uses.append(step)

    def _bound(self, var: Any, value: Any) -> Origin:
        if isinstance(value, relax.If):
            return self._branches(value)
        if isinstance(value, Call):
            return self._call(var, value)
        if isinstance(value, relax.Function | GlobalVar):
            self.live.functions = True
        origin = self._of(value)
        made = origin.exact
        if made is not None and made.weight is None and made.source == made.var.name:
            made.source = var.name  # of several names the first is the value's own
        return origin

    def _branches(self, value: relax.If) -> Origin:
        self.touch(self._of(value.cond), len(self.live.steps))
        self._depth += 1
        first, second = self.sequence(value.true_branch), self.sequence(value.false_branch)
        self._depth -= 1
        return _either(first, second)

    def _call(self, var: Any, call: Call) -> Origin:
        name = op_name(call)
        if name == _ALLOC:
            made = Allocation(var, var.name, branches=self._depth)
            self.live.allocations.append(made)
            return Origin(made, frozenset({made}))
        args = [self._of(arg) for arg in call.args]
        if name in _SAME_BYTES:
            if args[0].exact is not None and args[0].exact.weight is None:
                self.live.views.append((var.name, args[0].exact))
            return args[0]
        function = getattr(call.op, "global_symbol", None)
        if function == GETTER:
            if call.args[0].same_as(self._weights):
                return self._weight(var, int(call.args[1].value))
            return _union(args)
        step = len(self.live.steps)
        for origin in args:
            self.touch(origin, step)
        if not is_step(call):
            return _NOTHING
        kernel = kernel_of(call)
        self.live.steps.append(kernel.name_hint if kernel is not None else _step_name(call))
        return _NOTHING if holds_no_tensor(var.ty) else _union(args)

    def _weight(self, var: Any, index: int) -> Origin:
        made = self.live.weights.setdefault(index, Allocation(var, var.name, weight=index))
        return Origin(made, frozenset({made}))

    def _of(self, value: Any) -> Origin:
        if isinstance(value, relax.Tuple):
            return _tuple([self._of(item) for item in value.fields])
        if isinstance(value, relax.TupleGetItem):
            whole = self._of(value.tuple_value)
            if whole.fields is not None:
                return whole.fields[int(value.index)]
            return Origin(touches=whole.touches)
        return self.origins.get(value, _NOTHING) if isinstance(value, relax.Var) else _NOTHING


def _tuple(parts: list[Origin]) -> Origin:
    return Origin(touches=_union(parts).touches, fields=tuple(parts))


def _union(parts: Iterable[Origin]) -> Origin:
    found: frozenset[Allocation] = frozenset()
    for part in parts:
        found |= part.touches
    return Origin(touches=found)


def _either(first: Origin, second: Origin) -> Origin:
    exact = first.exact if first.exact is second.exact else None
    fields = None
    if first.fields is not None and second.fields is not None:
        fields = tuple(map(_either, first.fields, second.fields))
    return Origin(exact, first.touches | second.touches, fields)


def is_step(call: Call) -> bool:
    """Whether ``call`` is a step: not so are allocations, views, and what reads no elements."""
    name = op_name(call)
    getter = getattr(call.op, "global_symbol", None) == GETTER
    return not getter and name != _ALLOC and name not in _SAME_BYTES | _NO_TENSOR


def holds_no_tensor(ty: Any) -> bool:
    """Whether values of a type hold no tensor, so that they share memory with nothing."""
    if isinstance(ty, relax.TupleType):
        return all(map(holds_no_tensor, ty.fields))
    return isinstance(ty, relax.ShapeType | PrimType)


def _step_name(call: Call) -> str:
    """What a call that is no kernel's does."""
    function = str(getattr(call.op, "global_symbol", ""))
    if function.startswith(HOST_FUNCTIONS):
        return f"host:{getattr(call.args[0], 'value', function)}"
    return op_name(call) or function or "call"
