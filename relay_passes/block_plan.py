"""Which operators of a function take their blocked form: a minimum cut over layout changes.

A choice ``x_v`` (1: blocked) for every operator that has a blocked form, with costs

    x_v = 0                  what a convolution loses without its kernel
    x_v = 1                  bytes of padding lanes that v moves in vain past the caches
    x_p = 1, some x_c = 0    one change of p's result to plain layout; c are its readers
    x_p = 0, some x_c = 1    one change of it to blocks
    x_p != x_c, c fuses      what p writes and c reads again, and c's launch

Inputs, results and operators without a blocked form have ``x = 0``. Everything is priced by the
target's roofline, so a small convolution between operators of plain layout stays plain when the
layout changes that it forces cost more than its kernel gains.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from tvm import relax
from tvm.ir import Call

from uif_tvm.compiler.gain import Gain
from uif_tvm.compiler.min_cut import NEVER, Choices
from uif_tvm.kernels.layout import blocks
from uif_tvm.relax_util import bindings, calls, op_name, static_shape

if TYPE_CHECKING:
    import tvm

    from uif_tvm.compiler.context import CompileContext


@dataclass
class Step:
    """What the trial found out about one operator.

    Args:
        blocked: it has a blocked form.
        reads: variables that it reads in blocked form then.
        unread: operands that its blocked form does not read at all.
        worth_us: what it loses in plain layout, layout changes aside; below 0 what it gains.
        fuses: it becomes part of a neighbour's kernel when both have one layout.
        plain_result: its result has no channels left to be in blocks.
    """

    blocked: bool = False
    reads: set[Any] = field(default_factory=set)
    unread: set[Any] = field(default_factory=set)
    worth_us: float = 0.0
    fuses: bool = False
    plain_result: bool = False


@dataclass
class Trace:
    """All of a trial: steps by variable, variables refused with a reason, channels per block."""

    steps: dict[Any, Step] = field(default_factory=dict)
    refused: set[Any] = field(default_factory=set)
    width: int = 0


@dataclass
class _Value:
    """A tensor of the function: what makes it (``None``: an input) and who reads it how."""

    var: Any
    maker: Any
    blocked: list[Any] = field(default_factory=list)
    plain: bool = False


class _Prices:
    """Layout costs on a target, in microseconds."""

    def __init__(self, ctx: CompileContext, width: int) -> None:
        self._ctx, self._width = ctx, width

    def _us(self, moved: float, launches: float = 0.0) -> float:
        return Gain(bytes=moved, launches=launches).microseconds(self._ctx.target)

    def bytes(self, var: Any) -> tuple[int, int]:
        """(plain, blocked) bytes of a tensor; 0 where no shape is known."""
        shape = static_shape(var)
        if shape is None or len(shape) < 2:
            return 0, 0
        size = _itemsize(var)
        padded = blocks(shape[1], self._width) * self._width
        return prod(shape) * size, prod((shape[0], padded, *shape[2:])) * size

    def change(self, var: Any) -> float:
        """One layout change of ``var``; whole blocks of single pixels are only renamed."""
        shape = static_shape(var) or ()
        if len(shape) > 2 and shape[1] % self._width == 0 and prod(shape[2:]) == 1:
            return 0.0
        return self._us(sum(self.bytes(var)), 1)

    def padding(self, var: Any) -> float:
        """Lanes without a channel, written and read; next to nothing in a core's cache."""
        plain, blocked = self.bytes(var)
        if blocked <= self._ctx.target.machine.l2_bytes:
            return 0.0
        return self._us(2 * (blocked - plain))

    def apart(self, var: Any) -> float:
        """What is lost when the reader of ``var`` is not fused with its maker."""
        return self._us(2 * self.bytes(var)[0], 1)


def choose(func: relax.Function, trace: Trace, ctx: CompileContext, name: str) -> set[Any]:
    """Variables of ``func`` to compute in blocked layout; every region's profit is reported."""
    steps = {b.var: trace.steps[b.var] for b in bindings(func) if b.var in trace.steps}
    if not steps:
        return set()
    prices = _Prices(ctx, trace.width)
    values = _values(func, steps)
    choices = Choices()
    node = {
        var: choices.node(yes=max(-step.worth_us, 0.0), no=max(step.worth_us, 0.0))
        for var, step in steps.items()
    }
    for value in values:
        _price(value, choices, node, steps, prices)
    solved = choices.solve()
    chosen = {var for var, index in node.items() if index in solved}
    for region in _regions(steps, values):
        _report(region, steps, values, chosen, prices, ctx, name)
    return chosen


def _price(
    value: _Value,
    choices: Choices,
    node: dict[Any, int],
    steps: dict[Any, Step],
    prices: _Prices,
) -> None:
    """Costs of one tensor: its padding, and its layout changes, each made once for all readers."""
    change, made = prices.change(value.var), node.get(value.maker)
    if made is not None:
        choices.cost(made, yes=prices.padding(value.var))
        only_blocked = choices.node(yes=NEVER if value.plain else 0.0)
        for reader in value.blocked:
            choices.apart(only_blocked, node[reader], NEVER)
        choices.apart(made, only_blocked, change)
    if value.blocked:
        some_blocked = choices.node(yes=change if made is None else 0.0)
        for reader in value.blocked:
            choices.apart(node[reader], some_blocked, NEVER)
        if made is not None:
            choices.apart(some_blocked, made, change)
    for reader in value.blocked:
        if steps[reader].fuses and made is not None:
            choices.apart(node[reader], made, prices.apart(value.var))
            choices.apart(made, node[reader], prices.apart(value.var))


def _values(func: relax.Function, steps: dict[Any, Step]) -> list[_Value]:
    """Tensors that some operator with a blocked form makes or reads, with their readers."""
    makers: dict[Any, Any] = {}
    parts: dict[Any, list[Any]] = {}
    found: dict[Any, _Value] = {}

    def value(var: Any) -> _Value:
        return found.setdefault(var, _Value(var, makers.get(var)))

    def plain(expr: Any) -> None:
        for var in _variables(expr):
            for leaf in parts.get(var, [var]):
                value(leaf).plain = True

    for binding in bindings(func):
        var, bound = binding.var, getattr(binding, "value", None)
        step = steps.get(var)
        if step is not None:
            if not step.plain_result:
                makers[var] = var
            unread = step.unread | step.reads
            for reader in step.reads:
                value(reader).blocked.append(var)
            for used in _variables(bound):
                for leaf in parts.get(used, [used]):
                    if leaf not in unread:
                        value(leaf).plain = True
        elif isinstance(bound, relax.TupleGetItem) and bound.tuple_value in steps:
            makers[var] = bound.tuple_value
        elif isinstance(bound, relax.If):
            # Its inner bindings come by themselves.
            for used in (bound.cond, bound.true_branch.body, bound.false_branch.body):
                plain(used)
        elif isinstance(bound, relax.Tuple):
            parts[var] = [leaf for v in _variables(bound) for leaf in parts.get(v, [v])]
        elif bound is not None:
            plain(bound)
    plain(func.body.body)
    return [v for v in found.values() if v.maker is not None or v.blocked]


def _variables(expr: Any) -> list[Any]:
    """The variables that ``expr`` mentions, inner scopes included."""
    seen: dict[Any, None] = {}

    def visit(node: Any) -> None:
        if isinstance(node, relax.Var):
            seen[node] = None

    relax.analysis.post_order_visit(expr, visit)
    return list(seen)


def _regions(steps: dict[Any, Step], values: list[_Value]) -> Iterator[list[Any]]:
    """Operators connected by tensors that they make or read blocked, in order."""
    parent = {var: var for var in steps}

    def root(var: Any) -> Any:
        while parent[var] is not var:
            parent[var] = var = parent[parent[var]]
        return var

    for value in values:
        members = [v for v in (value.maker, *value.blocked) if v is not None]
        for member in members[1:]:
            parent[root(member)] = root(members[0])
    regions: dict[Any, list[Any]] = defaultdict(list)
    for var in steps:
        regions[root(var)].append(var)
    yield from regions.values()


def _report(
    region: list[Any],
    steps: dict[Any, Step],
    values: list[_Value],
    chosen: set[Any],
    prices: _Prices,
    ctx: CompileContext,
    name: str,
) -> None:
    """The decision on a region: bytes converted as chosen, and with every kernel on its own."""
    inside = set(region)
    near = [v for v in values if v.maker in inside or inside.intersection(v.blocked)]
    kernels = {var for var in region if steps[var].worth_us}
    alone, alone_us = _conversions(near, kernels, prices)
    kept, kept_us = _conversions(near, chosen, prices)
    taken = [var for var in region if var in chosen]
    for var in kernels - chosen:
        ctx.report.decide(
            name,
            str(var.name),
            False,
            f"kept in plain layout: a blocked kernel would save {steps[var].worth_us:.3g} us, "
            "less than the layout changes around it cost",
            gain_us=0.0,
        )
    if not taken:
        return
    saved = Gain(bytes=2 * (alone - kept))
    reason = (
        f"region of {len(taken)} operators from {taken[0].name} to {taken[-1].name}: {kept} bytes "
        f"change layout, {alone} with every convolution on its own"
    )
    worth = sum(steps[var].worth_us for var in taken)
    ctx.report.decide(
        name, str(taken[0].name), True, reason, alone_us - kept_us + worth, **saved.figures()
    )


def _conversions(values: list[_Value], blocked: set[Any], prices: _Prices) -> tuple[int, float]:
    """(bytes of the plain tensors that change layout, microseconds) with ``blocked`` chosen."""
    total, micros = 0, 0.0
    for value in values:
        readers = {reader in blocked for reader in value.blocked} | (
            {False} if value.plain else set()
        )
        made = value.maker in blocked
        if readers - {made}:
            total += prices.bytes(value.var)[0]
            micros += prices.change(value.var)
    return total, micros


def explain(mod: tvm.IRModule, ctx: CompileContext, name: str, changes: tuple[str, ...]) -> None:
    """One decision for each layout change that remains: how large, and who needs it."""
    users: dict[Any, list[str]] = defaultdict(list)
    for func in mod.functions.values():
        if not isinstance(func, relax.Function):
            continue
        for binding in bindings(func):
            value = getattr(binding, "value", None)
            what = _kernel(value) if isinstance(value, Call) else None
            inner = value is None or isinstance(value, relax.If)
            for var in [] if inner else _variables(value):
                users[var].append(f"{binding.var.name} ({what})" if what else binding.var.name)
        for var in _variables(func.body.body):
            users[var].append("the result")
    found = [(v, c) for v, c in calls(mod) if (_kernel(c) or "").startswith(changes)]
    total = 0
    for var, call in found:
        shape = static_shape(var) or ()
        moved = prod(shape) * _itemsize(var)
        total += moved
        readers = ", ".join(dict.fromkeys(users[var])) or "nobody"
        # What it costs is part of its region's price; here it is a change that nobody took away.
        cost = -Gain(bytes=-2 * moved, launches=-1).microseconds(ctx.target)
        reason = f"{_kernel(call)} of {moved} bytes remains ({cost:.3g} us), for {readers}"
        ctx.report.decide(name, str(var.name), False, reason)
    if found:
        ctx.report.decide(name, "main", True, f"{len(found)} layout changes remain, {total} bytes")


def _kernel(call: Call) -> str | None:
    """Name of the kernel or operator that a call applies."""
    operator = op_name(call)
    return str(call.args[0].name_hint) if operator == "relax.call_tir" else operator


def _itemsize(var: Any) -> int:
    """Bytes of one element, a whole byte at least."""
    return max(1, -(-int(var.ty.dtype.dtype.bits) // 8))
