"""Operators that move, cut, join or relabel elements, and those that read shapes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from uif_tvm.frontends.converters.broadcast import broadcast_shape
from uif_tvm.frontends.converters.context import NodeContext, Unsupported
from uif_tvm.frontends.converters.minifloat import convert
from uif_tvm.frontends.converters.registry import converter
from uif_tvm.frontends.onnx.fold_symbolic import settle
from uif_tvm.frontends.onnx.values import (
    Dim,
    Dynamic,
    Known,
    Symbolic,
    Value,
    same_dim,
    shape_of,
    simplify,
)
from uif_tvm.kernels import movement
from uif_tvm.runtime.elements import is_stored


@converter("Constant")
def constant(ctx: NodeContext) -> Known:
    """A literal in any of the attribute's forms."""
    given = {k: v for k, v in ctx.attrs.items() if k.startswith(("value", "sparse_value"))}
    if len(given) != 1:
        raise ctx.invalid("exactly one value attribute must be given")
    name, value = next(iter(given.items()))
    if "string" in name:
        return Known(np.asarray(value, object))
    dtype = {"value_int": "int64", "value_ints": "int64"}.get(name, "float32")
    as_given = name in ("value", "sparse_value")
    return Known(np.asarray(value) if as_given else np.asarray(value, dtype))


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
    rank = ctx.static_shape(1)[0]
    zero_copies = not ctx.attrs.get("allowzero", 0)
    one = tirx.const(1, "int64")

    def compute(local: list[Any], raw: te.Tensor) -> te.Tensor:
        source = [tirx.const(d, "int64") if isinstance(d, int) else d for d in local]
        total = math.prod(source, start=one)

        def copied(i: int) -> Any:
            given = raw[i].astype("int64")
            if zero_copies and i < len(source):
                given = tirx.Select(given == 0, source[i], given)
            return given

        dims = [copied(i) for i in range(rank)]
        rest: Any = one
        for dim in dims:
            rest = rest * tirx.Select(dim < 1, one, dim)
        dims = [tirx.Select(d < 0, tirx.truncdiv(total, rest), d) for d in dims]

        def element(i: Any) -> Any:
            result: Any = tirx.const(0, "int64")
            for number, dim in enumerate(dims):
                result = tirx.Select(i == number, dim, result)
            return result

        return te.compute((rank,), element, name="target_shape")

    target = Dynamic(ctx.te_dims(compute, [ctx.expr(1)], ctx.shape(0), "target_shape"))
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
        drop = {axis for axis, dim in enumerate(dims) if _is_one(ctx, dim)}
    else:
        drop = {ctx.axis(axis, len(dims)) for axis in axes}
        for axis in drop:
            if isinstance(dims[axis], int) and dims[axis] != 1:
                raise ctx.invalid(f"dimension {axis} of {list(dims)} is not 1")
    kept = [dim for axis, dim in enumerate(dims) if axis not in drop]
    return checked_reshape(ctx, ctx.expr(0), kept)


def _is_one(ctx: NodeContext, dim: Dim) -> bool:
    return dim == 1 if isinstance(dim, int) else ctx.guess(tirx.EQ(dim, tirx.const(1, "int64")))


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
    if all(isinstance(times, int) for times in repeats):
        return ctx.op("tile", ctx.expr(0), repeats=tuple(repeats))
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
def cast(ctx: NodeContext) -> relax.Expr | Value:
    """Another element type; floats are cut towards zero, and booleans are ``!= 0``."""
    from uif_tvm.frontends.onnx.tensors import dtype_name

    if ctx.op_type == "CastLike":
        target = ctx.dtype(1)
    elif isinstance(ctx.attrs["to"], str):
        target = {"FLOAT": "float32", "DOUBLE": "float64"}.get(
            ctx.attrs["to"], ctx.attrs["to"].lower()
        )
    else:
        target = dtype_name(ctx.attrs["to"], "Cast")
    source = ctx.dtype(0)
    if source == target:
        return ctx.value(0)
    if is_stored(source) or is_stored(target):
        return convert(ctx, source, target)
    if target == "bool":
        zero = ctx.const(0, source)
        return ctx.emit(relax.op.not_equal(ctx.expr(0), zero))
    simple = ("float16", "float32", "float64", "bfloat16", "bool")
    if any(
        name not in simple and not name.lstrip("u").startswith("int") for name in (source, target)
    ):
        raise Unsupported(f"conversion from {source} to {target}")
    return ctx.cast(ctx.expr(0), target)


@converter("Trilu")
def trilu(ctx: NodeContext) -> relax.Expr:
    """The upper or lower triangle; zero elsewhere."""
    offset = ctx.array(1) if ctx.has(1) else np.zeros((), np.int64)
    upper = bool(ctx.attrs.get("upper", 1))
    if offset is not None:
        return ctx.op("trilu", ctx.expr(0), k=int(offset.reshape(-1)[0]), upper=upper)
    diagonal = ctx.reshape(ctx.expr(1), ())
    return ctx.te(lambda a, k: movement.trilu(a, k(), upper), ctx.expr(0), diagonal, name="trilu")


@converter("DepthToSpace")
def depth_to_space(ctx: NodeContext) -> relax.Expr:
    """Channels become blocks of pixels."""
    return _regrouped(ctx, "depth_to_space")


@converter("SpaceToDepth")
def space_to_depth(ctx: NodeContext) -> relax.Expr:
    """Blocks of pixels become channels."""
    return _regrouped(ctx, "space_to_depth")


def _regrouped(ctx: NodeContext, name: str) -> relax.Expr:
    mode = str(ctx.attrs.get("mode", "DCR"))
    return ctx.op(name, ctx.expr(0), blocksize=int(ctx.attrs["blocksize"]), mode=mode)
