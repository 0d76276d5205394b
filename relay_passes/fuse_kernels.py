"""Kernel fusion: ``b = f(a); c = g(b)  ->  c = (g . f)(a)`` where that saves more than it repeats.

Which kernels become one is decided in ``fusion_group``, by what it saves (``fusion_gain``), how
kernels read their operands (``fusion_facts``) and what the target's schedules take
(``fusion_trial``); ``fusion_merge`` makes the merged kernel. Every pair of a kernel and a reader
of its result that stay apart is in the report with the reason.

Reshapes at the rim of a group are left out of it: alone they are views, which cost nothing.
Kernels that match one of ``ctx.disabled_fusion`` stay alone (``fusion_names``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax
from tvm.ir import GlobalVar
from uif_tvm.relay_passes.fusion_facts import kernel_facts
from uif_tvm.relay_passes.fusion_graph import (
    Node,
    blocks_of,
    kernel_graph,
    outside_uses,
)
from uif_tvm.relay_passes.fusion_group import Group, Grouping
from uif_tvm.relay_passes.fusion_merge import Merged, Merger, call_of, ordered
from uif_tvm.relay_passes.fusion_names import mark_disabled
from uif_tvm.relay_passes.fusion_trial import Trials

from uif_tvm.compiler.gain import Gain
from uif_tvm.compiler.graph_pass import GraphPass

if TYPE_CHECKING:
    from uif_tvm.compiler.context import CompileContext

#: Attribute of the module: fused kernel -> [kernel, source name] of each member, at its first call.
MEMBERS_ATTR = "uif.members"
#: Attribute of the module: result of a fused call -> source names of its members, in order.
SOURCES_ATTR = "uif.sources"


@dataclass(frozen=True)
class _Fusion:
    """One group and the kernel that it became."""

    group: Group
    merged: Merged


class FuseKernels(GraphPass):
    """Fuse producers and consumers into single kernels."""

    name = "fuse-kernels"
    requires = frozenset({"kernels-only"})
    ensures = frozenset({"fused"})

    def apply(self, mod: tvm.IRModule, ctx: CompileContext) -> tvm.IRModule:
        """See the module text."""
        facts = kernel_facts(mod)
        main = mod["main"]
        uses = outside_uses(main)
        graphs = [kernel_graph(block, facts, uses) for block in blocks_of(main)]
        mark_disabled([node for nodes in graphs for node in nodes], self.name, ctx)
        merger, trials = Merger(mod), Trials(ctx.target)

        def trial(members: list[Node], anchor: Node) -> str:
            if anchor.facts.family is None:
                return ""
            merged = merger.merge(ordered(members)).func
            return trials.refusal(merged, anchor.facts.func)

        fusions: list[_Fusion] = []
        for nodes in graphs:
            grouping = Grouping(nodes, ctx.target, trial)
            groups = [_trimmed(group) for group in grouping.run()]
            made = [_Fusion(group, merger.merge(ordered(group.members)))
                    for group in groups if len(group.members) > 1]  # fmt: skip
            made = [fusion for fusion in made if self._measured_to_pay(fusion, ctx)]
            fusions += made
            self._report(nodes, made, grouping, ctx)
        return _rewritten(mod, fusions) if fusions else _with_members(mod, {}, {})

    def _measured_to_pay(self, fusion: _Fusion, ctx: CompileContext) -> bool:
        """Whether measured times, where all of them are on record, speak for the merged kernel."""
        group = fusion.group
        funcs = [fusion.merged.func, *(node.facts.func for node in group.members)]
        times = [ctx.kernel_times(func) if ctx.kernel_times else None for func in funcs]
        known = [time for time in times if time is not None]
        if len(known) < len(times):
            return True
        saved = sum(known[1:]) - known[0]
        group.gain = Gain(group.gain.bytes, group.gain.launches, group.gain.flops,
                          group.gain.dtype, measured_us=saved)  # fmt: skip
        if saved <= 0:
            ctx.report.decide(
                self.name, _names(group.members), False,
                f"measured: one kernel takes {known[0]:.4g} us, the {len(group.members)} apart "
                f"{sum(known[1:]):.4g} us", gain_us=saved, **group.gain.figures(),
            )  # fmt: skip
        return saved > 0

    def _report(
        self, nodes: list[Node], fusions: list[_Fusion], grouping: Grouping, ctx: CompileContext
    ) -> None:
        home = {node: fusion for fusion in fusions for node in fusion.group.members}
        for fusion in fusions:
            gain = fusion.group.gain
            ctx.report.decide(
                self.name, _names(fusion.group.members), True, _what(fusion.group),
                gain_us=gain.microseconds(ctx.target), **gain.figures(),
            )  # fmt: skip
        for node in nodes:
            for reader in node.readers:
                if node in home and home[node] is home.get(reader):
                    continue
                reason, gain_or_none = grouping.why_apart(node, reader)
                figures = gain_or_none.figures() if gain_or_none else {}
                lost = gain_or_none.microseconds(ctx.target) if gain_or_none else None
                subject = f"{node.source} -> {reader.source}"
                ctx.report.decide(self.name, subject, False, reason, gain_us=lost, **figures)


def _what(group: Group) -> str:
    """What went into a fused kernel and what that saves, in words."""
    kernels = ", ".join(node.facts.name for node in ordered(group.members))
    inner = len(group.members) - 1
    values = "1 intermediate result" if inner == 1 else f"{inner} intermediate results"
    size = _size(group.gain.bytes)
    text = f"{kernels}: {values} inside, {size} not moved, {inner} launches saved"
    return text if group.gain.flops >= 0 else f"{text}, {-group.gain.flops:.3g} operations repeated"


def _size(count: float) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def _names(members: list[Node]) -> str:
    return ", ".join(node.source for node in members)


def _trimmed(group: Group) -> Group:
    """The group without reshapes at its rim, which are views when they stand alone."""
    members = list(group.members)
    while len(members) > 1 and (loose := _loose_reshape(members)) is not None:
        members.remove(loose)
    if len(members) == len(group.members):
        return group
    inner = Gain()
    for node in members[:-1]:
        inner += Gain(bytes=node.bytes * (1 + len(node.readers)), launches=1)
    return Group(members, group.anchor, inner)


def _loose_reshape(members: list[Node]) -> Node | None:
    """A reshape of something from outside, or the one that makes the result, if any."""
    inside = set(members)
    last = members[-1]
    if last.facts.is_reshape and not last.outside and _made_by_one(last, inside):
        return last
    for node in members[:-1]:
        made = [p for p in node.producers if p is not None and p[0] in inside]
        if node.facts.is_reshape and not made and _is_value(node):
            return node
    return None


def _made_by_one(last: Node, inside: set[Node]) -> bool:
    """Whether the rest of the group has one result when ``last`` is taken out."""
    rest = inside - {last}
    return sum(last in node.readers for node in rest) == 1


def _is_value(node: Node) -> bool:
    """Whether what the reshape reads is computed or given, not a constant."""
    return isinstance(node.operands[0], relax.Var)


def _rewritten(mod: tvm.IRModule, fusions: list[_Fusion]) -> tvm.IRModule:
    """``mod`` with the fused kernels in place of the calls that went into them."""
    functions = dict(mod.functions)
    variables: dict[str, GlobalVar] = {}
    members: dict[str, list[list[str]]] = {}
    sources: dict[str, list[str]] = {}
    values: dict[Any, Any] = {}
    gone: set[Any] = set()
    builder = relax.BlockBuilder()
    for fusion in fusions:
        rows, merged = ordered(fusion.group.members), fusion.merged
        if merged.name not in variables:
            variable = variables[merged.name] = GlobalVar(merged.name)
            relax.expr._update_type(variable, merged.func.ty)
            functions[variable] = merged.func
            members[merged.name] = [[node.facts.name, node.source] for node in rows]
        output = fusion.group.output
        call = call_of(merged, variables[merged.name], output)
        values[output.var] = builder.normalize(call)
        sources[output.source] = [node.source for node in rows]
        gone |= {node.var for node in rows} - {output.var}
    var = mod.get_global_var("main")
    functions[var] = _with_bindings(mod["main"], values, gone)
    mod = tvm.IRModule(functions, attrs=mod.attrs)
    return _with_members(relax.transform.DeadCodeElimination(["main"])(mod), members, sources)


def _with_members(
    mod: tvm.IRModule, members: dict[str, list[list[str]]], sources: dict[str, list[str]]
) -> tvm.IRModule:
    return mod.with_attr(MEMBERS_ATTR, members).with_attr(SOURCES_ATTR, sources)


def _with_bindings(func: relax.Function, values: dict[Any, Any], gone: set[Any]) -> relax.Function:
    """``func`` with some variables bound to other values and others taken out."""

    def of_sequence(seq: Any) -> Any:
        made = relax.SeqExpr([of_block(block) for block in seq.blocks], seq.body)
        relax.expr._update_type(made, seq.ty)
        return made

    def of_block(block: Any) -> Any:
        kept = [of_binding(binding) for binding in block.bindings if not is_gone(binding)]
        return type(block)(kept)

    def is_gone(binding: Any) -> bool:
        value = getattr(binding, "value", None)
        item = isinstance(value, relax.TupleGetItem) and value.tuple_value in gone
        return item or binding.var in gone

    def of_binding(binding: Any) -> Any:
        value = getattr(binding, "value", None)
        if binding.var in values:
            return relax.VarBinding(binding.var, values[binding.var])
        if isinstance(value, relax.If):
            branches = (of_sequence(value.true_branch), of_sequence(value.false_branch))
            chosen = relax.If(value.cond, *branches)
            relax.expr._update_type(chosen, value.ty)
            return relax.VarBinding(binding.var, chosen)
        return binding

    return relax.Function(
        func.params, of_sequence(func.body), func.ret_ty, func.is_pure, func.attrs
    )


PASS = FuseKernels()
