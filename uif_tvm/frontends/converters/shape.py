"""Operators that move, cut, join or relabel elements, and those that read shapes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from uif_tvm.frontends.converters.broadcast import broadcast_shape
from uif_tvm.frontends.converters.context import NodeContext, Unsupported
from uif_tvm.frontends.converters.dtypes import kind
from uif_tvm.frontends.converters.registry import converter
from uif_tvm.frontends.onnx.fold import settle
from uif_tvm.frontends.onnx.values import (
    Dim,
    Dynamic,
    Known,
    Symbolic,
    is_static,
    same_dim,
    shape_of,
    simplify,
)


@converter("Constant")
def constant(ctx: NodeContext) -> Known:
    """A literal in any of the attribute's forms."""
    given = {k: v for k, v in ctx.attrs.items() if k.startswith(("value", "sparse_value"))}
    if len(given) != 1:
        raise ctx.invalid("exactly one value attribute must be given")
    name, value = next(iter(given.items()))
    if "string" in name:
        raise Unsupported("text constants do not run on a device")
    if name == "sparse_value":
        raise Unsupported("sparse constants", "store it dense")
    dtype = {"value_int": "int64", "value_ints": "int64"}.get(name, "float32")
    return Known(np.asarray(value) if name == "value" else np.asarray(value, dtype))


@converter("Shape")
def shape(ctx: NodeContext) -> Known | Symbolic:
    """Dimensions, or a range of them."""
    dims = list(ctx.shape(0))
    rank = len(dims)
    start = int(ctx.attrs.get("start", 0))
    end = int(ctx.attrs.get("end", rank))
    start = min(max(start + rank if start < 0 else start, 0), rank)
    end = min(max(end + rank if end < 0 else end, 0), rank)
    elements = np.empty(max(end - start, 0), dtype=object)
    elements[:] = dims[start:end]
    return settle(elements, "int64")


@converter("Size")
def size(ctx: NodeContext) -> Known | Symbolic:
    """Number of elements."""
    elements = np.empty((), dtype=object)
    elements[()] = math.prod(ctx.shape(0))
    return settle(elements, "int64")


@converter("Reshape")
def reshape(ctx: NodeContext) -> relax.Expr:
    """Another shape of as many elements; 0 copies a dimension, -1 takes what is left."""
    if ctx.version < 5:
        wanted: list[Dim] = list(ctx.attrs["shape"])
    elif isinstance(ctx.tensor(1), Dynamic):
        return _reshape_at_run_time(ctx)
    else:
        wanted = ctx.dims(1)
    source = ctx.shape(0)
    if not ctx.attrs.get("allowzero", 0):
        for axis, dim in enumerate(wanted):
            if isinstance(dim, int) and dim == 0:
                if axis >= len(source):
                    raise ctx.invalid(f"dimension {axis} is copied from an input of rank lower")
                wanted[axis] = source[axis]
    total = math.prod(source)
    free = [axis for axis, dim in enumerate(wanted) if isinstance(dim, int) and dim == -1]
    if len(free) > 1:
        raise ctx.invalid(f"shape {wanted} leaves more than one dimension open")
    if free:
        rest = simplify(math.prod(dim for axis, dim in enumerate(wanted) if axis != free[0]))
        if isinstance(rest, int) and rest == 0:
            raise ctx.invalid("-1 cannot be inferred beside a dimension of 0")
        wanted[free[0]] = simplify(total // rest)
    goal = math.prod(wanted)
    if isinstance(total, int) and isinstance(goal, int) and total != goal:
        raise ctx.invalid(f"cannot reshape {list(source)} to {wanted}")
    return checked_reshape(ctx, ctx.expr(0), wanted)


def checked_reshape(ctx: NodeContext, expr: relax.Expr, wanted: list[Dim]) -> relax.Expr:
    """Reshape; where the element counts agree only at run time, the runtime checks them."""
    ctx.require_equal(math.prod(shape_of(expr)), math.prod(wanted))
    return ctx.reshape(expr, wanted)


def _reshape_at_run_time(ctx: NodeContext) -> relax.Expr:
    """The target shape is data: settle 0 and -1 there, then read the dimensions back."""
    source = ctx.static_shape(0)
    rank = ctx.static_shape(1)[0]
    zero_copies = not ctx.attrs.get("allowzero", 0)
    total = math.prod(source)
    one = tirx.const(1, "int64")

    def compute(raw: te.Tensor) -> te.Tensor:
        def copied(i: int) -> Any:
            given = raw[i]
            if zero_copies and i < len(source):
                given = tirx.Select(given == 0, tirx.const(source[i], "int64"), given)
            return given

        dims = [copied(i) for i in range(rank)]
        rest: Any = one
        for dim in dims:
            rest = rest * tirx.Select(dim < 1, one, dim)
        dims = [
            tirx.Select(d < 0, tirx.truncdiv(tirx.const(total, "int64"), rest), d) for d in dims
        ]

        def element(i: Any) -> Any:
            result: Any = tirx.const(0, "int64")
            for number, dim in enumerate(dims):
                result = tirx.Select(i == number, dim, result)
            return result

        return te.compute((rank,), element, name="target_shape")

    target = Dynamic(ctx.te(compute, ctx.expr(1), name="target_shape"))
    wanted = [simplify(dim) for dim in ctx.settled(target, sizes=True).reshape(-1)]
    return checked_reshape(ctx, ctx.expr(0), wanted)


@converter("Flatten")
def flatten(ctx: NodeContext) -> relax.Expr:
    """Two dimensions, split before ``axis``."""
    dims = ctx.shape(0)
    axis = int(ctx.attrs.get("axis", 1))
    if not -len(dims) <= axis <= len(dims):
        raise ctx.invalid(f"axis {axis} does not exist in a tensor of rank {len(dims)}")
    axis = axis + len(dims) if axis < 0 else axis
    wanted = [simplify(math.prod(dims[:axis])), simplify(math.prod(dims[axis:]))]
    return ctx.reshape(ctx.expr(0), wanted)


def _axes(ctx: NodeContext, index: int) -> list[int] | None:
    if ctx.has(index):
        return [int(axis) for axis in ctx.known(index, "axes").reshape(-1)]
    return list(ctx.attrs["axes"]) if "axes" in ctx.attrs else None


@converter("Squeeze")
def squeeze(ctx: NodeContext) -> relax.Expr:
    """Drop dimensions of 1."""
    dims = ctx.shape(0)
    axes = _axes(ctx, 1)
    if axes is None:
        drop = {axis for axis, dim in enumerate(dims) if isinstance(dim, int) and dim == 1}
    else:
        drop = {ctx.axis(axis, len(dims)) for axis in axes}
        for axis in drop:
            if isinstance(dims[axis], int) and dims[axis] != 1:
                raise ctx.invalid(f"dimension {axis} of {list(dims)} is not 1")
    kept = [dim for axis, dim in enumerate(dims) if axis not in drop]
    return checked_reshape(ctx, ctx.expr(0), kept)


@converter("Unsqueeze")
def unsqueeze(ctx: NodeContext) -> relax.Expr:
    """Insert dimensions of 1."""
    axes = _axes(ctx, 1) or []
    rank = ctx.rank(0) + len(axes)
    places = {ctx.axis(axis, rank) for axis in axes}
    if len(places) != len(axes):
        raise ctx.invalid(f"axes {axes} repeat")
    rest = iter(ctx.shape(0))
    return ctx.reshape(ctx.expr(0), [1 if i in places else next(rest) for i in range(rank)])


@converter("Transpose")
def transpose(ctx: NodeContext) -> relax.Expr:
    """Axes in another order; reversed by default."""
    rank = ctx.rank(0)
    perm = ctx.attrs.get("perm", list(range(rank))[::-1])
    if sorted(perm) != list(range(rank)):
        raise ctx.invalid(f"perm {perm} is not an order of {rank} axes")
    if list(perm) == list(range(rank)):
        return ctx.expr(0)
    return ctx.emit(relax.op.permute_dims(ctx.expr(0), list(perm)))


@converter("Concat")
def concat(ctx: NodeContext) -> Any:
    """Join along an axis."""
    tensors = [ctx.tensor(i) for i in range(len(ctx.inputs))]
    rank = len(tensors[0].shape)
    axis = ctx.axis(int(ctx.attrs.get("axis", 1)), rank)
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) > 1:
        raise ctx.invalid(f"operands have different dtypes: {sorted(dtypes)}")
    if any(isinstance(t, Symbolic) for t in tensors) and rank == 1:
        parts = [ctx.settled(t) for t in tensors]
        return settle(np.concatenate(parts), tensors[0].dtype)
    kept = [t for t in tensors if not (isinstance(t.shape[axis], int) and t.shape[axis] == 0)]
    if len(kept) <= 1:
        return kept[0] if kept else tensors[0]
    return ctx.emit(
        relax.op.concat(concat_aligned(ctx, [ctx.as_expr(t) for t in kept], axis), axis)
    )


def concat_aligned(ctx: NodeContext, exprs: list[relax.Expr], axis: int) -> list[relax.Expr]:
    """Operands whose other dimensions agree; symbolic ones are checked at run time."""
    shapes = [list(shape_of(expr)) for expr in exprs]
    for at in range(len(shapes[0])):
        if at == axis:
            continue
        fixed = [s[at] for s in shapes if isinstance(s[at], int)] or [shapes[0][at]]
        if any(dim != fixed[0] for dim in fixed if isinstance(dim, int)):
            raise ctx.invalid(f"shapes {[list(map(str, s)) for s in shapes]} cannot be joined")
        for s in shapes:
            s[at] = fixed[0]
    return [ctx.with_shape(expr, s) for expr, s in zip(exprs, shapes, strict=True)]


@converter("Split")
def split(ctx: NodeContext) -> list[Any]:
    """Cut along an axis, into given or equal parts."""
    count = len(ctx.outputs)
    axis = ctx.axis(int(ctx.attrs.get("axis", 0)), ctx.rank(0))
    extent = ctx.shape(0)[axis]
    if ctx.has(1):
        sizes = [int(v) for v in ctx.known(1, "split").reshape(-1)]
    elif "split" in ctx.attrs:
        sizes = list(ctx.attrs["split"])
    else:
        count = int(ctx.attrs.get("num_outputs", count))
        if not isinstance(extent, int):
            raise Unsupported("equal parts of a dimension that depends on the data")
        part = -(-extent // count)
        sizes = [max(min(part, extent - part * i), 0) for i in range(count)]
    if isinstance(extent, int) and (sum(sizes) != extent or min(sizes, default=0) < 0):
        raise ctx.invalid(f"parts {sizes} do not add up to {extent}")
    if len(sizes) < len(ctx.outputs):
        raise ctx.invalid(f"{len(ctx.outputs)} outputs for {len(sizes)} parts")
    if len(sizes) == 1:
        return [ctx.expr(0)]
    if all(size > 0 for size in sizes):
        at = [int(v) for v in np.cumsum(sizes)[:-1]]
        parts = ctx.emit(relax.op.split(ctx.expr(0), at, axis))
        return [ctx.emit(relax.TupleGetItem(parts, i)) for i in range(len(sizes))]
    results = []
    for start, length in zip(np.cumsum([0, *sizes[:-1]]), sizes, strict=True):
        results.append(cut(ctx, ctx.expr(0), {axis: (int(start), int(start) + length, 1)}))
    return results


def cut(ctx: NodeContext, expr: relax.Expr, ranges: dict[int, tuple[Dim, Dim, int]]) -> Any:
    """Slices (begin, end, step) along axes; begin and end already clamped as Python does."""
    dims = list(shape_of(expr))
    begins = {axis: begin for axis, (begin, _, _) in ranges.items()}
    for axis, (begin, end, step) in ranges.items():
        extent = end - begin if step > 0 else begin - end
        dims[axis] = simplify((extent + abs(step) - 1) // abs(step))
        if isinstance(dims[axis], int):
            dims[axis] = max(dims[axis], 0)
    if is_static(tuple(dims)) and 0 in dims:
        from uif_tvm.frontends.onnx.tensors import numpy_dtype_named

        return Known(np.empty(dims, numpy_dtype_named(str(expr.ty.dtype))))
    if all(isinstance(v, int) for begin, end, _ in ranges.values() for v in (begin, end)) and all(
        step > 0 for _, _, step in ranges.values()
    ):
        axes = sorted(ranges)
        return ctx.emit(
            relax.op.strided_slice(
                expr,
                axes,
                [ranges[a][0] for a in axes],
                [ranges[a][1] for a in axes],
                [ranges[a][2] for a in axes],
            )
        )
    order = sorted(ranges)

    def compute(local: list[Any], a: te.Tensor) -> te.Tensor:
        starts = dict(zip(order, local, strict=False))

        def at(*index: Any) -> Any:
            return a(
                *[
                    starts[axis] + i * ranges[axis][2] if axis in ranges else i
                    for axis, i in enumerate(index)
                ]
            )

        return te.compute(local[len(order) :], at, name="slice")

    return ctx.te_dims(compute, [expr], [*[begins[axis] for axis in order], *dims], "slice")


@converter("Slice")
def slice_(ctx: NodeContext) -> Any:
    """Slices along axes, as Python's, with steps."""
    if ctx.version < 10:
        starts: list[Dim] = list(ctx.attrs["starts"])
        ends: list[Dim] = list(ctx.attrs["ends"])
        axes = list(ctx.attrs.get("axes", range(len(starts))))
        steps = [1] * len(starts)
    else:
        starts, ends = ctx.dims(1), ctx.dims(2)
        axes = [int(v) for v in ctx.known(3, "axes")] if ctx.has(3) else list(range(len(starts)))
        steps = [int(v) for v in ctx.known(4, "steps")] if ctx.has(4) else [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise ctx.invalid("starts, ends, axes and steps differ in length")
    dims = ctx.shape(0)
    ranges: dict[int, tuple[Dim, Dim, int]] = {}
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step == 0:
            raise ctx.invalid("a step of 0")
        at = ctx.axis(axis, len(dims))
        extent = dims[at]
        begin = _clamped(start, extent, step > 0, False)
        stop = _clamped(end, extent, step > 0, True)
        if isinstance(begin, int) and isinstance(stop, int) and (stop - begin) * step <= 0:
            stop = begin
        if (begin, stop, step) != (0, extent, 1):
            ranges[at] = (begin, stop, step)
    return cut(ctx, ctx.expr(0), ranges) if ranges else ctx.value(0)


def _clamped(bound: Dim, extent: Dim, forward: bool, is_end: bool) -> Dim:
    """A slice bound moved into [0, extent], or [-1, extent - 1] for negative steps."""
    low, high = (0, extent) if forward else (-1 if is_end else 0, extent - 1)
    if isinstance(bound, int) and isinstance(extent, int):
        at = bound + extent if bound < 0 else bound
        if not forward and not is_end and extent and at < 0:
            return -1  # nothing to visit
        return min(max(at, low), int(high))
    if isinstance(bound, int):
        if bound >= 2**31 - 1:
            return high
        if bound <= -(2**31) + 1:
            return low
        if bound == 0 and forward:
            return 0
        at_symbolic = bound + extent if bound < 0 else bound
    elif same_dim(extent, bound):
        return extent
    else:
        at_symbolic = tirx.Select(bound < 0, bound + extent, bound)
    low_expr = tirx.const(low, "int64")
    high_expr = tirx.const(high, "int64") if isinstance(high, int) else high
    at_expr = tirx.const(at_symbolic, "int64") if isinstance(at_symbolic, int) else at_symbolic
    return simplify(tirx.max(low_expr, tirx.min(at_expr, high_expr)))


@converter("Expand")
def expand(ctx: NodeContext) -> relax.Expr:
    """Two-way broadcast with a shape."""
    target = broadcast_shape(ctx, ctx.shape(0), ctx.dims(1, sizes=True))
    return broadcast_to(ctx, ctx.expr(0), target)


def broadcast_to(ctx: NodeContext, expr: relax.Expr, target: tuple[Dim, ...]) -> relax.Expr:
    """``expr`` broadcast to a shape; unchanged when it has it."""
    now = shape_of(expr)
    if len(now) == len(target) and all(map(same_dim, now, target)):
        return expr
    return ctx.emit(relax.op.broadcast_to(expr, relax.ShapeExpr(list(target))))


@converter("Tile")
def tile(ctx: NodeContext) -> relax.Expr:
    """Repeat along each axis."""
    if ctx.version < 6:
        raise Unsupported("Tile before operator set 6")
    repeats = ctx.dims(1, sizes=True)
    if len(repeats) != ctx.rank(0):
        raise ctx.invalid(f"{len(repeats)} repeats for a tensor of rank {ctx.rank(0)}")
    dims = ctx.shape(0)
    wanted = [simplify(d * r) for d, r in zip(dims, repeats, strict=True)]

    def compute(shape: list[Any], a: te.Tensor) -> te.Tensor:
        return te.compute(
            shape,
            lambda *i: a(*[tirx.floormod(x, d) for x, d in zip(i, a.shape, strict=True)]),
            name="tile",
        )

    return ctx.te_dims(compute, [ctx.expr(0)], wanted, "tile")


@converter("Cast", "CastLike")
def cast(ctx: NodeContext) -> relax.Expr:
    """Another element type; floats are cut towards zero, and booleans are ``!= 0``."""
    from uif_tvm.frontends.onnx.tensors import numpy_dtype

    if ctx.op_type == "CastLike":
        target = ctx.dtype(1)
    elif isinstance(ctx.attrs["to"], str):
        target = {"FLOAT": "float32", "DOUBLE": "float64"}.get(
            ctx.attrs["to"], ctx.attrs["to"].lower()
        )
    else:
        target = str(numpy_dtype(ctx.attrs["to"], "Cast"))
    source = ctx.dtype(0)
    if source == target:
        return ctx.expr(0)
    if target == "bool":
        zero = ctx.const(0, source)
        return ctx.emit(relax.op.not_equal(ctx.expr(0), zero))
    simple = ("float16", "float32", "float64", "bfloat16", "bool")
    if any(
        name not in simple and not name.lstrip("u").startswith("int") for name in (source, target)
    ):
        raise Unsupported(f"conversion from {source} to {target}")
    if "int4" in (source.lstrip("u"), target.lstrip("u")) or "int2" in (
        source.lstrip("u"),
        target.lstrip("u"),
    ):
        raise Unsupported(f"conversion from {source} to {target}")
    return ctx.cast(ctx.expr(0), target)


@converter("ConstantOfShape")
def constant_of_shape(ctx: NodeContext) -> relax.Expr:
    """A tensor of one value."""
    value = np.asarray(ctx.attrs.get("value", np.zeros(1, np.float32))).reshape(())
    dims = ctx.dims(0, sizes=True)
    fill = ctx.importer.constant(value)
    return ctx.emit(relax.op.full(relax.ShapeExpr(dims), fill, str(value.dtype)))


@converter("Range")
def range_(ctx: NodeContext) -> relax.Expr:
    """Numbers from start to limit; a limit that is data makes the length symbolic."""
    dtype = ctx.dtype(0)
    if "int" not in dtype:
        return _float_range(ctx, dtype)
    start, limit, step = (ctx.dims(i)[0] for i in range(3))
    if not isinstance(step, int) or step == 0:
        raise Unsupported("a step that arrives at run time")
    span = limit - start if step > 0 else start - limit
    length = simplify((span + abs(step) - 1) // abs(step))
    if not isinstance(length, int):
        length = simplify(tirx.max(length, tirx.const(0, "int64")))

    def compute(local: list[Any]) -> te.Tensor:
        first, count = local
        return te.compute((count,), lambda i: (first + i * step).astype(dtype), name="range")

    return ctx.te_dims(compute, [], [start, length], "range")


def _float_range(ctx: NodeContext, dtype: str) -> relax.Expr:
    """ceil((limit - start) / step) numbers; how many is known at run time only."""
    bounds = [ctx.reshape(ctx.expr(i), ()) for i in range(3)]

    def length(start: te.Tensor, limit: te.Tensor, step: te.Tensor) -> te.Tensor:
        def at(_: Any) -> Any:
            zero = step() == tirx.const(0, dtype)
            span = (limit() - start()) / tirx.Select(zero, tirx.const(1, dtype), step())
            count = tirx.ceil(span).astype("int64")
            return tirx.Select(zero, tirx.const(0, "int64"), tirx.max(count, 0))

        return te.compute((1,), at, name="range_length")

    count = ctx.settled(Dynamic(ctx.te(length, *bounds, name="range_length")), sizes=True)[0]

    def fill(local: list[Any], start: te.Tensor, step: te.Tensor) -> te.Tensor:
        return te.compute((local[0],), lambda i: start() + i.astype(dtype) * step(), name="range")

    return ctx.te_dims(fill, [bounds[0], bounds[2]], [count], "range")


@converter("EyeLike")
def eye_like(ctx: NodeContext) -> relax.Expr:
    """Ones on a diagonal."""
    from uif_tvm.frontends.onnx.tensors import numpy_dtype

    rows, columns = ctx.static_shape(0)
    named = "dtype" in ctx.attrs
    dtype = str(numpy_dtype(ctx.attrs["dtype"], "EyeLike")) if named else ctx.dtype(0)
    return Known(np.eye(rows, columns, int(ctx.attrs.get("k", 0))).astype(dtype))


@converter("Trilu")
def trilu(ctx: NodeContext) -> relax.Expr:
    """The upper or lower triangle; zero elsewhere."""
    offset = ctx.array(1) if ctx.has(1) else np.zeros((), np.int64)
    upper = bool(ctx.attrs.get("upper", 1))
    extra = [] if offset is not None else [ctx.reshape(ctx.expr(1), ())]

    def compute(a: te.Tensor, *k: te.Tensor) -> te.Tensor:
        def at(*i: Any) -> Any:
            shift = k[0]() if k else int(np.asarray(offset).reshape(-1)[0])
            difference = (i[-1] - i[-2]).astype("int64")
            kept = difference >= shift if upper else difference <= shift
            return tirx.Select(kept, a(*i), tirx.const(0, kind(a)))

        return te.compute(a.shape, at, name="trilu")

    return ctx.te(compute, ctx.expr(0), *extra, name="trilu")


@converter("DepthToSpace")
def depth_to_space(ctx: NodeContext) -> relax.Expr:
    """Channels become blocks of pixels."""
    n, c, h, w = ctx.shape(0)
    b = int(ctx.attrs["blocksize"])
    if ctx.attrs.get("mode", "DCR") == "DCR":
        x = ctx.reshape(ctx.expr(0), [n, b, b, c // (b * b), h, w])
        x = ctx.emit(relax.op.permute_dims(x, [0, 3, 4, 1, 5, 2]))
    else:
        x = ctx.reshape(ctx.expr(0), [n, c // (b * b), b, b, h, w])
        x = ctx.emit(relax.op.permute_dims(x, [0, 1, 4, 2, 5, 3]))
    return ctx.reshape(x, [n, c // (b * b), h * b, w * b])


@converter("SpaceToDepth")
def space_to_depth(ctx: NodeContext) -> relax.Expr:
    """Blocks of pixels become channels."""
    n, c, h, w = ctx.shape(0)
    b = int(ctx.attrs["blocksize"])
    x = ctx.reshape(ctx.expr(0), [n, c, h // b, b, w // b, b])
    x = ctx.emit(relax.op.permute_dims(x, [0, 3, 5, 1, 2, 4]))
    return ctx.reshape(x, [n, c * b * b, h // b, w // b])
