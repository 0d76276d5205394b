"""Kernels that treat every channel alike, lifted to blocked tensors.

    k(x, s)[n, c, ...] = f(x[., c, .], s[c])
      ->  k'(x', s')[n, b, ..., l] = f(x'[., b, ., l], s'[b, l])      c = b * width + l

``c`` may index buffers only plainly (``c``, not ``c + 1``) and may occur nowhere else, so that each
lane of a blocked tensor computes what its channel computed. That covers what importers emit as
kernels of their own: activations, padding, pooling, resizing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uif_tvm.kernels.layout import OPAQUE, blocks, extents, reduce_axis

if TYPE_CHECKING:
    import tvm
    from tvm.tirx import PrimFunc


#: Element-wise stages up to this many become one expression, at the price of repeated parts.
MAX_INLINED = 4


class _NotLiftable(Exception):
    """Carries the reason."""


@dataclass(frozen=True)
class Lifted:
    """A lifted kernel.

    Args:
        func: over blocked buffers; parameters in the order of the original.
        axes: per input, the axis that the channel indexed, ``None`` where it did not.
        elementwise: every element depends on its own position only.
    """

    func: PrimFunc
    axes: tuple[int | None, ...]
    elementwise: bool


@dataclass
class _Block:
    """One block of the original: ``out[spatial] = value`` or a reduction of ``value``."""

    out: Any
    spatial: list[Any]
    reduced: list[Any]
    value: Any
    reducer: str | None


def lift(func: PrimFunc, width: int) -> Lifted | str:
    """``func`` over channels in blocks of ``width``, or why there is no such kernel.

    The result must be ``[N, C, H, W]`` and the last parameter.
    """
    try:
        stages = _read(func)
        axes = _channel_axes(func, stages)
        lifted = _rebuild(func, stages, axes, width)
    except _NotLiftable as reason:
        return str(reason)
    elementwise = _elementwise(stages, axes)
    if not elementwise:
        # A producer's epilogue must not swallow it: its schedule would be lost.
        lifted = lifted.with_attr("op_pattern", OPAQUE)
    return Lifted(lifted, tuple(axes.get(param) for param in func.params[:-1]), elementwise)


def _read(func: PrimFunc) -> list[_Block]:
    """The blocks of a function that TE made."""
    from tvm import s_tir, tirx

    if not isinstance(func.body, s_tir.SBlockRealize):
        raise _NotLiftable("no root block")
    body = func.body.block.body
    found = []
    for nest in body.seq if isinstance(body, tirx.SeqStmt) else [body]:
        while isinstance(nest, tirx.For):
            nest = nest.body
        if not isinstance(nest, s_tir.SBlockRealize):
            raise _NotLiftable(f"a {type(nest).__name__} where a block was expected")
        found.append(_read_block(nest.block))
    if not found[-1].out.same_as(func.params[-1]):
        raise _NotLiftable("the last block does not write the last parameter")
    if any(b.out.same_as(p) for b in found[:-1] for p in func.params):
        raise _NotLiftable("several results")
    return found


def _read_block(block: Any) -> _Block:
    from tvm import tirx

    store = block.body
    spatial = [v.var for v in block.iter_vars if v.iter_type == tirx.IterVar.DataPar]
    reduced = [v for v in block.iter_vars if v.iter_type == tirx.IterVar.CommReduce]
    if not isinstance(store, tirx.BufferStore) or len(block.writes) != 1:
        raise _NotLiftable(f"block {block.name_hint} is not a single store")
    at = list(store.indices)
    if len(at) != len(spatial) or not all(i.same_as(v) for i, v in zip(at, spatial, strict=True)):
        raise _NotLiftable(f"block {block.name_hint} does not store at its own indices")
    value, reducer = store.value, None
    if block.init is not None:
        reducer, value = _reduction(store)
    return _Block(store.buffer, spatial, reduced, value, reducer)


def _reduction(store: Any) -> tuple[str, Any]:
    """(TE reducer, value) of ``out = reducer(out, value)``."""
    import tvm
    from tvm import tirx

    for kind, name in ((tirx.Add, "sum"), (tirx.Max, "max"), (tirx.Min, "min")):
        value = store.value
        if not isinstance(value, kind) or not isinstance(value.a, tvm.ir.TensorLoad):
            continue
        if value.a.source.same_as(store.buffer):
            return name, value.b
    raise _NotLiftable("an unknown reduction")


def _elementwise(stages: list[_Block], axes: dict[Any, int]) -> bool:
    """Whether every stage reads full-size buffers at its own point only."""
    import tvm
    import tvm_ffi

    aligned = all(stage.reducer is None for stage in stages)
    for stage in stages:
        shape = [int(extent) for extent in stage.out.shape]

        def load(node: Any, stage: _Block = stage, shape: list[int] = shape) -> Any:
            nonlocal aligned
            if node.source in axes and len(node.indices) == len(shape):
                same = [int(extent) for extent in node.source.shape] == shape
                at = zip(node.indices, stage.spatial, shape, strict=True)
                aligned = aligned and same
                aligned = aligned and all(i.same_as(v) or size == 1 for i, v, size in at)
            return node

        tvm_ffi.structural_map(stage.value, [(tvm.ir.TensorLoad, load)])
    return aligned


def _channel_axes(func: PrimFunc, stages: list[_Block]) -> dict[Any, int]:
    """Buffer -> the axis its blocks' channel variable indexes."""
    result = func.params[-1]
    axes: dict[Any, int] = {result: 1}
    if len(result.shape) != 4:
        raise _NotLiftable(f"the result has {len(result.shape)} axes")
    for stage in reversed(stages):
        if stage.out in axes:
            _follow(stage, stage.spatial[axes[stage.out]], axes)
    return axes


def _follow(stage: _Block, channel: Any, axes: dict[Any, int]) -> None:
    """Add the buffers that ``channel`` indexes; it may occur nowhere else."""
    import tvm
    import tvm_ffi
    from tvm import tirx

    wrong: list[str] = []  # exceptions do not pass through TVM's mapper

    def load(node: Any) -> Any:
        at = list(node.indices)
        where = [axis for axis, index in enumerate(at) if index.same_as(channel)]
        if len(where) > 1 or (where and axes.setdefault(node.source, where[0]) != where[0]):
            wrong.append(f"{node.source.name} is indexed by channel along several axes")
        if not where and node.source in axes:
            wrong.append(f"{node.source.name} is also read without the channel")
        for axis in where:
            at[axis] = tirx.IntImm("int64", 0)
        return tirx.BufferLoad(node.source, at)

    def variable(var: Any) -> Any:
        if var.same_as(channel):
            wrong.append("the channel is used in arithmetic")
        return var

    callbacks = [(tvm.ir.TensorLoad, load), (tirx.Var, variable)]
    tvm_ffi.structural_map(stage.value, callbacks, order="pre")
    if wrong:
        raise _NotLiftable(wrong[0])


def blocked_shape(shape: tuple[int, ...], axis: int, width: int) -> tuple[int, ...]:
    """``shape`` with ``axis`` in blocks and the lane last."""
    return (*shape[:axis], blocks(shape[axis], width), *shape[axis + 1 :], width)


def _rebuild(
    func: PrimFunc, stages: list[_Block], axes: dict[Any, int], width: int
) -> tvm.tirx.PrimFunc:
    """The same stages as TE over blocked tensors."""
    from tvm import te, tirx

    def shape(buffer: Any) -> tuple[int, ...]:
        if any(not isinstance(extent, tirx.IntImm) for extent in buffer.shape):
            raise _NotLiftable("a shape is not static")
        plain = tuple(int(extent) for extent in buffer.shape)
        return blocked_shape(plain, axes[buffer], width) if buffer in axes else plain

    tensors = {
        param: te.placeholder(extents(*shape(param)), str(param.dtype), name=str(param.name))
        for param in func.params[:-1]
    }
    # FuseOps takes a kernel as an epilogue only when it is a single element-wise block.
    inline = len(stages) <= MAX_INLINED and all(stage.reducer is None for stage in stages)
    for stage in stages:
        body = _stage_body(stage, shape(stage.out), tensors, axes)
        if inline and stage is not stages[-1]:
            tensors[stage.out] = body
        else:
            name = str(stage.out.name)
            tensors[stage.out] = te.compute(extents(*shape(stage.out)), body, name=name)
    return te.create_prim_func([tensors[param] for param in func.params]).without_attr(
        "global_symbol"
    )


def _stage_body(
    stage: _Block, shape: tuple[int, ...], tensors: dict[Any, Any], axes: dict[Any, int]
) -> Callable[..., Any]:
    """One stage as a function of the indices of its lifted buffer, of shape ``shape``."""
    import tvm
    import tvm_ffi
    from tvm import te, tirx

    reduced = {v.var: reduce_axis(int(v.dom.extent), str(v.var.name)) for v in stage.reduced}

    def body(*at: Any) -> Any:
        bound: dict[Any, Any] = dict(zip(stage.spatial, at, strict=False))
        bound |= {var: axis.var for var, axis in reduced.items()}

        def load(node: Any) -> Any:
            lane = [at[-1]] if node.source in axes else []
            indices = list(node.indices)
            for axis, extent in enumerate(node.source.shape):
                # TE writes 0 for the only index of an axis; FuseOps would see a broadcast.
                if len(indices) == len(stage.spatial) and int(extent) == shape[axis] == 1:
                    indices[axis] = at[axis]
            return tensors[node.source](*indices, *lane)

        value = tvm_ffi.structural_map(
            stage.value,
            [(tirx.Var, lambda var: bound.get(var, var)), (tvm.ir.TensorLoad, load)],
        )
        if stage.reducer is None:
            return value
        return getattr(te, stage.reducer)(value, axis=list(reduced.values()))

    return body
