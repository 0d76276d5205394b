"""The calls of kernels in one block of bindings, and who reads whose result."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tvm import relax, tirx
from tvm.ir import Call, GlobalVar
from uif_tvm.relay_passes.fusion_facts import KernelFacts, Reading

from uif_tvm.compiler.gain import tensor_bytes
from uif_tvm.relax_util import host_function, host_op, op_name


@dataclass(eq=False)
class Node:
    """One call of a kernel.

    Args:
        index: number of the call in its block, in order.
        var: the variable that holds the result.
        call: the call.
        facts: the kernel.
        producers: for each operand, (node, number of its result) or ``None`` when it comes from
            outside of the block's kernels.
        readers: nodes that read the result, in order.
        outside: who else reads it, in words; empty when nobody does.
        alone: why the node must stay alone, in words; empty when it need not.
    """

    index: int
    var: Any
    call: Call
    facts: KernelFacts
    producers: list[tuple[Node, int] | None]
    readers: list[Node] = field(default_factory=list)
    outside: str = ""
    alone: str = ""

    @property
    def source(self) -> str:
        """Name of the result in the model."""
        return str(self.var.name)

    @cached_property
    def fields(self) -> list[Any]:
        """Types of the results."""
        ty = self.var.ty
        return list(ty.fields) if isinstance(ty, relax.TupleType) else [ty]

    @cached_property
    def shape(self) -> tuple[int | None, ...]:
        """Extents of the first result, ``None`` for those of run time."""
        return extents_of(self.fields[0])

    @cached_property
    def bytes(self) -> float:
        """Size of the results; extents of run time count once."""
        return sum(tensor_bytes(ty) for ty in self.fields)

    @property
    def operands(self) -> list[Any]:
        """The operands as they stand in the call."""
        return list(self.call.args[1].fields)

    def readings(self, producer: Node) -> list[Reading]:
        """How this node reads each of the operands that ``producer`` makes."""
        return [
            self.facts.reading(position)
            for position, made in enumerate(self.producers)
            if made is not None and made[0] is producer
        ]


def extents_of(ty: Any) -> tuple[int | None, ...]:
    """Extents of a tensor type, ``None`` for those of run time; empty when the rank is open."""
    values = getattr(getattr(ty, "shape", None), "values", None) or ()
    return tuple(int(v.value) if isinstance(v, tirx.IntImm) else None for v in values)


def blocks_of(func: relax.Function) -> Iterator[Any]:
    """Every block of bindings of ``func``, those of branches included."""

    def walk(seq: Any) -> Iterator[Any]:
        for block in seq.blocks:
            yield block
            for binding in block.bindings:
                value: Any = getattr(binding, "value", None)
                if isinstance(value, relax.If):
                    yield from walk(value.true_branch)
                    yield from walk(value.false_branch)

    yield from walk(func.body)


def result_bytes(expr: Any) -> float:
    """Bytes of all tensors of an expression's type; extents of run time count once."""
    ty = expr.ty
    fields = ty.fields if isinstance(ty, relax.TupleType) else [ty]
    return sum(
        tensor_bytes(field)
        for field in fields
        if isinstance(field, relax.TensorType) and field.dtype is not None
    )


def kernel_graph(
    block: Any, facts: dict[str, KernelFacts], uses: dict[Any, list[str]]
) -> list[Node]:
    """The kernels that ``block`` calls, in order.

    Args:
        uses: variable -> for each reader other than a kernel's call, who that is
            (:func:`outside_uses`).
    """
    nodes: list[Node] = []
    made: dict[Any, tuple[Node, int]] = {}
    for binding in block.bindings:
        value: Any = getattr(binding, "value", None)
        if is_kernel_call(value):
            producers = [made.get(arg) if isinstance(arg, relax.Var) else None
                         for arg in value.args[1].fields]  # fmt: skip
            node = Node(len(nodes), binding.var, value, facts[value.args[0].name_hint], producers)
            for producer in dict.fromkeys(p[0] for p in producers if p is not None):
                producer.readers.append(node)
            node.outside = ", ".join(dict.fromkeys(uses[binding.var]))
            nodes.append(node)
            made[binding.var] = (node, 0)
        elif isinstance(value, relax.TupleGetItem) and value.tuple_value in made:
            node = made[value.tuple_value][0]
            made[binding.var] = (node, int(value.index))
            readers = [node.outside, *uses[binding.var]]
            node.outside = ", ".join(dict.fromkeys(filter(None, readers)))
    return nodes


def is_kernel_call(value: Any) -> bool:
    """Whether a binding's value calls a kernel."""
    return (
        isinstance(value, Call)
        and op_name(value) == "relax.call_tir"
        and isinstance(value.args[0], GlobalVar)
    )


def outside_uses(func: relax.Function) -> dict[Any, list[str]]:
    """Variable -> its readers other than kernels of its own block, in words."""
    found: dict[Any, list[str]] = defaultdict(list)
    home: dict[Any, int] = {}

    def note(expr: Any, who: str) -> None:
        def visit(node: Any) -> None:
            if isinstance(node, relax.Var):
                found[node].append(who)

        relax.analysis.post_order_visit(expr, visit)

    def walk(seq: Any, result: str) -> None:
        for block in seq.blocks:
            for binding in block.bindings:
                home[binding.var] = id(block)
                visit(binding, id(block))
        note(seq.body, result)

    def visit(binding: Any, block: int) -> None:
        value: Any = getattr(binding, "value", None)
        if isinstance(value, relax.If):
            note(value.cond, "a condition")
            walk(value.true_branch, "the result of a branch")
            walk(value.false_branch, "the result of a branch")
        elif is_kernel_call(value):
            for arg in value.args[1].fields:
                if home.get(arg, block) != block:
                    found[arg].append(f"kernel {value.args[0].name_hint} of another block")
        elif isinstance(value, relax.TupleGetItem):
            if home.get(value.tuple_value, block) != block:
                found[value.tuple_value].append("another block")
        elif isinstance(value, relax.Tuple) and not isinstance(binding.var, relax.DataflowVar):
            note(value, "the model's results")
        elif value is not None:
            note(value, _reader(value))

    walk(func.body, "the model's results")
    return found


def _reader(value: Any) -> str:
    if not isinstance(value, Call):
        return f"a {type(value).__name__}"
    if host_function(value) is not None:
        return f"host operator {host_op(value)}"
    return f"operator {op_name(value) or value.op}"
