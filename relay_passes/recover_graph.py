"""A function as definitions and users, and the driver of the passes that recover operators.

A recovery pass looks at one binding after another. Its ``match`` says for a binding what operator
the graph around it spells out (:class:`Found`), that it nearly does and what is in the way
(:class:`Near`), or ``None``. What is found replaces the binding's value; the nodes that computed
it before stay for dead code elimination, since nobody reads them any more.

An operator is formed only if the target has it, and only if no intermediate value is read from
elsewhere: that one would be computed twice. Casts and views are free of this, they stay alive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import Call, GenericConst

from uif_tvm.compiler.gain import Gain, tensor_bytes
from uif_tvm.compiler.graph_pass import GraphPass
from uif_tvm.relax_util import bindings, constant_array, op_name
from uif_tvm.standard_ops import call as standard_call

if TYPE_CHECKING:
    from uif_tvm.compiler.context import CompileContext

Emit = Callable[[Any], Any]

#: Operators that cost nothing to keep alive beside the recovered one.
_FREE = frozenset({"relax.astype", "relax.reshape", "relax.expand_dims", "relax.squeeze",
                   "relax.permute_dims", "relax.broadcast_to"})  # fmt: skip
#: Operators after which fusion starts a new kernel.
_ENDS_KERNEL = frozenset(
    {"relax.mean", "relax.sum", "relax.max", "relax.min", "relax.variance", "relax.matmul",
     "relax.nn.softmax", "relax.nn.log_softmax"}
)  # fmt: skip


@dataclass(frozen=True)
class Found:
    """An operator spelled out by the graph.

    Args:
        root: variable whose value the operator, with what ``finish`` adds, replaces.
        inner: variables of the nodes that it replaces, ``root`` among them.
        op: standard name.
        operands: Relax tensors; ``None`` for optional ones left out.
        attrs: attributes of the operator.
        finish: what follows the operator: ``finish(emit, value) -> value``.
        note: said in the report beside the formula's name.
        before: bindings that compute operands.
    """

    root: Any
    inner: frozenset[Any]
    op: str
    operands: tuple[Any, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    finish: Callable[[Emit, Any], Any] | None = None
    note: str = ""
    before: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Near:
    """What kept a graph that nearly spells out an operator from being one."""

    reason: str


class Graph:
    """Definitions and users of the variables of one function; kept right under replacements."""

    def __init__(self, func: relax.Function) -> None:
        self.func = func
        self.values: dict[Any, Any] = {}
        self.users: dict[Any, list[Any]] = {}
        self.replaced: dict[Any, list[Any]] = {}
        self._builder = relax.BlockBuilder()
        for binding in bindings(func):
            value = getattr(binding, "value", None)
            if value is not None:
                # A cast of types may fail at run time: nothing is matched through it.
                self.values[binding.var] = value if isinstance(binding, relax.VarBinding) else None
                self._read(binding.var, value)
        self._read(None, func.body.body)

    def _read(self, reader: Any, value: Any) -> None:
        for var in _variables(value):
            self.users.setdefault(var, []).append(reader)

    def resolve(self, expr: Any) -> Any:
        """``expr`` without the names given to it: a variable that something computes, or itself."""
        while isinstance(expr, relax.Var):
            value = self.values.get(expr)
            if not isinstance(value, (relax.Var, GenericConst)):
                return expr
            expr = value
        return expr

    def call(self, expr: Any, *names: str) -> Call | None:
        """The call that computes ``expr``, when it is of an operator in ``names`` (or any)."""
        expr = self.resolve(expr)
        value = self.values.get(expr) if isinstance(expr, relax.Var) else None
        if not isinstance(value, Call):
            return None
        return value if not names or op_name(value) in names else None

    def single(self, expr: Any) -> bool:
        """Whether the variable is read once in all."""
        return len(self.users.get(expr, ())) == 1

    def user(self, var: Any) -> tuple[Any, Call] | None:
        """The one binding that reads ``var``, when it is a call."""
        readers = self.users.get(var, ())
        if len(readers) != 1 or readers[0] is None:
            return None
        value = self.values.get(readers[0])
        return (readers[0], value) if isinstance(value, Call) else None

    def constant(self, expr: Any) -> Any:
        """The array of a constant, else ``None``."""
        return constant_array(self.resolve(expr))

    def scalar(self, expr: Any) -> float | None:
        """The value of a constant of one element, else ``None``."""
        expr = self.resolve(expr)
        if not isinstance(expr, GenericConst):
            return None
        array = constant_array(expr)
        if array is None or array.size != 1:
            return None
        return float(array.astype("float64").reshape(()))

    def alive(self, inner: Iterable[Any], root: Any) -> set[Any]:
        """Which of ``inner`` stay alive without ``root``, for readers elsewhere."""
        inside = set(inner)
        kept = {
            var for var in inside
            if var != root and any(user not in inside for user in self.users.get(var, ()))
        }  # fmt: skip
        todo = list(kept)
        while todo:
            for var in _variables(self.values.get(todo.pop())):
                if var in inside and var not in kept:
                    kept.add(var)
                    todo.append(var)
        return kept

    def typed(self, expr: Any) -> Any:
        """``expr`` with its type inferred; variables and constants have one."""
        return self._builder.normalize(expr) if isinstance(expr, Call) else expr

    def replace(self, found: Found, kept: set[Any]) -> bool:
        """Give the root its new value; False when the types differ, and nothing changed."""
        made: list[Any] = list(found.before)

        def emit(expr: Any) -> Any:
            if isinstance(expr, relax.Var):
                return expr
            expr = self._builder.normalize(expr)
            var = relax.DataflowVar(found.root.name, expr.ty)
            made.append(relax.VarBinding(var, expr))
            return var

        operands = [None if x is None else (emit(x) if isinstance(x, Call) else x)
                    for x in found.operands]  # fmt: skip
        value = self._builder.normalize(standard_call(found.op, *operands, **found.attrs))
        if found.finish is not None:
            value = self._builder.normalize(found.finish(emit, emit(value)))
        if not tvm_ffi.structural_equal(value.ty, found.root.ty):
            return False
        self._forget(found.root)
        for var in found.inner - kept - {found.root}:
            self._forget(var)
        for binding in (*made, relax.VarBinding(found.root, value)):
            self.values[binding.var] = binding.value
            self._read(binding.var, binding.value)
        self.replaced[found.root] = [*made, relax.VarBinding(found.root, value)]
        return True

    def _forget(self, var: Any) -> None:
        for read in _variables(self.values.pop(var, None)):
            self.users[read].remove(var)

    def rebuilt(self) -> relax.Function:
        """The function with every replacement in place."""
        func = self.func
        body = self._sequence(func.body)
        return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)

    def _sequence(self, seq: Any) -> Any:
        blocks = [type(block)(list(self._bindings(block))) for block in seq.blocks]
        return self._builder.normalize(relax.SeqExpr(blocks, seq.body))

    def _bindings(self, block: Any) -> Iterator[Any]:
        for binding in block.bindings:
            value = getattr(binding, "value", None)
            if binding.var in self.replaced:
                yield from self.replaced[binding.var]
            elif isinstance(value, relax.If):
                branches = map(self._sequence, (value.true_branch, value.false_branch))
                yield relax.VarBinding(binding.var, relax.If(value.cond, *branches))
            else:
                yield binding


def _variables(value: Any) -> Iterator[Any]:
    """Variables that an expression reads, one time for each read."""
    if isinstance(value, Call):
        operands = list(value.args)
    elif isinstance(value, relax.Tuple):
        operands = list(value.fields)
    elif isinstance(value, relax.TupleGetItem):
        operands = [value.tuple_value]
    elif isinstance(value, relax.Var):
        yield value
        return
    elif isinstance(value, (relax.If, relax.Function, relax.SeqExpr)):
        found: list[Any] = []
        relax.analysis.post_order_visit(
            value, lambda expr: found.append(expr) if isinstance(expr, relax.Var) else None
        )
        yield from found
        return
    else:
        return
    for operand in operands:
        yield from _variables(operand)


class RecoverPass(GraphPass):
    """A pass that recovers operators; subclasses set ``roots`` and ``match``."""

    #: Operators whose results may be the last value of what is recovered.
    roots: ClassVar[frozenset[str]]

    def match(self, graph: Graph, var: Any, call: Call) -> Found | Near | None:
        """What the graph that ends in ``var = call`` spells out."""
        raise NotImplementedError

    def apply(self, mod: tvm.IRModule, ctx: CompileContext) -> tvm.IRModule:
        """See the module text."""
        graph = Graph(mod["main"])
        declined: set[tuple[Any, str]] = set()
        for var in list(graph.values):
            call = graph.values.get(var)
            if not isinstance(call, Call) or op_name(call) not in self.roots:
                continue
            answer = self.match(graph, var, call)
            if answer is None:
                continue
            if isinstance(answer, Found):
                root, reason = answer.root, self._recover(graph, answer, ctx)
            else:
                root, reason = var, answer.reason
            # What was found from its first part on is found from its later parts again.
            if reason and (root, reason) not in declined:
                declined.add((root, reason))
                ctx.report.decide(self.name, root.name, False, reason)
        if not graph.replaced:
            return mod
        out = tvm.IRModule(dict(mod.functions), attrs=mod.attrs)
        out["main"] = graph.rebuilt()
        return relax.transform.DeadCodeElimination(["main"])(out)

    def _recover(self, graph: Graph, found: Found, ctx: CompileContext) -> str:
        """Replace what was found; what is in the way, or nothing."""

        kept = graph.alive(found.inner, found.root)
        busy = [var for var in kept if graph.call(var, *_FREE) is None]
        if busy:
            readers = Counter(var.name for var in busy)
            return f"{found.op}: intermediate value is used elsewhere: {', '.join(sorted(readers))}"
        found = replace(found, operands=tuple(map(graph.typed, found.operands)))
        dtypes = tuple(str(x.ty.dtype) for x in found.operands if x is not None)
        refusal = ctx.target.capability(found.op, found.attrs, dtypes)
        if refusal is not None:
            return f"{found.op}: the target refuses it: {refusal}"
        gain = saved(graph, found, kept)
        if not graph.replace(found, kept):
            return f"{found.op}: the result's type would not stay {found.root.ty}"
        what = f"{found.op} recovered from {len(found.inner - kept)} operators"
        reason = f"{what}, {found.note}" if found.note else what
        ctx.report.decide(
            self.name, found.root.name, True, reason,
            gain_us=gain.microseconds(ctx.target), **gain.figures(),
        )  # fmt: skip
        return ""


def saved(graph: Graph, found: Found, kept: set[Any]) -> Gain:
    """Traffic and launches that one kernel saves over those that fusion would make of the nodes.

    Fusion joins what runs per element and ends a kernel at each reduction; a value that several
    kernels read is stored. Extents settled at run time count as 1.
    """
    dying = found.inner - kept
    kernel: dict[Any, Any] = {}
    for var in reversed([var for var in graph.values if var in dying]):
        readers = {kernel[user] for user in graph.users.get(var, ()) if user in kernel}
        call = graph.call(var)
        ends = call is not None and op_name(call) in _ENDS_KERNEL
        kernel[var] = var if ends or len(readers) != 1 else readers.pop()
    before = 0.0
    for head in set(kernel.values()):
        members = [var for var, own in kernel.items() if own == head]
        read = {x for var in members for x in _variables(graph.values[var])} - set(members)
        before += tensor_bytes(head.ty) + sum(tensor_bytes(x.ty) for x in read)
    operands = {x for x in found.operands if isinstance(x, relax.Var)}
    after = tensor_bytes(found.root.ty) + sum(tensor_bytes(x.ty) for x in operands)
    return Gain(bytes=before - after, launches=len(set(kernel.values())) - 1)


#: Types that formulas are computed in for the sake of 16-bit ones.
_WIDER = {"float16": ("float32", "float64"), "bfloat16": ("float32", "float64")}


def widened(graph: Graph, expr: Any) -> Any:
    """The 16-bit value that ``expr`` is cast from, or ``None``."""
    call = graph.call(expr, "relax.astype")
    if call is None or str(expr.ty.dtype) not in _WIDER.get(str(call.args[0].ty.dtype), ()):
        return None
    return graph.resolve(call.args[0])
