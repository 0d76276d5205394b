"""Indices that come from data never reach outside a tensor.

With ``n`` the size of the indexed axis, ``wrap(i) = i + n if i < 0 else i`` and
``clamp(i) = min(max(wrap(i), 0), n - 1)``:

    take(x, i)                  -> x[.., clamp(i), ..]            gather_elements, gather_nd,
                                                                  index_tensor likewise
    scatter_elements(x, i, u)   -> x[wrap(i)] = f(x, u) if 0 <= wrap(i) < n, else nothing
                                                                  scatter_nd, index_put likewise
    dynamic_strided_slice(x, b, e, s)
                                -> the same with b, e limited as Python limits them, s never 0
    nll_loss(p, t, w)           -> gathers at clamp(t), masked where t is the ignored index
    roi_align(x, r), roi_pool   -> r with its batch column limited to 0 .. batch - 1

Negative indices thus count from the end; beyond that, reads give the nearest element and writes
are dropped. Constant indices are also checked here: outside the tensor, the export fails.

Safe as they are: one_hot (compares), bucketize (searches), grid_sample (tests every read),
reverse_sequence (limits its lengths), slice_scatter (static bounds). Operators for training
(``relax.grad.*`` with indices) are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from tvm import relax, tirx
from tvm.ir import Call
from tvm.relax.expr_functor import PyExprMutator, mutator

from uif_tvm.compiler.graph_pass import GraphPass
from uif_tvm.errors import CompileError
from uif_tvm.kernels import indexing
from uif_tvm.relax_util import constant_array, make_constant, op_name

if TYPE_CHECKING:
    import tvm

    from uif_tvm.compiler.context import CompileContext

_REFUSED = ("relax.grad.take_backward", "relax.grad.nll_loss_backward")


class SafeIndexing(GraphPass):
    """Keep every index inside its buffer; memory safety is no option, so it cannot be disabled."""

    name: ClassVar[str] = "safe-indexing"
    ensures: ClassVar[frozenset[str]] = frozenset({"indices-safe"})
    optional: ClassVar[bool] = False

    def apply(self, mod: tvm.IRModule, ctx: CompileContext) -> tvm.IRModule:
        """Guard every data-dependent index in every Relax function.

        Raises:
            CompileError: a constant index lies outside its tensor.
        """
        rewriter = _Rewriter(mod, ctx, self.name)
        for variable, function in list(mod.functions_items()):
            if isinstance(function, relax.Function):
                rewriter.builder_.update_func(variable, rewriter.visit_expr(function))
        if rewriter.errors:
            raise rewriter.errors[0]
        return rewriter.builder_.get()


@mutator
class _Rewriter(PyExprMutator):  # type: ignore[misc]
    """Replaces calls one by one."""

    def __init__(self, mod: tvm.IRModule, ctx: CompileContext, pass_name: str) -> None:
        super().__init__(mod)
        self.ctx = ctx
        self.pass_name = pass_name
        #: Raised after the walk: an exception that crosses TVM's C++ visitor loses its type.
        self.errors: list[CompileError] = []

    def visit_call_(self, call: Call) -> Any:
        call = super().visit_call_(call)
        name = op_name(call) or ""
        if name in _REFUSED:
            self.errors.append(CompileError(f"{name} is for training only", op=name))
        guard = _GUARDS.get(name)
        if guard is None:
            return call
        result = guard(self, call)
        if result is not call:
            self.ctx.report.decide(self.pass_name, name, True, "index comes from data")
        return result

    def emit(self, expr: Any) -> Any:
        """Bind an expression and give it a type."""
        return self.builder_.emit(expr)

    def kernel(self, function: Callable[..., Any], *args: Any, name: str) -> Any:
        """Call a kernel made from a tensor expression."""
        return self.builder_.call_te(function, *args, primfunc_name_hint=name)

    def checked(self, op: str, index: Any, size: Any) -> Any:
        """A constant index made non-negative; ``None`` for one that comes from data.

        A constant outside ``-size .. size - 1`` is an error of the model.
        """
        values = constant_array(index)
        if values is None or not isinstance(size, tirx.IntImm):
            return None
        extent = int(size)
        if values.size and (values.min() < -extent or values.max() >= extent):
            outside = values[(values < -extent) | (values >= extent)]
            first = int(outside.flat[0])
            error = CompileError(
                f"{op} reads or writes at index {first} of an axis of size {extent}",
                code="UIF-COMPILE-INDEX",
                op=op,
                hint=f"use indices in {-extent} .. {extent - 1}",
            )
            self.errors.append(error)
            return None
        return make_constant(np.where(values < 0, values + extent, values).astype(values.dtype))


def _rank(x: Any) -> int:
    return len(x.ty.shape)


def _flat(rewriter: _Rewriter, x: Any) -> Any:
    size: Any = tirx.IntImm("int64", 1)
    for extent in x.ty.shape:
        size = size * extent
    return rewriter.emit(relax.op.reshape(x, relax.ShapeExpr([size])))


def _take(rewriter: _Rewriter, call: Call) -> Any:
    data, indices = call.args
    if not isinstance(indices.ty, relax.TensorType):
        return call
    if call.attrs.axis is None:
        data, axis = _flat(rewriter, data) if _rank(data) != 1 else data, 0
    else:
        axis = int(call.attrs.axis) % _rank(data)
    constant = rewriter.checked("relax.take", indices, data.ty.shape[axis])
    indices = indices if constant is None else constant
    return rewriter.kernel(lambda x, i: indexing.take(x, i, axis), data, indices, name="take")


def _gather_elements(rewriter: _Rewriter, call: Call) -> Any:
    data, indices = call.args
    axis = int(call.attrs.axis) % _rank(data)
    constant = rewriter.checked("relax.gather_elements", indices, data.ty.shape[axis])
    indices = indices if constant is None else constant
    return rewriter.kernel(
        lambda x, i: indexing.gather_elements(x, i, axis), data, indices, name="gather_elements"
    )


def _gather_nd(rewriter: _Rewriter, call: Call) -> Any:
    data, indices = call.args
    batch = int(call.attrs.batch_dims)
    _check_tuples(rewriter, "relax.gather_nd", data, indices, batch)
    return rewriter.kernel(
        lambda x, i: indexing.gather_nd(x, i, batch), data, indices, name="gather_nd"
    )


def _check_tuples(rewriter: _Rewriter, op: str, data: Any, indices: Any, batch: int) -> None:
    """Check constant index tuples ``[.., depth]`` component by component."""
    values = constant_array(indices)
    if values is not None and values.ndim:
        for k in range(values.shape[-1]):
            rewriter.checked(op, make_constant(values[..., k]), data.ty.shape[batch + k])


def _fields(rewriter: _Rewriter, indices: Any) -> list[Any]:
    if isinstance(indices, relax.Tuple):
        return list(indices.fields)
    if not isinstance(indices.ty, relax.TupleType):
        return [indices]
    return [rewriter.emit(relax.TupleGetItem(indices, k)) for k in range(len(indices.ty.fields))]


def _index_tensor(rewriter: _Rewriter, call: Call) -> Any:
    data = call.args[0]
    indices = _fields(rewriter, call.args[1])
    for axis, index in enumerate(indices):
        rewriter.checked("relax.index_tensor", index, data.ty.shape[axis])
    axes = list(range(len(indices)))
    return rewriter.kernel(
        lambda x, *i: indexing.advanced_gather(x, list(i), axes),
        data,
        *indices,
        name="index_tensor",
    )


def _index_put(rewriter: _Rewriter, call: Call) -> Any:
    data, values = call.args[0], call.args[2]
    indices = _fields(rewriter, call.args[1])
    for axis, index in enumerate(indices):
        rewriter.checked("relax.index_put", index, data.ty.shape[axis])
    axes = list(range(len(indices)))
    accumulate = bool(call.attrs.accumulate)
    return rewriter.kernel(
        lambda x, new, *i: indexing.advanced_scatter(x, list(i), new, axes, accumulate),
        data,
        values,
        *indices,
        name="index_put",
    )


def _scatter_elements(rewriter: _Rewriter, call: Call) -> Any:
    data, indices, updates = call.args
    axis = int(call.attrs.axis) % _rank(data)
    rewriter.checked("relax.scatter_elements", indices, data.ty.shape[axis])
    reduction = str(call.attrs.reduction)
    return rewriter.kernel(
        lambda x, i, u: indexing.scatter_elements(x, i, u, axis, reduction),
        data,
        indices,
        updates,
        name="scatter_elements",
    )


def _scatter_nd(rewriter: _Rewriter, call: Call) -> Any:
    data, indices, updates = call.args
    _check_tuples(rewriter, "relax.scatter_nd", data, indices, 0)
    reduction = str(call.attrs.reduction)
    return rewriter.kernel(
        lambda x, i, u: indexing.scatter_nd(x, i, u, reduction),
        data,
        indices,
        updates,
        name="scatter_nd",
    )


def _dynamic_strided_slice(rewriter: _Rewriter, call: Call) -> Any:
    """Bounds as Python limits them, in the form the stock kernel reads without a check.

    The stock shape function adds the size to negative bounds once more, so "before the start" is
    written as ``-size - 1``; its reads take ``begin`` as it is, so that has to be exact.
    """
    data, begin, end, strides = call.args
    emit, op = rewriter.emit, relax.op
    zero, one = (make_constant(np.array(v, np.int64)) for v in (0, 1))
    size = emit(op.shape_to_tensor(relax.ShapeExpr(list(data.ty.shape)[: _length(begin)])))
    longest = emit(op.maximum(size, one))
    strides = emit(op.where(emit(op.equal(strides, zero)), one, strides))
    strides = emit(op.minimum(strides, longest))
    strides = emit(op.maximum(strides, emit(op.negative(longest))))
    back = emit(op.less(strides, zero))
    low = emit(op.where(back, make_constant(np.array(-1, np.int64)), zero))
    high = emit(op.where(back, emit(op.subtract(size, one)), size))
    before = emit(op.subtract(emit(op.negative(size)), one))

    def limited(bound: Any) -> Any:
        turned = emit(op.where(emit(op.less(bound, zero)), emit(op.add(bound, size)), bound))
        inside = emit(op.minimum(emit(op.maximum(turned, low)), high))
        return emit(op.where(emit(op.less(inside, zero)), before, inside))

    return op.dynamic_strided_slice(data, limited(begin), limited(end), strides)


def _length(vector: Any) -> int:
    return int(vector.ty.shape[0])


def _nll_loss(rewriter: _Rewriter, call: Call) -> Any:
    """``-weight[t] * p[t]`` where ``t`` is not the ignored index; the stock kernel reads first."""
    predictions, targets = call.args[:2]
    emit, op = rewriter.emit, relax.op
    dtype = str(predictions.ty.dtype.dtype)
    ignored = make_constant(np.asarray(int(call.attrs.ignore_index), str(targets.ty.dtype.dtype)))
    batched = _rank(predictions) > 1
    axis = 1 if batched else 0
    picked = emit(
        rewriter.kernel(
            lambda p, t: indexing.gather_elements(p, t, axis),
            predictions,
            emit(op.expand_dims(targets, axis)),
            name="nll_gather",
        )
    )
    picked = emit(op.squeeze(picked, [axis]))
    zero = make_constant(np.asarray(0, dtype))
    counted = emit(op.not_equal(targets, ignored))
    if len(call.args) == 3:
        weight = emit(
            rewriter.kernel(
                lambda w, t: indexing.take(w, t, 0), call.args[2], targets, name="nll_weight"
            )
        )
    else:
        weight = emit(op.ones_like(picked))
    weight = emit(op.where(counted, weight, zero))
    lost = emit(op.multiply(emit(op.negative(picked)), weight))
    lost = emit(op.where(counted, lost, zero))
    reduction = str(call.attrs.reduction)
    if reduction == "none":
        return lost
    total = emit(op.sum(lost))
    return total if reduction == "sum" else op.divide(total, emit(op.sum(weight)))


def _regions(rewriter: _Rewriter, call: Call) -> Any:
    """Regions of interest name their image in column 0, as a float."""
    data, regions = call.args
    emit, op = rewriter.emit, relax.op
    dtype = str(regions.ty.dtype.dtype)
    batch = data.ty.shape[0]
    columns = regions.ty.shape[1]
    if not isinstance(batch, tirx.IntImm):
        rewriter.errors.append(CompileError(f"{op_name(call)} over a dynamic batch is not safe"))
        return call
    image = emit(op.strided_slice(regions, [1], [0], [1]))
    image = emit(op.maximum(image, make_constant(np.asarray(0, dtype))))
    image = emit(op.minimum(image, make_constant(np.asarray(int(batch) - 1, dtype))))
    rest = emit(op.strided_slice(regions, [1], [1], [columns]))
    return Call(call.op, [data, emit(op.concat([image, rest], 1))], attrs=call.attrs)


_GUARDS: dict[str, Callable[[_Rewriter, Call], Any]] = {
    "relax.take": _take,
    "relax.gather_elements": _gather_elements,
    "relax.gather_nd": _gather_nd,
    "relax.index_tensor": _index_tensor,
    "relax.index_put": _index_put,
    "relax.scatter_elements": _scatter_elements,
    "relax.scatter_nd": _scatter_nd,
    "relax.dynamic_strided_slice": _dynamic_strided_slice,
    "relax.nn.nll_loss": _nll_loss,
    "relax.vision.roi_align": _regions,
    "relax.vision.roi_pool": _regions,
}

PASS = SafeIndexing()
