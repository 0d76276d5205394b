"""Winograd's algorithm for blocked 3x3 convolutions of stride 1, where it pays.

    conv2d_blocked(x, pack(W))  ->  winograd(x, pack(G W G^T))

with ``G W G^T`` folded in float64 and rounded once; epilogues fuse with either kernel alike.

F(4x4, 3x3) multiplies a quarter as much as the direct kernel, and reads four times the weights.
The target's planner compares both kernels' costs and picks the tile; the roofline must then agree
that the arithmetic saved outweighs the weights' bytes. Rounding errors grow with the tile and the
channels; where the expected one comes near the tolerance of ``conv2d``, a smaller tile is taken or
none.

What changes for the user, and why this is a pass of level 3: errors are relative to the largest
input of a tile, not of a window, and a NaN or an infinity reaches all results of its tile, as NaN.
So inputs from kernels that write infinities (a padding of -inf, say) are declined. So are weights
that are whole numbers: convolutions of quantised models, carried in float32, are exact and often
end in a conversion to integers, which would cut 4.9999999 down to 4.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isinf, prod
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx
from tvm.ir import Call
from tvm.relax.expr_functor import PyExprMutator, mutator

from uif_tvm import ops
from uif_tvm.compiler.gain import Gain, consider
from uif_tvm.compiler.graph_pass import GraphPass
from uif_tvm.kernels import winograd
from uif_tvm.kernels.blocked_conv import CHANNELS_ATTR, CONV2D, unpack_weight
from uif_tvm.kernels.layout import BLOCK, UNBLOCK, Window
from uif_tvm.relax_util import constant_array, make_constant, op_name
from uif_tvm.target.schedule import FAMILY_ATTR, Conv2dProblem, WinogradPlan
from uif_tvm.target.spec import Refusal, dtype_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from uif_tvm.compiler.context import CompileContext

#: Largest of a result's errors over their root mean square: six deviations, one in 5e8 values.
_WORST = 6.0


@dataclass(frozen=True)
class _Direct:
    """A blocked convolution kernel read back: what it computes, and its operands' shapes."""

    problem: Conv2dProblem
    data: tuple[int, ...]
    result: tuple[int, ...]


@mutator
class _Rewrite(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: tvm.IRModule, ctx: CompileContext, name: str) -> None:
        super().__init__(mod)
        self.ctx = ctx
        self.name = name
        self._mod = mod
        self._subject = "conv2d"
        self._kernels: dict[Any, Any] = {}

    def visit_var_binding_(self, binding: Any) -> None:
        self._subject = str(binding.var.name)
        super().visit_var_binding_(binding)

    def visit_call_(self, call: Call) -> Any:
        call = self.visit_expr_post_order(call)
        if op_name(call) != "relax.call_tir":
            return call
        direct = _direct(self._mod[call.args[0]])
        if direct is None or direct.problem.kernel != (winograd.TAPS, winograd.TAPS):
            return call
        done = self._rewrite(call, direct)
        if isinstance(done, Refusal):
            self.ctx.report.decide(self.name, self._subject, False, str(done))
            return call
        return call if done is None else done

    def _rewrite(self, call: Call, direct: _Direct) -> Any | Refusal | None:
        """The new call; ``None`` when it does not pay, which is on record then."""
        data, packed = call.args[1].fields
        weight = constant_array(self._bound(packed))
        if weight is None:
            return Refusal("constant", "the weight is not a constant")
        if bool((weight == np.rint(weight)).all()):
            return Refusal("integers", "the weights are whole numbers: the direct kernel is exact")
        source = _infinite(self._bound(data), self._mod, self._bound)
        if source is not None:
            return Refusal("infinities", f"{source} writes infinities, which would spread as NaN")
        plan = self._plan(direct)
        if isinstance(plan, Refusal):
            return plan
        problem, kernel = direct.problem, self._kernel(direct, plan)
        if not self._pays(problem, plan, self._mod[call.args[0]], kernel):
            return None
        filters = unpack_weight(weight, problem.out_channels, problem.in_channels)
        factors = winograd.pack_weight(filters, plan.tile, direct.data[4], plan.out_block)
        key = (direct, plan)
        if key not in self._kernels:
            self._kernels[key] = self.builder_.add_func(kernel, "winograd_conv2d")
        operands = [data, make_constant(factors)]
        result = relax.TensorType(direct.result, problem.dtype)
        return relax.call_tir(self._kernels[key], operands, result)

    def _plan(self, direct: _Direct) -> WinogradPlan | Refusal:
        if len(direct.data) != 5:
            return Refusal("layout", f"the input {list(direct.data)} is not blocked")
        planner = self.ctx.target.planner
        if planner is None:
            return Refusal("no-planner", f"target {self.ctx.target.id} plans no such kernels")
        tiles = accurate_tiles(direct.problem)
        if isinstance(tiles, Refusal):
            return tiles
        # Weights grow with the tile: a large one may lose by the roofline where a small one wins.
        saved = {tile: gain(direct.problem, tile).microseconds(self.ctx.target) for tile in tiles}
        tiles = tuple(tile for tile in tiles if saved[tile] > 0) or tiles
        return planner.winograd(direct.problem, self.ctx.target.machine, tiles)

    def _pays(
        self, problem: Conv2dProblem, plan: WinogradPlan, old: tirx.PrimFunc, new: tirx.PrimFunc
    ) -> bool:
        """Whether the roofline, or times on record, agree with the planner; put on record."""
        saved, times = gain(problem, plan.tile), self.ctx.kernel_times
        if times is not None:
            before, after = times(old), times(new)
            if before is not None and after is not None:
                saved = replace(saved, measured_us=before - after)
        m = plan.tile
        error = winograd.expected_error(m, problem.in_channels)
        fired = (
            f"F({m}x{m}, 3x3), estimated {plan.cycles / plan.direct_cycles:.2f} of the direct "
            f"kernel's time, expected error {error:.1e} of the results' root mean square"
        )
        return consider(self.ctx, self.name, self._subject, saved, fired, f"F({m}x{m}, 3x3)")

    def _kernel(self, direct: _Direct, plan: WinogradPlan) -> tirx.PrimFunc:
        p = direct.problem
        batch, count, rows, columns, block = direct.data
        return winograd.conv2d(
            (batch, count, rows, columns, block),
            winograd.packed_shape(p.in_channels, p.out_channels, plan.tile, block, plan.out_block),
            (p.in_channels, p.out_channels),
            p.padding,
            direct.result[4],
            plan.tile,
            p.dtype,
        )

    def _bound(self, expr: Any) -> Any:
        while isinstance(expr, relax.Var):
            value = self.lookup_binding(expr)
            if value is None:
                return expr
            expr = value
        return expr


def _direct(func: Any) -> _Direct | None:
    """What ``func`` computes when it is a blocked direct convolution, else ``None``."""
    if not isinstance(func, tirx.PrimFunc) or not isinstance(func.body, s_tir.SBlockRealize):
        return None
    found: list[Any] = []
    tvm_ffi.structural_walk(func.body, [(s_tir.SBlock, found.append)])
    anchors = [b for b in found if str(b.annotations.get(FAMILY_ATTR)) == CONV2D]
    if len(anchors) != 1:
        return None
    data, _, result = (tuple(int(extent) for extent in param.shape) for param in func.params)
    window = Window.from_attrs(anchors[0].annotations)
    in_channels, out_channels, groups = (int(v) for v in anchors[0].annotations[CHANNELS_ATTR])
    problem = Conv2dProblem(
        batch=data[0],
        in_channels=in_channels,
        in_height=data[2],
        in_width=data[3],
        out_channels=out_channels,
        kernel=window.kernel,
        strides=window.strides,
        padding=window.padding,
        dilation=window.dilation,
        groups=groups,
        dtype=str(func.params[0].dtype),
    )
    return _Direct(problem, data, result)


def accurate_tiles(problem: Conv2dProblem) -> tuple[int, ...] | Refusal:
    """Tile sizes whose rounding errors stay within the tolerance of ``conv2d``."""
    tolerance = ops.find("conv2d").tolerance_for(problem.dtype).rtol
    errors = {tile: winograd.expected_error(tile, problem.in_channels) for tile in winograd.TILES}
    tiles = tuple(tile for tile, error in errors.items() if _WORST * error <= tolerance)
    if tiles:
        return tiles
    found = ", ".join(f"F({m}x{m}) {_WORST * error:.1e}" for m, error in errors.items())
    return Refusal(
        "accuracy",
        f"largest expected error over {problem.in_channels} channels, of the results' root mean "
        f"square: {found}; the tolerance is {tolerance:.0e}",
    )


def gain(problem: Conv2dProblem, tile: int) -> Gain:
    """Arithmetic saved, transforms counted in; weights' further bytes are a cost.

    A transform takes about four operations per element of an ``n x n`` tile: two passes of four
    coefficients each, half of them shared. What they move stays in the caches.
    """
    n, m = winograd.transform(tile).size, tile
    tiles = problem.batch * -(-problem.out_height // m) * -(-problem.out_width // m)
    results = problem.batch * problem.out_height * problem.out_width
    channels = problem.in_channels * problem.out_channels
    before = 2.0 * winograd.TAPS**2 * results * channels
    products = 2.0 * n * n * tiles * channels
    transforms = tiles * n * n * 4.0 * (problem.in_channels + problem.out_channels)
    shape = winograd.packed_shape(problem.in_channels, problem.out_channels, m, 1, 1)
    weights = prod(shape) - winograd.TAPS**2 * channels
    return Gain(
        bytes=-float(weights * dtype_bytes(problem.dtype)),
        flops=before - products - transforms,
        dtype=problem.dtype,
    )


def _infinite(expr: Any, mod: tvm.IRModule, bound: Callable[[Any], Any]) -> str | None:
    """Name of the kernel or operator that makes ``expr`` and may write infinities, if one does."""
    while isinstance(expr, Call):
        name = op_name(expr) or ""
        if name != "relax.call_tir":
            values = [constant_array(bound(arg)) for arg in expr.args]
            fill = getattr(expr.attrs, "pad_value", 0.0)
            return name if isinf(float(fill)) or any(map(_has_infinity, values)) else None
        kernel, operands = mod.functions.get(expr.args[0]), expr.args[1].fields
        if kernel is None:
            return None  # one of ours, which writes none
        if any(_has_infinity(constant_array(bound(arg))) for arg in operands):
            return str(expr.args[0].name_hint)
        if _writes_infinity(kernel):
            return str(expr.args[0].name_hint)
        if _family(kernel) not in (BLOCK, UNBLOCK):
            return None
        expr = bound(operands[0])
    return None


def _has_infinity(array: np.ndarray[Any, Any] | None) -> bool:
    return array is not None and array.dtype.kind == "f" and bool(np.isinf(array).any())


def _writes_infinity(func: Any) -> bool:
    """Whether an infinite constant is in a store; the start of a maximum or minimum is not."""
    found: list[float] = []

    def block(node: Any) -> None:
        if node.init is None:
            tvm_ffi.structural_walk(
                node.body, [(tirx.FloatImm, lambda value: found.append(float(value.value)))]
            )

    tvm_ffi.structural_walk(func.body.block.body, [(s_tir.SBlock, block)])
    return any(map(isinf, found))


def _family(func: Any) -> str | None:
    """Family of the kernel's annotated block."""
    found: list[Any] = []
    tvm_ffi.structural_walk(func.body, [(s_tir.SBlock, found.append)])
    labels = [b.annotations[FAMILY_ATTR] for b in found if FAMILY_ATTR in b.annotations]
    return str(labels[0]) if labels else None


class WinogradConv(GraphPass):
    """Winograd kernels for 3x3 convolutions where they are faster and accurate enough."""

    name = "winograd"

    def apply(self, mod: tvm.IRModule, ctx: CompileContext) -> tvm.IRModule:
        """See the module text."""
        rewrite = _Rewrite(mod, ctx, self.name)
        for var, func in list(mod.functions.items()):
            if isinstance(func, relax.Function):
                rewrite.builder_.update_func(var, rewrite.visit_expr(func))
        return relax.transform.DeadCodeElimination(["main"])(rewrite.builder_.get())


PASS = WinogradConv()
