"""Convolutions over extents of run time as register-tile kernels in plain layout.

    conv2d(x, W)           ->  plane_conv2d(x, pack(W))      dense or grouped, W constant
    conv2d(x, W), C = O = groups  ->  plane_depthwise(x, W)
    conv1d                 ->  the same with one row

Convolutions of static extents get blocked layouts instead (``block_layout``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import PyExprMutator, mutator

from uif_tvm.compiler.graph_pass import GraphPass
from uif_tvm.kernels.legalize.rules import dtype_of
from uif_tvm.kernels.matmul import OUT_FUSABLE
from uif_tvm.kernels.plane_conv import pack_filters, plane_conv2d, plane_depthwise
from uif_tvm.relax_util import constant_array, make_constant, op_name, static_shape
from uif_tvm.target.schedule import MatmulProblem
from uif_tvm.target.spec import Refusal

if TYPE_CHECKING:
    from uif_tvm.compiler.context import CompileContext

#: Operator -> (data layout, weight layout) that is rewritten.
_LAYOUTS = {"relax.nn.conv2d": ("NCHW", "OIHW"), "relax.nn.conv1d": ("NCW", "OIW")}


@mutator
class _Rewrite(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: tvm.IRModule, ctx: CompileContext, name: str) -> None:
        super().__init__(mod)
        self.ctx = ctx
        self.name = name
        self._subject = "conv"

    def visit_var_binding_(self, binding: Any) -> None:
        self._subject = str(binding.var.name)
        super().visit_var_binding_(binding)

    def visit_call_(self, call: Call) -> Any:
        call = self.visit_expr_post_order(call)
        if op_name(call) not in _LAYOUTS or static_shape(call) is not None:
            return call
        self._note = ""
        done = self._convolution(call)
        fired = not isinstance(done, Refusal)
        self.ctx.report.decide(self.name, self._subject, fired, self._note if fired else str(done))
        return done if fired else call

    def _convolution(self, call: Call) -> Any | Refusal:
        weight = self._weight(call.args[1])
        shape = _extents(call.args[0])
        attrs = call.attrs
        if weight is None or shape is None:
            return Refusal("constant", "the filters are no constant, or the rank is unknown")
        layouts = (str(attrs.data_layout), str(attrs.kernel_layout))
        if layouts != _LAYOUTS[str(op_name(call))]:
            return Refusal("layout", ", ".join(layouts))
        dtype = dtype_of(call)
        if {dtype, dtype_of(call.args[0]), str(weight.dtype)} != {dtype}:
            return Refusal("mixed-dtypes", "operands and result differ in dtype")
        planner, machine = self.ctx.target.planner, self.ctx.target.machine
        if planner is None:
            return Refusal("no-planner", f"target {self.ctx.target.id} plans no such kernels")
        plane = weight if weight.ndim == 4 else weight[:, :, None]
        count, depth, *kernel = plane.shape
        plan = planner.matmul(
            MatmulProblem(0, count, depth * kernel[0] * kernel[1], dtype), machine
        )
        if isinstance(plan, Refusal):
            return plan
        window = (_two(attrs.strides, 1), _four(attrs.padding), _two(attrs.dilation, 1))
        groups = int(attrs.groups)
        if groups > 1 and depth == 1 and count == groups:
            lanes = machine.lanes(dtype)
            self._note = f"depthwise over extents of run time, vectors of {lanes} pixels"
            return self._emit(
                call,
                lambda a, w: plane_depthwise(a, w, *window, lanes),
                plane,
                "depthwise_conv2d",
            )
        if groups > 1 and (count // groups) % plan.n_block:
            return Refusal("groups", f"{groups} groups of {count // groups} filters")
        tile = f"{plan.m_block}x{plan.n_block}"
        self._note = f"direct over extents of run time, register tile {tile}"
        return self._emit(
            call,
            lambda a, w: plane_conv2d(a, w, count, *window, groups, plan.m_block),
            pack_filters(plane, plan.n_block),
            "conv2d",
        )

    def _emit(self, call: Call, kernel: Any, weight: Any, name: str) -> Any | Refusal:
        made = self.builder_.call_te(
            kernel,
            call.args[0],
            make_constant(weight),
            primfunc_name_hint=name,
            primfunc_attrs={"op_pattern": OUT_FUSABLE},
        )
        shape = made.ty_args[0].shape
        if not tvm_ffi.structural_equal(shape, call.ty.shape):
            # Fusion compares shapes by structure, and would fail on equal ones of two forms.
            return Refusal("shape-form", f"{shape} is written as {call.ty.shape}")
        return made

    def _weight(self, expr: Any) -> Any:
        while isinstance(expr, relax.Var):
            expr = self.lookup_binding(expr)
        return None if expr is None else constant_array(expr)


def _extents(expr: Any) -> list[Any] | None:
    values = getattr(getattr(expr.ty, "shape", None), "values", None)
    if values is None:
        return None
    return [int(n) if isinstance(n, tvm.tirx.IntImm) else n for n in values]


def _two(values: Any, missing: int) -> tuple[int, int]:
    """Per-axis attribute as (rows, columns); 1-D ones act on columns."""
    found = [int(v) for v in values]
    return (missing, found[0]) if len(found) == 1 else (found[0], found[1])


def _four(values: Any) -> tuple[int, int, int, int]:
    """Padding as (top, left, bottom, right); 1-D padding is (left, right)."""
    found = [int(v) for v in values]
    return (0, found[0], 0, found[1]) if len(found) == 2 else (found[0], found[1], *found[2:4])  # type: ignore[return-value]


class PlaneConv(GraphPass):
    """Replace convolutions over extents of run time by kernels with a register tile."""

    name = "plane-conv"

    def apply(self, mod: tvm.IRModule, ctx: CompileContext) -> tvm.IRModule:
        """See the module text."""
        rewrite = _Rewrite(mod, ctx, self.name)
        main = rewrite.visit_expr(mod["main"])
        out = rewrite.builder_.get()
        out.update_func(out.get_global_var("main"), main)
        return out


PASS = PlaneConv()
