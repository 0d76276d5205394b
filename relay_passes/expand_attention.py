"""Attention as one kernel where that pays, else from matmuls and a softmax.

    uif.attention(q, k, v, mask)                     ->  fused_attention(q, k, v, mask)
    permute_dims(reshape(x, [b, s, h, d]), 0213)     as operand: x is read in place,
    strided_slice(x)                                 also only some of its columns
    reshape(broadcast_to(reshape(k))), v as well     ->  k and v with fewer heads, each shared
    permute_dims(uif.attention(...), 0213)           ->  written in place as rows [b, s, h d]

The fused kernel never writes the scores: their traffic (written by the first product, read and
written by the softmax, read by the second product), the transpositions and the launches are the
profit; keys that every task transposes again, and sums that are rescaled between blocks of keys,
are the price. It is formed only where the target plans such a kernel.
"""

from __future__ import annotations

import fnmatch
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import Call
from tvm.relax.expr_functor import PyExprMutator, mutator
from uif_tvm.relay_passes.attention_views import Source, is_swap, source_of, unrepeated
from uif_tvm.relay_passes.uses import consumers

from uif_tvm.compiler.fallback import compose
from uif_tvm.compiler.gain import Gain, consider
from uif_tvm.compiler.graph_pass import GraphPass
from uif_tvm.errors import CompileError, UifError
from uif_tvm.kernels.fused_attention import FORM_ATTR, AttentionForm, View, fused_attention
from uif_tvm.kernels.legalize.rules import OPAQUE
from uif_tvm.relax_util import calls, op_name
from uif_tvm.standard_ops import call as standard
from uif_tvm.standard_ops import read, type_of
from uif_tvm.target.schedule import AttentionPlan, AttentionProblem
from uif_tvm.target.spec import Refusal, TargetSpec, dtype_bytes

if TYPE_CHECKING:
    from uif_tvm.compiler.context import CompileContext

ATTENTION = "uif.attention"
#: The pass, and the optimisation level from which on it runs.
NAME, LEVEL = "expand-attention", 2
#: Extent assumed in estimates where it is known at run time only.
_UNKNOWN = 128
_SUM_BYTES = 4
_MASKS = ("bool", "float16", "bfloat16", "float32")


@dataclass(frozen=True)
class Instance:
    """One attention of the graph, ready to be fused."""

    problem: AttentionProblem
    plan: AttentionPlan
    form: AttentionForm


def fusable(call: Call, target: TargetSpec) -> Instance | Refusal:
    """The fused kernel that ``target`` has for an attention, or why it has none."""
    found = read(call)
    if found is None:
        return Refusal("no-spec", "the call does not follow the operator's definition")
    _, operands, attrs = found
    given = [type_of(operand) for operand in operands if operand is not None]
    query, key, value = given[:3]
    refusal = target.capability("attention", attrs, tuple(item.dtype for item in given))
    if refusal is not None:
        return refusal
    planner = getattr(target.planner, "attention", None)
    if planner is None:
        return Refusal("no-planner", f"target {target.id} plans no fused attention")
    extents = (query.shape[1], key.shape[1], query.shape[3], value.shape[3])
    if not all(isinstance(extent, int) for extent in extents):
        return Refusal("open-extents", "heads and features must be known, positions need not")
    heads, groups, depth, width = extents
    if len({query.dtype, key.dtype, value.dtype}) != 1:
        return Refusal("mixed-dtypes", f"{query.dtype}, {key.dtype} and {value.dtype}")
    if len(given) > 3 and given[3].dtype not in _MASKS:
        return Refusal("mask", f"a mask of {given[3].dtype}")
    if 0 in (*query.shape, *key.shape, *value.shape):
        return Refusal("empty", f"{query.shape} x {key.shape} has no elements")
    batch, queries, keys = (_or(n, 0) for n in (query.shape[0], query.shape[2], key.shape[2]))
    problem = AttentionProblem(batch, heads, groups, queries, keys, depth, width, query.dtype)
    plan = planner(problem, target.machine)
    if isinstance(plan, Refusal):
        return plan
    attrs = attrs | {"scale": attrs["scale"] or 1 / math.sqrt(depth)}
    return Instance(problem, plan, AttentionForm(heads, groups, depth, width, **attrs))


def offered(call: Call, ctx: CompileContext) -> Instance | Refusal:
    """The same, and whether this pass will look at the call at all.

    Who leaves attention in the graph, or puts it there, asks first: without the pass it has no
    kernel.
    """
    if ctx.level < LEVEL:
        return Refusal("level", f"attention is fused from level {LEVEL} on")
    if NAME in ctx.disabled_passes:
        return Refusal("disabled", f"pass {NAME} is disabled")
    return fusable(call, ctx.target)


def gain_of(item: Instance, swaps: list[float]) -> Gain:
    """What the fused kernel saves over products and softmax apart.

    Args:
        swaps: bytes of each operand or result whose transposition goes.
    """
    problem, plan = item.problem, item.plan
    batch, queries, keys = (
        n or _UNKNOWN for n in (problem.batch or 1, problem.queries, problem.keys)
    )
    rows = batch * problem.heads * queries
    scores = 4.0 * rows * keys * max(_SUM_BYTES, dtype_bytes(problem.dtype))
    tasks = -(-queries * (problem.heads // problem.groups) // plan.row_block)
    packed = 2.0 * batch * problem.groups * keys * problem.depth * _SUM_BYTES * (tasks - 1)
    blocks = -(-keys // plan.key_block)
    rescaled = 2.0 * rows * problem.width * _SUM_BYTES * (blocks - 1)
    moved = 2.0 * sum(swaps)
    return Gain(bytes=scores + moved - packed - rescaled, launches=2 + len(swaps))


@mutator
class _Expand(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: tvm.IRModule, ctx: CompileContext, name: str) -> None:
        super().__init__(mod)
        self.ctx, self.name = ctx, name
        self._uses = consumers(mod["main"])
        #: Attention that is written as rows -> the rows.
        self._rows: dict[Any, Any] = {}
        self._subject = "attention"

    def visit_var_binding_(self, binding: Any) -> None:
        call = binding.value
        self._subject = str(binding.var.name)
        users = self._uses.get(binding.var, [])
        swapped = bool(users) and all(is_swap(user.call) for user in users)
        # A variable that leaves its block keeps its shape.
        swapped = swapped and isinstance(binding.var, relax.DataflowVar)
        if not (swapped and isinstance(call, Call) and op_name(call) == ATTENTION):
            super().visit_var_binding_(binding)
            return
        new = self._shared(self.visit_expr_post_order(call))
        fused = self._fused(new, as_rows=True)
        if fused is None:
            value = self.builder_.emit(self._composed(new), self._subject)
            self.set_var_remap(binding.var, value)
        else:
            self._rows[binding.var] = self.builder_.emit(fused, self._subject)

    def visit_call_(self, call: Call) -> Any:
        if is_swap(call) and call.args[0] in self._rows:
            return relax.op.reshape(self._rows[call.args[0]], call.ty.shape)
        new = self.visit_expr_post_order(call)
        if op_name(call) == "relax.reshape":
            return self._reshaped(new)
        if op_name(call) != ATTENTION:
            return new
        new = self._shared(new)
        fused = self._fused(new, as_rows=False)
        return self._composed(new) if fused is None else fused

    def _reshaped(self, call: Call) -> Any:
        """``reshape(reshape(rows)) -> reshape(rows)``, for rows that this pass made."""
        inner = call.args[0]
        bound = self.lookup_binding(inner) if isinstance(inner, relax.Var) else inner
        if not isinstance(bound, Call) or op_name(bound) != "relax.reshape":
            return call
        source = bound.args[0]
        if not any(source.same_as(rows) for rows in self._rows.values()):
            return call
        if tvm_ffi.structural_equal(source.ty.shape, call.ty.shape):
            return source
        return relax.op.reshape(source, call.args[1])

    def _shared(self, call: Call) -> Call:
        """Keys and values that are repeated for several query heads are read as they are."""
        found = read(call)
        if found is None:
            return call
        _, (query, key, value, *rest), attrs = found
        pairs = [unrepeated(operand, self.lookup_binding) for operand in (key, value)]
        (key, times), (value, again) = pairs
        if times != again or times == 1:
            return call
        return self.builder_.normalize(standard("attention", query, key, value, *rest, **attrs))

    def _fused(self, call: Call, as_rows: bool) -> Any:
        """The fused call; ``None`` if there is no such kernel or it does not pay."""
        found, item = read(call), self._instance(call)
        if found is None or isinstance(item, Refusal):
            self.ctx.report.decide(self.name, self._subject, False, str(item))
            return None
        query, key, value, mask = (*found[1], None)[:4]
        sources = [source_of(operand, self.lookup_binding) for operand in (query, key, value)]
        pairs = zip((query, key, value), sources, strict=True)
        swaps = [_bytes(operand) for operand, source in pairs if source.view.rows]
        swaps += [_bytes(call)] if as_rows else []
        fired = f"one kernel, {item.problem.keys or 'open'} keys, {len(swaps)} transpositions less"
        gain = gain_of(item, swaps)
        if not consider(self.ctx, self.name, self._subject, gain, fired, "the fused kernel"):
            return None
        return self._kernel(item, sources, mask, as_rows)

    def _instance(self, call: Call) -> Instance | Refusal:
        patterns = self.ctx.disabled_fusion
        names = ("attention", self._subject)
        if any(fnmatch.fnmatch(name, pattern) for name in names for pattern in patterns):
            return Refusal("disabled", "fusion disabled on request")
        return fusable(call, self.ctx.target)

    def _kernel(self, item: Instance, sources: list[Source], mask: Any, as_rows: bool) -> Any:
        query, key, value = (source.view for source in sources)
        form = replace(item.form, query=query, key=key, value=value, result=View(as_rows))
        tensors = [source.emit(self.builder_) for source in sources]
        tensors += [] if mask is None else [mask]
        return self.builder_.call_te(
            lambda q, k, v, m=None: fused_attention(q, k, v, m, form),
            *tensors,
            primfunc_name_hint="attention",
            primfunc_attrs={"op_pattern": OPAQUE, FORM_ATTR: form.dumps()},
        )

    def _composed(self, call: Call) -> Any:
        subject = self._subject
        try:
            return compose(self.builder_, call, subject, self.ctx.target.capability)
        except UifError as error:
            raise CompileError(
                f"attention {subject!r} has neither a fused kernel nor a decomposition: {error}",
                code="UIF-COMPILE-ATTENTION",
                op="attention",
                target=self.ctx.target.id,
                hint="fix its extents, or allow its fusion",
            ) from error


def _bytes(expr: Any) -> float:
    shape = type_of(expr).shape
    return math.prod(_or(n, _UNKNOWN) for n in shape) * dtype_bytes(type_of(expr).dtype)


def _or(extent: Any, other: int) -> int:
    if isinstance(extent, tirx.IntImm):
        return int(extent)
    return extent if isinstance(extent, int) else other


class ExpandAttention(GraphPass):
    """Give every attention operator its kernel or kernels."""

    name = NAME

    def apply(self, mod: tvm.IRModule, ctx: CompileContext) -> tvm.IRModule:
        """See the module text."""
        if not any(op_name(call) == ATTENTION for _, call in calls(mod)):
            return mod
        # Names for names would hide who reads what.
        mod = relax.transform.CanonicalizeBindings()(mod)
        expand = _Expand(mod, ctx, self.name)
        main = expand.visit_expr(mod["main"])
        out = expand.builder_.get()
        out.update_func(out.get_global_var("main"), main)
        return relax.transform.DeadCodeElimination(["main"])(out)


PASS = ExpandAttention()
