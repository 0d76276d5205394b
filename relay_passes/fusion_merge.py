"""Several calls of kernels as one kernel: ``b = f(a); c = g(b)  ->  c = fused_f_g(a)``.

The merged kernel is TVM's ``FuseTIR`` of a Relax function over the calls: their loop nests one
after the other, intermediate results in buffers of the kernel, which its schedule then dissolves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import Call, GlobalVar
from uif_tvm.relay_passes.fusion_graph import Node

#: Parts of a merged kernel's name; longer ones end in the number of what is left out.
_NAMED_PARTS = 12


@dataclass(frozen=True)
class Merged:
    """A merged kernel and what one call of it is given.

    Args:
        name: its name, the same for equal kernels.
        func: the kernel.
        arguments: operands of the call: tensors first, then extents of run time.
    """

    name: str
    func: tirx.PrimFunc
    arguments: list[Any]


class Merger:
    """Merges calls of the kernels of one module; equal merges give one kernel."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self._mod = mod
        self._known: dict[Any, tuple[str, tirx.PrimFunc]] = {}
        self._by_hash: dict[int, list[tuple[str, tirx.PrimFunc]]] = {}
        self._taken = {var.name_hint for var in mod.functions}

    def merge(self, members: Sequence[Node]) -> Merged:
        """One kernel for ``members``, in the order of :func:`ordered`; the last has the result."""
        made = {node: position for position, node in enumerate(members)}
        arguments: list[Any] = []
        wiring = tuple(
            (node.facts.name, tuple(_source(node, at, made, arguments) for at in range(
                len(node.producers)))) for node in members
        )  # fmt: skip
        symbols: list[Any] = []
        if all(node.facts.static for node in members):
            key: Any = wiring
            found = self._known.get(key)
        else:
            key, found = None, None  # kernels of open extents: told apart by their code
        if found is None:
            func, symbols = self._fuse(members, made, arguments)
            found = self._named(members, func)
            if key is not None:
                self._known[key] = found
        return Merged(*found, [*arguments, *symbols])

    def _named(self, members: Sequence[Node], func: tirx.PrimFunc) -> tuple[str, tirx.PrimFunc]:
        same = self._by_hash.setdefault(tvm_ffi.structural_hash(func), [])
        for known in same:
            if tvm_ffi.structural_equal(known[1], func):
                return known
        parts = [node.facts.name for node in members]
        rest = len(parts) - _NAMED_PARTS
        hint = "_".join(["fused", *parts[:_NAMED_PARTS], *([f"{rest}_more"] if rest > 0 else [])])
        name, count = hint, 0
        while name in self._taken:
            count += 1
            name = f"{hint}_{count}"
        self._taken.add(name)
        same.append((name, func))
        return same[-1]

    def _fuse(
        self, members: Sequence[Node], made: dict[Node, int], arguments: list[Any]
    ) -> tuple[tirx.PrimFunc, list[Any]]:
        """The merged kernel, and the extents of run time that it needs beside its operands."""
        params = [
            relax.Var(str(getattr(arg, "name", f"constant_{at}")), arg.ty)
            for at, arg in enumerate(arguments)
        ]
        builder = relax.BlockBuilder()
        inner: dict[Node, Any] = {}
        rows: list[Any] = []
        for node in members:
            operands = []
            for at, arg in enumerate(node.operands):
                place = _source(node, at, made, arguments)
                if place[0] == "argument":
                    operands.append(params[place[1]])
                elif place[0] == "extent":
                    operands.append(arg)
                else:
                    value = inner[members[place[1]]]
                    if isinstance(value.ty, relax.TupleType):
                        item = relax.DataflowVar(f"item_{len(rows)}", value.ty.fields[place[2]])
                        rows.append(relax.VarBinding(item, relax.TupleGetItem(value, place[2])))
                        value = item
                    operands.append(value)
            call = Call(node.call.op, [node.call.args[0], relax.Tuple(operands)],
                        node.call.attrs, node.call.ty_args)  # fmt: skip
            kind = relax.Var if node is members[-1] else relax.DataflowVar
            inner[node] = kind(node.source, node.var.ty)
            rows.append(relax.VarBinding(inner[node], builder.normalize(call)))
        result = inner[members[-1]]
        body = relax.SeqExpr([relax.DataflowBlock(rows)], result)
        attrs = tvm.ir.make_node("ir.DictAttrs", Primitive=True)
        function = relax.Function(params, body, result.ty, True, attrs)
        symbols = list(relax.analysis.free_symbolic_vars(function))
        if symbols:
            extra = relax.Var("extents", relax.ShapeType(symbols))
            function = relax.Function([*params, extra], body, result.ty, True, attrs)
        functions = {node.call.args[0]: node.facts.func for node in members}
        return _fuse_tir(functions, function), symbols


def _fuse_tir(kernels: dict[Any, Any], function: relax.Function) -> tirx.PrimFunc:
    """The kernel that ``FuseTIR`` makes of a function over calls of ``kernels``."""
    name = GlobalVar("merged")
    relax.expr._update_type(name, function.ty)
    # TVM drops functions that nothing calls: a caller with the same parameters keeps it.
    params = [relax.Var(param.name, param.ty) for param in function.params]
    call = relax.BlockBuilder().normalize(Call(name, params))
    result = relax.Var("result", call.ty)
    block = relax.BindingBlock([relax.VarBinding(result, call)])
    attrs = tvm.ir.make_node("ir.DictAttrs", global_symbol="main")
    caller = relax.Function(params, relax.SeqExpr([block], result), call.ty, True, attrs)
    fused = relax.transform.FuseTIR()(
        tvm.IRModule({**kernels, name: function, GlobalVar("main"): caller})
    )
    return fused["merged"]


def ordered(members: Sequence[Node]) -> list[Node]:
    """The members in order, with those that only an epilogue needs behind their anchor.

    Schedules fold element-wise blocks behind the anchor into its result; in front of it they
    would be passes of their own.
    """
    inside = set(members)
    rows = sorted(members, key=lambda node: node.index)
    anchor = next((node for node in rows if node.facts.family is not None), None)
    if anchor is None:
        return rows
    before = {anchor}
    pending = [anchor]
    while pending:
        for made in pending.pop().producers:
            if made is not None and made[0] in inside and made[0] not in before:
                before.add(made[0])
                pending.append(made[0])
    return sorted(rows, key=lambda node: (node not in before, node.index))


def call_of(merged: Merged, variable: GlobalVar, output: Node) -> Call:
    """The call of a merged kernel that computes ``output``."""
    return Call(
        output.call.op, [variable, relax.Tuple(merged.arguments)], output.call.attrs,
        output.call.ty_args,
    )  # fmt: skip


def _source(
    node: Node, position: int, made: dict[Node, int], arguments: list[Any]
) -> tuple[Any, ...]:
    """Where an operand comes from: a member's result, an argument (added when new), an extent."""
    producer = node.producers[position]
    if producer is not None and producer[0] in made:
        return ("member", made[producer[0]], producer[1])
    value = node.operands[position]
    if not isinstance(getattr(value, "ty", None), relax.TensorType):
        return ("extent", position)
    for at, known in enumerate(arguments):
        if known.same_as(value):
            return ("argument", at)
    arguments.append(value)
    return ("argument", len(arguments) - 1)
