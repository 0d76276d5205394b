"""How much memory a lowered model needs: the most that is alive at once over one run."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.ir import Call

from uif_tvm.artifact.memory_plan import MemoryPlan
from uif_tvm.relax_util import op_name

#: Storages behind an object, each with its bytes.
Storages = dict[Any, int]

#: Functions of the virtual machine whose names start so may return what they were given.
_BUILTIN = "vm.builtin."


class _Unknown(Exception):
    """A size is computed at run time."""


def planned_bytes(
    mod: tvm.IRModule, weights: Iterable[np.ndarray[Any, Any]], plan: MemoryPlan | None = None
) -> dict[str, int]:
    """Bytes by kind of ``main`` with explicit storage, lowered for the virtual machine.

    Returns:
        ``weights``; with a plan ``arena``; and ``activations``: the arena, the storages alive at
        once at their peak, the results, and the copies of results that share another tensor's
        memory. The latter is missing where a size is known at run time only.
    """
    sizes = {"weights": sum(array.nbytes for array in weights)}
    if plan is not None:
        sizes["arena"] = plan.arena_bytes
    if sum(isinstance(func, relax.Function) for func in mod.functions.values()) > 1:
        return sizes  # what other functions hold during a call is not followed
    with contextlib.suppress(_Unknown):
        planned = plan.arena_bytes + plan.result_bytes if plan is not None else 0
        sizes["activations"] = planned + _peak(mod["main"])
    return sizes


def _peak(main: relax.Function) -> int:
    walk = _Walk()
    alive: dict[Any, Storages] = {}
    result = walk.sequence(main.body, alive)
    # At the end the engine copies what is an input, a weight or another result.
    copies, seen = 0, set()
    types = getattr(main.ret_ty, "fields", [])
    for part, ty in zip(walk.parts.get(main.body.body, []), types, strict=False):
        storages = frozenset(part)
        if not storages or storages in seen:
            copies += _tensor_bytes(ty)
        seen.add(storages)
    return max(walk.peak, _total([result, *alive.values()]) + copies)


class _Walk:
    """Runs over the bindings in order with the storages that each variable keeps alive."""

    def __init__(self) -> None:
        self.peak = 0
        #: Tuple variable -> the storages of its fields.
        self.parts: dict[Any, list[Storages]] = {}

    def sequence(self, seq: Any, alive: dict[Any, Storages]) -> Storages:
        """Storages behind the value of ``seq``; ``alive`` is changed to what lives after it."""
        for block in seq.blocks:
            for binding in block.bindings:
                value = binding.value
                if isinstance(value, Call) and op_name(value) == "relax.vm.kill_object":
                    alive.pop(value.args[0], None)
                    continue
                if isinstance(value, relax.If):
                    alive[binding.var] = self._branches(value, alive)
                elif isinstance(value, Call) and op_name(value) == "relax.vm.alloc_storage":
                    alive[binding.var] = {binding.var: _extent_bytes(value.args[0])}
                else:
                    alive[binding.var] = self._behind(value, alive)
                if isinstance(value, relax.Tuple):
                    self.parts[binding.var] = [self._behind(f, alive) for f in value.fields]
                self.peak = max(self.peak, _total(alive.values()))
        if isinstance(seq.body, relax.Tuple):
            self.parts[seq.body] = [self._behind(f, alive) for f in seq.body.fields]
        return self._behind(seq.body, alive)

    def _branches(self, value: relax.If, alive: dict[Any, Storages]) -> Storages:
        """Both branches count for the peak; the one that leaves more alive goes on."""
        ends = []
        for branch in (value.true_branch, value.false_branch):
            after = dict(alive)
            result = self.sequence(branch, after)
            ends.append((_total([result, *after.values()]), result, after))
        _, result, after = max(ends, key=lambda end: end[0])
        alive.clear()
        alive.update(after)
        return result

    def _behind(self, value: Any, alive: dict[Any, Storages]) -> Storages:
        """The storages that the object ``value`` refers to."""
        if isinstance(value, relax.Tuple):
            return _union(self._behind(field, alive) for field in value.fields)
        if isinstance(value, relax.TupleGetItem):
            parts = self.parts.get(value.tuple_value)
            return parts[value.index] if parts else alive.get(value.tuple_value, {})
        if not isinstance(value, Call):
            return alive.get(value, {})
        name = op_name(value)
        builtin = isinstance(value.op, relax.ExternFunc) and str(value.op.global_symbol).startswith(
            _BUILTIN
        )
        if name is None and not builtin:
            return {}  # kernels and host operators write to arguments and return nothing
        return _union(self._behind(arg, alive) for arg in value.args)


def _union(parts: Iterable[Storages]) -> Storages:
    return {storage: size for part in parts for storage, size in part.items()}


def _total(parts: Iterable[Storages]) -> int:
    return sum(_union(parts).values())


def _extent_bytes(shape: Any) -> int:
    extents = getattr(shape, "values", None)
    if extents is None or not all(isinstance(extent, tirx.IntImm) for extent in extents):
        raise _Unknown
    return math.prod(int(extent.value) for extent in extents)


def _tensor_bytes(ty: Any) -> int:
    bits = getattr(getattr(ty, "dtype", None), "dtype", None)
    if bits is None:
        raise _Unknown
    return _extent_bytes(ty.shape) * -(-int(bits.bits) * int(bits.lanes) // 8)
