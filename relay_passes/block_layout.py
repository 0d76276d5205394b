"""Blocked channel layout for convolutions and what lies between them.

With ``B = block``, ``U = unblock`` the two layout changes (``U(B(x)) = x``):

    conv2d(x, W)      ->  U(conv2d_blocked(B(x), pack(W)))
    f(U(a), U(b), c)  ->  U(f(a, b, B(c)))     f element-wise
    g(U(a), ...)      ->  U(g'(a, ...))        pooling, concat, reductions ...
    B(U(a))           ->  a

A first rewrite, thrown away, does all of this and tells which operators have a blocked form; a
minimum cut over them then chooses those that take it, so that what changes layout, and what is
computed in plain layout, costs the least in all (:mod:`.block_plan`). Every value keeps its plain
form for consumers that need it; a layout change nobody uses is dead and goes. Blocks are the
target planner's choice, one width for the whole model. Lanes past the last channel are
unspecified, so only per-lane rewrites are made (see :mod:`uif_tvm.kernels.layout`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import PyExprMutator, mutator
from uif_tvm.relay_passes import block_conv, block_elementwise, block_ops
from uif_tvm.relay_passes.block_lift import lift
from uif_tvm.relay_passes.block_pad import Pads, zero_padding
from uif_tvm.relay_passes.block_plan import Step, Trace, choose, explain

from uif_tvm.compiler.graph_pass import GraphPass
from uif_tvm.compiler.report import ReportBuilder
from uif_tvm.kernels import layout
from uif_tvm.relax_util import constant_array, make_constant, op_name, static_shape

if TYPE_CHECKING:
    from collections.abc import Callable

    from uif_tvm.compiler.context import CompileContext

_BLOCK, _UNBLOCK = "block_layout", "unblock_layout"


@dataclass(frozen=True)
class Blocked:
    """A tensor in blocked form.

    Args:
        var: ``[N, ceil(C/cb), H, W, cb]``.
        shape: of the plain form, ``[N, C, H, W]`` or ``[N, C, W]`` (then ``H`` is 1).
    """

    var: Any
    shape: tuple[int, ...]

    @property
    def block(self) -> int:
        """Channels per block."""
        return self.extents[4]

    @property
    def extents(self) -> tuple[int, int, int, int, int]:
        """Shape of the blocked form."""
        found = static_shape(self.var)
        if found is None or len(found) != 5:
            raise ValueError(f"not a blocked tensor: {self.var} of shape {found}")
        return found[0], found[1], found[2], found[3], found[4]


@mutator
class Rewriter(PyExprMutator):  # type: ignore[misc]
    """Rewrites one function; the rules in ``block_conv`` and ``block_ops`` use its helpers."""

    def __init__(
        self,
        mod: tvm.IRModule,
        ctx: CompileContext,
        name: str,
        trial: Rewriter | None = None,
        chosen: set[Any] | None = None,
    ) -> None:
        """``chosen``: variables to compute blocked, by the plan made after ``trial``.

        Without them this is the trial: everything that has a blocked form takes it.
        """
        super().__init__(mod)
        self.ctx = ctx
        self.module = mod
        self.subject = "?"
        self._name = name
        self._chosen = chosen
        self._functions: dict[Any, Any] = trial._functions if trial else {}
        self.trace: Trace = Trace(width=trial.trace.width if trial else 0)
        self._step = Step()
        self._origin: dict[Any, Any] = {}
        #: Variable -> what it is zero padding of, and the pads (t, l, b, r).
        self.padded: dict[Any, tuple[Any, Pads]] = {}
        self._padding: tuple[Any, Pads] | None = None
        self._cache: dict[Any, Blocked] = {}
        self._local: set[Any] = set()
        self._kernels: dict[Any, Any] = {}
        #: Kernels that this pass added to the module.
        self._made: dict[Any, Any] = {}
        self._rules: dict[str, Callable[[Rewriter, Call], Any]] = {
            **block_conv.RULES,
            **block_elementwise.RULES,
            **block_ops.RULES,
        }

    def visit_dataflow_block_(self, block: Any) -> Any:
        """Variables of one dataflow block are not visible in another."""
        outer = self._cache, self._local, self.padded
        self._cache, self._local, self.padded = {}, set(), {}
        result = super().visit_dataflow_block_(block)
        self._cache, self._local, self.padded = outer
        return result

    def visit_binding_block_(self, block: Any) -> Any:
        """As for dataflow blocks."""
        outer = self._cache, self._local, self.padded
        self._cache, self._local, self.padded = {}, set(), {}
        result = super().visit_binding_block_(block)
        self._cache, self._local, self.padded = outer
        return result

    def visit_var_binding_(self, binding: Any) -> None:
        """Remember whose call is being rewritten, and which variables are padded ones."""
        self.subject = binding.var.name
        self._var, self._step = binding.var, Step()
        self._padding = None
        super().visit_var_binding_(binding)
        made = self.visit_expr(binding.var)
        self._origin[made] = binding.var
        if self._step.blocked:
            self.trace.steps[binding.var] = self._step
        if self._padding is not None:
            self.padded[made] = self._padding

    def visit_call_(self, call: Call) -> Any:
        """Apply the rule of the operator, if there is one and the plan wants it."""
        call = self.visit_expr_post_order(call)
        self._padding = block_conv.zero_padded(self, call)
        rule = self._rules.get(op_name(call) or "")
        if rule is None or (self._chosen is not None and self._var not in self._chosen):
            return call
        if static_shape(call) is None and not isinstance(call.ty, relax.TupleType):
            if op_name(call) in block_conv.RULES:
                self.decline("the shape is not static")
            return call
        changed = rule(self, call)
        if changed is None:
            return call
        self._step.blocked = True
        return changed

    def reads(self, expr: Any) -> None:
        """Note that the blocked form of ``expr`` is read by the current call."""
        self._step.reads.add(self._origin.get(expr, expr))

    def passes_by(self, expr: Any) -> None:
        """Note that the current call does not read ``expr`` after all."""
        self._step.unread.add(self._origin.get(expr, expr))

    def worth(self, microseconds: float) -> None:
        """Note what the current call loses in plain layout, layout changes aside."""
        self._step.worth_us = microseconds

    def fuses(self) -> None:
        """Note that the current call would be fused with a neighbour of the same layout."""
        self._step.fuses = True

    def ends(self) -> None:
        """Note that the current call's result has no blocked form."""
        self._step.plain_result = True

    def decline(self, reason: str) -> None:
        """Record why the current call stays as it is."""
        self.trace.refused.add(self._var)
        self.ctx.report.decide(self._name, self.subject, False, reason)

    def fired(self, reason: str) -> None:
        """Record that the current call was rewritten."""
        self.ctx.report.decide(self._name, self.subject, True, reason)

    def resolve(self, expr: Any) -> Any:
        """What a variable is bound to, through aliases and tuples; else the expression itself."""
        while True:
            if isinstance(expr, relax.TupleGetItem):
                source = self.resolve(expr.tuple_value)
                if not isinstance(source, relax.Tuple):
                    return expr
                expr = source.fields[expr.index]
            elif isinstance(expr, relax.Var):
                value = self.lookup_binding(expr)
                if value is None:
                    return expr
                expr = value
            else:
                return expr

    def constant(self, expr: Any) -> np.ndarray[Any, Any] | None:
        """Value of a constant expression."""
        return constant_array(self.resolve(expr))

    def twin(self, expr: Any) -> Blocked | None:
        """The blocked form of ``expr`` when there is one already."""
        value = self.resolve(expr)
        if (
            isinstance(value, Call)
            and op_name(value) == "relax.call_tir"
            and value.args[0].name_hint.startswith(_UNBLOCK)
        ):
            shape, var = static_shape(value), value.args[1].fields[0]
            hidden = isinstance(var, relax.DataflowVar) and var not in self._local
            return None if shape is None or hidden else Blocked(var, shape)
        return self._cache.get(expr) if isinstance(expr, relax.Var) else None

    def width(self, operands: list[Any]) -> int:
        """Channels per block of the region that ``operands`` put the current call in, else 0."""
        if self._chosen is not None and self._var in self._chosen:
            return self.trace.width
        return next((t.block for t in map(self.twin, operands) if t is not None), 0)

    def source(self, expr: Any) -> Blocked | None:
        """The blocked form of an operand that the current call reads, where a region is.

        That is where it exists already, or where the plan has the call in the region.
        """
        shape = static_shape(expr)
        planned = self._chosen is not None and shape is not None and len(shape) in (3, 4)
        if planned and self._var in (self._chosen or ()):
            return self.to_blocked(expr, self.trace.width)
        found = self.twin(expr)
        if found is not None:
            self.reads(expr)
        return found

    def to_blocked(self, expr: Any, width: int) -> Blocked:
        """The blocked form of ``expr``, made when there is none; the current call reads it."""
        shape, dtype = static_shape(expr), str(expr.ty.dtype.dtype)
        if shape is None:
            raise ValueError(f"{expr} has no static shape")
        array = self.constant(expr)
        if array is not None:
            return Blocked(make_constant(block_array(array, width)), shape)
        self.reads(expr)
        self.trace.width = width
        known = self.twin(expr)
        if known is not None and known.block == width:
            return known
        batch, channels, *plane = shape
        rows, columns = plane if len(plane) == 2 else (1, *plane)
        target = (batch, layout.blocks(channels, width), rows, columns, width)
        if rows * columns == 1 and channels % width == 0:
            made = Blocked(self.emit(relax.op.reshape(expr, target)), shape)
        else:
            kernel = self.kernel(_BLOCK, layout.block, shape, width, dtype)
            made = Blocked(self.emit(call_tir(kernel, [expr], target, dtype)), shape)
        if isinstance(expr, relax.Var):
            self._cache[expr] = made
        return made

    def to_plain(self, blocked: Any, shape: tuple[int, ...]) -> Any:
        """The expression of the plain form, ``shape``, of a blocked variable."""
        width, dtype = Blocked(blocked, shape).block, str(blocked.ty.dtype.dtype)
        kernel = self.kernel(_UNBLOCK, layout.unblock, shape, width, dtype)
        return call_tir(kernel, [blocked], shape, dtype)

    def emit(self, expr: Any, hint: str | None = None) -> Any:
        """Bind ``expr`` to a new variable named after the current call."""
        var = self.builder_.emit(expr, hint or self.subject)
        self._local.add(var)
        return var

    def kernel(self, name: str, make: Callable[..., Any], *args: Any) -> Any:
        """Global variable of ``make(*args)``; equal arguments share one kernel."""
        key = (name, args)
        if key not in self._kernels:
            if key not in self._functions:
                self._functions[key] = make(*args)
            self._kernels[key] = self._add(self._functions[key], name)
        return self._kernels[key]

    def _add(self, func: Any, name: str) -> Any:
        var = self.builder_.add_func(func, name)
        self._made[var] = func
        return var

    def pattern(self, kernel: Any) -> int | None:
        """FuseOps pattern of a kernel, ``None`` where fusion is to find out."""
        func = self._made.get(kernel)
        attrs = (self.module[kernel] if func is None else func).attrs
        return int(attrs["op_pattern"]) if attrs and "op_pattern" in attrs else None

    def zero_padding(self, kernel: Any) -> Pads | None:
        """Pads of a kernel that only pads planes with zeros."""
        key = ("pad", kernel)
        if key not in self._kernels:
            self._kernels[key] = zero_padding(self.module[kernel])
        pads: Pads | None = self._kernels[key]
        return pads

    def lifted(self, kernel: Any, width: int) -> LiftedKernel | str:
        """Kernel ``kernel`` over blocked channels, or why there is none; equal calls share it."""
        key = ("lift", kernel, width)
        if key not in self._kernels:
            found = lift(self.module[kernel], width)
            if isinstance(found, str):
                self._kernels[key] = found
            else:
                var = self._add(found.func, f"{kernel.name_hint}_blocked")
                self._kernels[key] = LiftedKernel(var, found.axes, found.elementwise)
        made: LiftedKernel | str = self._kernels[key]
        return made


@dataclass(frozen=True)
class LiftedKernel:
    """A kernel over blocked tensors; fields as in :class:`.block_lift.Lifted`."""

    var: Any
    axes: tuple[int | None, ...]
    elementwise: bool


def call_tir(kernel: Any, args: list[Any], shape: tuple[int, ...], dtype: str) -> Any:
    """``call_tir`` with a static result."""
    return relax.call_tir(kernel, args, relax.TensorType(shape, dtype))


def block_array(array: np.ndarray[Any, Any], width: int) -> np.ndarray[Any, Any]:
    """``[N, C, H, W]`` (or ``[N, C, W]``) as blocked, zero past the last channel."""
    array = array[:, :, None] if array.ndim == 3 else array
    batch, channels, rows, columns = array.shape
    count = layout.blocks(channels, width)
    padded = np.zeros((batch, count * width, rows, columns), array.dtype)
    padded[:, :channels] = array
    shape = (batch, count, width, rows, columns)
    return np.ascontiguousarray(padded.reshape(shape).transpose(0, 1, 3, 4, 2))


class BlockLayout(GraphPass):
    """Blocked kernels for convolutions, kept over regions where that converts fewer bytes."""

    name = "block-layout"

    def apply(self, mod: tvm.IRModule, ctx: CompileContext) -> tvm.IRModule:
        """See the module text."""
        if ctx.target.planner is None:
            ctx.report.decide(self.name, "main", False, "the target has no layout planner")
            return mod
        trial = Rewriter(mod, replace(ctx, report=ReportBuilder()), self.name)
        _rewrite(trial)
        chosen = set(trial.trace.refused)  # to be refused again, for the report
        for func in mod.functions.values():
            if isinstance(func, relax.Function):
                chosen |= choose(func, trial.trace, ctx, self.name)
        mod = _rewrite(Rewriter(mod, ctx, self.name, trial, chosen))
        mod = relax.transform.CanonicalizeBindings()(mod)
        mod = relax.transform.DeadCodeElimination(["main"])(mod)
        explain(mod, ctx, self.name, (_BLOCK, _UNBLOCK))
        return mod


def _rewrite(rewriter: Rewriter) -> tvm.IRModule:
    for var, func in list(rewriter.module.functions.items()):
        if isinstance(func, relax.Function):
            rewriter.builder_.update_func(var, rewriter.visit_expr(func))
    return rewriter.builder_.get()


PASS = BlockLayout()
