"""Random graphs: a model, its inputs, and what its outputs should be."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx

from tests.fuzz.graphs import (
    steps_blocks,
    steps_conv,
    steps_elementwise,
    steps_linear,
    steps_movement,
)
from tests.fuzz.graphs.evaluate import EPS, Array, Refused, simulated
from tests.fuzz.graphs.maker import MANY_ELEMENTS, Maker, Value, model, numpy_dtype

Step = Callable[[Maker], None]

#: What a graph is made of, with weights. ``special`` steps also take NaN and infinities.
STEPS: dict[Step, int] = {
    steps_elementwise.unary: 6,
    steps_elementwise.binary: 8,
    steps_elementwise.safe_domain: 2,
    steps_elementwise.jump: 1,
    steps_elementwise.many: 1,
    steps_elementwise.clip: 1,
    steps_elementwise.compare: 2,
    steps_elementwise.where: 1,
    steps_elementwise.cast: 2,
    steps_elementwise.integer: 1,
    steps_elementwise.special_test: 1,
    steps_elementwise.branch: 1,
    steps_movement.reshape: 3,
    steps_movement.merge_axes: 2,
    steps_movement.transpose: 4,
    steps_movement.flatten: 2,
    steps_movement.slices: 2,
    steps_movement.concat: 3,
    steps_movement.split: 2,
    steps_movement.pad: 2,
    steps_movement.gather: 2,
    steps_movement.gather_elements: 1,
    steps_movement.scatter: 1,
    steps_movement.expand: 2,
    steps_movement.rearrange: 1,
    steps_movement.resize: 1,
    steps_linear.reduction: 4,
    steps_linear.arg_reduction: 1,
    steps_linear.cumsum: 1,
    steps_linear.dense: 5,
    steps_linear.shared_input: 3,
    steps_linear.gated: 2,
    steps_linear.gemm: 2,
    steps_linear.matmul: 3,
    steps_linear.matmul_constant_left: 1,
    steps_linear.einsum: 1,
    steps_conv.conv: 7,
    steps_conv.residual: 4,
    steps_conv.separable: 2,
    steps_conv.transposed: 2,
    steps_conv.pool: 3,
    steps_blocks.softmax: 3,
    steps_blocks.spelled_activation: 4,
    steps_blocks.norm: 3,
    steps_blocks.spelled_norm: 4,
    steps_blocks.attention: 4,
    steps_blocks.rope: 2,
}
SPECIAL: dict[Step, int] = {
    steps_elementwise.unary: 6,
    steps_elementwise.binary: 6,
    steps_elementwise.clip: 2,
    steps_elementwise.compare: 2,
    steps_elementwise.where: 2,
    steps_elementwise.special_test: 2,
    steps_movement.transpose: 2,
    steps_movement.reshape: 2,
    steps_movement.concat: 2,
    steps_movement.slices: 2,
    steps_movement.pad: 1,
}
#: Families that a graph leans to, so that deep chains of one kind come up too.
FAMILIES = ("elementwise", "movement", "linear", "conv", "blocks")
EXTENTS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 17)


@dataclass(frozen=True)
class Graph:
    """A generated model.

    Args:
        proto: the model; leading axes of its inputs are symbolic where ``open_axes``.
        feeds: inputs by name, several sets of them where axes are open.
        values: what generated it: values by name, for the judge.
        maker: the generator, which can evaluate the graph again with noise.
        outputs: in order.
        special: inputs hold NaN or infinities.
        open_axes: the first axis of every input is compiled open.
    """

    proto: onnx.ModelProto
    feeds: list[dict[str, Array]]
    maker: Maker
    outputs: list[Value]
    special: bool
    open_axes: bool


def generate(rng: random.Random) -> Graph:
    """One graph; everything about it comes from ``rng``."""
    special = rng.random() < 0.06
    large = not special and rng.random() < 0.05
    maker = Maker(rng, special, large)
    _inputs(maker, empty=not special and not large and rng.random() < 0.04)
    lean = rng.choice(FAMILIES)
    table = SPECIAL if special else STEPS
    steps = list(table)
    weights = [
        weight * (4 if step.__module__.endswith(f"steps_{lean}") else 1)
        for step, weight in table.items()
    ]
    wanted = rng.randrange(1, 5) if rng.random() < 0.4 else rng.randrange(4, 14)
    done, tries = 0, 0
    while done < wanted and tries < 6 * wanted and len(maker.nodes) < 50:
        tries += 1
        (step,) = rng.choices(steps, weights)
        before = len(maker.nodes)
        with maker.attempt():
            step(maker)
        done += len(maker.nodes) > before
    outputs = _outputs(maker)
    feeds = [feed_of(maker.inputs, [value.array for value in maker.inputs])]
    others = _other_extents(maker, outputs) if rng.random() < 0.25 else []
    inputs = [
        (value, ["n", *value.shape[1:]] if others and value.rank else list(value.shape))
        for value in maker.inputs
    ]
    proto = model(inputs, maker.nodes, maker.weights, outputs)
    return Graph(proto, feeds + others, maker, outputs, special, bool(others))


def _inputs(maker: Maker, empty: bool) -> None:
    """One to three inputs that share extents, so that they can meet."""
    rng = maker.rng
    main = rng.choice(("float32",) * 14 + ("float16", "float16", "bfloat16", "float64"))
    leading = rng.choice((1, 1, 2, 3))
    channels = rng.choice((1, 3, 4, 8, 12, 16, 17, 32))
    side = rng.choice((2, 5, 7, 8, 9, 12))
    if maker.most == MANY_ELEMENTS:
        leading, channels, side = 1, rng.choice((32, 48, 64)), rng.choice((14, 20, 28))
    shapes: list[tuple[int, ...]] = [
        (leading, channels, side, side),
        (leading, rng.choice(EXTENTS), rng.choice((4, 8, 12, 16, 24, 33))),
        (leading, channels, side),
        (leading, rng.choice(EXTENTS)),
        (rng.choice(EXTENTS),),
        (),
    ]
    for _ in range(rng.choice((1, 1, 2, 3))):
        (shape,) = rng.choices(shapes, (6, 5, 2, 3, 1, 1))
        if empty and shape and maker.chance(0.7):
            axis = rng.randrange(len(shape))
            shape = (*shape[:axis], 0, *shape[axis + 1 :])
        dtype = main if maker.chance(0.9) else rng.choice(("int64", "int32", "bool", "float32"))
        source = np.random.default_rng(rng.randrange(1 << 16))
        if dtype in EPS:
            array = np.asarray(source.standard_normal(shape))
            if maker.special:
                pool = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-42, 3e38, 1.0]
                mask = source.random(shape) < 0.4
                array = np.where(mask, source.choice(pool, shape), array)
        elif dtype == "bool":
            array = source.random(shape) < 0.5
        else:
            array = source.integers(-3, 9, shape)
        with np.errstate(over="ignore"):
            maker.input(np.asarray(array), dtype)


def _outputs(maker: Maker) -> list[Value]:
    """What nothing consumes, some of the rest, at times an input, a constant or one twice."""
    rng = maker.rng
    read = {name for node in maker.nodes for name in node.input}
    computed = [value for value in maker.values if value not in maker.inputs]
    leaves = [value for value in computed if value.name not in read]
    chosen = leaves[-rng.choice((1, 1, 1, 2, 3, len(leaves) or 1)) :]
    often = rng.choice((0.0, 0.0, 0.1))
    chosen = chosen + [v for v in computed if v not in chosen and rng.random() < often]
    extras: list[Value] = []
    if rng.random() < 0.08:
        extras.append(rng.choice(maker.inputs))
    if rng.random() < 0.05 and maker.weights:
        extras.append(rng.choice(maker.weights))
    if rng.random() < 0.05 and chosen:
        extras.append(rng.choice(chosen))
    if not chosen and not extras:
        extras.append(rng.choice(maker.inputs))
    for value in extras:
        with maker.attempt():
            chosen.append(maker.node("Identity", [value], value.dtype))
    rng.shuffle(chosen)
    return chosen


def feed_of(inputs: list[Value], arrays: list[Array]) -> dict[str, Array]:
    """Arrays by input name, in the declared types."""
    with np.errstate(over="ignore"):
        return {
            value.name: array.astype(numpy_dtype(value.dtype), order="C")
            for value, array in zip(inputs, arrays, strict=True)
        }


def _other_extents(maker: Maker, outputs: list[Value]) -> list[dict[str, Array]]:
    """Feeds with other leading extents, where the graph works with those too."""
    batched = [value for value in maker.inputs if value.rank]
    if not batched or any(value.shape[0] != batched[0].shape[0] for value in batched):
        return []
    if batched[0].shape[0] == 0:
        return []
    feeds = []
    for extent in (1, batched[0].shape[0] + 1, 4):
        arrays = [_resized(maker, v, extent) if v.rank else v.array
                  for v in maker.inputs]  # fmt: skip
        feed = feed_of(maker.inputs, arrays)
        try:
            maker.evaluator.graph(maker.nodes, given(maker, feed), maker.dtypes)
        except Refused:
            return []
        feeds.append(feed)
    return feeds


def _resized(maker: Maker, value: Value, extent: int) -> Array:
    """Other values of the same kind, ``extent`` of them."""
    source = np.random.default_rng(maker.rng.randrange(1 << 16))
    return np.asarray(source.permutation(np.resize(value.array, (extent, *value.shape[1:]))))


def given(maker: Maker, feed: dict[str, Array]) -> dict[str, Array]:
    """Weights and a feed as the evaluator takes them."""
    known = {value.name: value.array for value in maker.weights}
    return known | {name: simulated(array) for name, array in feed.items()}
