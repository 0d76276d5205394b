"""What is normalised, over which axes and with what epsilon: the part of a norm's formula that
layer and RMS normalisation share (see :mod:`.recover_norm`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import relax
from uif_tvm.relay_passes.recover_algebra import Product, close, product, total
from uif_tvm.relay_passes.recover_graph import Graph, Near

from uif_tvm.ops import infer
from uif_tvm.relax_util import op_name
from uif_tvm.standard_ops import type_of

#: What may stand between a statistic without its axes and its use.
_VIEWS = ("relax.reshape", "relax.expand_dims", "relax.broadcast_to")
_LIMITS = ("relax.maximum", "relax.clip")


@dataclass(frozen=True)
class Core:
    """A normalisation without scale and shift.

    Args:
        x: what is normalised.
        centred: whether its mean is subtracted (layer norm) or not (RMS norm).
        axes: normalised axes, the last ones, ascending.
        epsilon: added to the mean of squares.
        factor: number that the normalised value is multiplied by.
        used: factors of the product that the normalisation consists of.
        inner: variables of the nodes.
    """

    x: Any
    centred: bool
    axes: tuple[int, ...]
    epsilon: float
    factor: float
    used: tuple[Any, ...]
    inner: frozenset[Any]


@dataclass(frozen=True)
class Centred:
    """``x - mean(x)`` over some axes."""

    x: Any
    axes: tuple[int, ...]
    nodes: frozenset[Any]


def norm_core(graph: Graph, found: Product, given: Centred | None = None) -> Core | Near | None:
    """The normalisation in a product, if there is one.

    Args:
        given: the centred numerator, where the product itself holds the deviation only.
    """
    near = None
    for factor, spread, variance, nodes in _inverse_roots(graph, found):
        answer = _core(graph, found, (factor, spread, variance), nodes, given)
        if isinstance(answer, Core):
            return answer
        near = near or answer
    return near or _odd_deviation(graph, found)


def _inverse_roots(graph: Graph, found: Product) -> Iterator[tuple[Any, Any, Any, set[Any]]]:
    """(factor, what stands against x, v, nodes) of each factor that is ``1 / sqrt(v)``."""
    for factor, power in found.factors.items():
        if power == -0.5:
            yield factor, factor, factor, set()
        elif power in (1.0, -1.0):
            source, views = stripped(graph, factor)
            opened = product(graph, source)
            inside = opened.one(-0.5 * power) if views and opened.coefficient == 1 else None
            if inside is not None:
                yield factor, factor, inside, views | opened.nodes


def _core(
    graph: Graph,
    found: Product,
    place: tuple[Any, Any, Any],
    nodes: set[Any],
    given: Centred | None,
) -> Core | Near | None:
    factor, spread, variance = place
    source, views = stripped(graph, variance)
    added = total(graph, source)
    if any(graph.constant(term) is not None for _, term in added.terms):
        return Near("epsilon differs per channel")
    if len(added.terms) != 1:
        return None
    scale, mean = added.terms[0]
    mean, more = stripped(graph, mean)
    averaged = product(graph, mean)
    statistic = averaged.one(1.0)
    call = graph.call(statistic, "relax.mean", "relax.sum", "relax.variance")
    if call is None:
        return None
    nodes = nodes | views | added.nodes | more | averaged.nodes | {graph.resolve(statistic)}
    axes = reduced_axes(call)
    scale *= averaged.coefficient * _count(call, axes)
    squared = product(graph, call.args[0])
    if op_name(call) == "relax.variance":
        top = _numerator_of(graph, found, call.args[0], axes) if given is None else given
        base = None
    else:
        base = squared.one(2.0)
        if base is None:
            return None
        scale *= squared.coefficient
        nodes |= squared.nodes
        top = given
    numerator = _numerator(graph, found, base, axes, top)
    if numerator is None or scale <= 0:
        return None
    x, centred, used, more = numerator
    rank = type_of(x).rank
    if axes != tuple(range(rank - len(axes), rank)):
        return Near(f"axis {axes} is not the last of {rank}")
    if not stands_against(spread, x, axes):
        return None
    if added.constant < 0:
        return Near(f"epsilon {added.constant:g} is negative")
    return Core(
        x,
        centred,
        axes,
        added.constant / scale,
        found.coefficient * scale**-0.5,
        (factor, *used),
        frozenset(nodes | more | found.nodes),
    )


def _numerator(
    graph: Graph, found: Product, base: Any, axes: tuple[int, ...], top: Centred | None
) -> tuple[Any, bool, tuple[Any, ...], set[Any]] | None:
    """(x, centred, factors, nodes) of what the deviation divides; it must be ``base``'s own."""
    middle = None if base is None else centred(graph, base, axes)
    if top is not None:
        if base is not None and (middle is None or middle.x != top.x):
            return None
        nodes = top.nodes | (middle.nodes if middle is not None else frozenset())
        used = [f for f in found.factors if (c := centred(graph, f, axes)) and c.x == top.x]
        return top.x, True, tuple(used), set(nodes)
    if base is None:
        return None
    if found.factors.get(base) == 1.0:
        if middle is not None:
            return middle.x, True, (base,), set(middle.nodes)
        return base, False, (base,), set()
    if middle is None:
        return None
    for factor, power in found.factors.items():
        twin = centred(graph, factor, axes) if power == 1.0 else None
        if twin is not None and twin.x == middle.x:
            return twin.x, True, (factor,), set(twin.nodes | middle.nodes)
    return None


def _numerator_of(graph: Graph, found: Product, x: Any, axes: tuple[int, ...]) -> Centred | None:
    """The factor that is ``x - mean(x)``."""
    for factor, power in found.factors.items():
        twin = centred(graph, factor, axes) if power == 1.0 else None
        if twin is not None and twin.x == graph.resolve(x):
            return twin
    return None


def centred(graph: Graph, expr: Any, axes: tuple[int, ...] | None) -> Centred | None:
    """``expr`` as ``x - mean(x)`` over ``axes`` (any, if ``None``)."""
    added = total(graph, expr)
    if len(added.terms) != 2 or added.constant:
        return None
    for at, (sign, x) in enumerate(added.terms):
        other, mean = added.terms[1 - at]
        if sign != 1.0 or other >= 0:
            continue
        found = mean_of(graph, mean, x)
        if found is not None and (axes is None or found[0] == axes) and found[1] * other == -1.0:
            if not stands_against(mean, x, found[0]):
                continue
            return Centred(x, found[0], frozenset(found[2] | added.nodes))
    return None


def mean_of(graph: Graph, expr: Any, x: Any) -> tuple[tuple[int, ...], float, set[Any]] | None:
    """(axes, factor, nodes) when ``expr`` is ``factor * mean(x)``."""
    source, views = stripped(graph, expr)
    scaled = product(graph, source)
    statistic = scaled.one(1.0)
    call = graph.call(statistic, "relax.mean", "relax.sum")
    if call is None or graph.resolve(call.args[0]) != x:
        return None
    axes = reduced_axes(call)
    factor = scaled.coefficient * _count(call, axes)
    dtype = str(x.ty.dtype)
    factor = 1.0 if close(factor, 1.0, dtype) else factor
    return axes, factor, views | scaled.nodes | {graph.resolve(statistic)}


def reduced_axes(call: Any) -> tuple[int, ...]:
    """Axes of a reduction, ascending; all of them where none are given."""
    rank = type_of(call.args[0]).rank
    axes = call.attrs.axis
    return tuple(sorted(int(a) % rank for a in axes)) if axes is not None else tuple(range(rank))


def _count(call: Any, axes: tuple[int, ...]) -> float:
    """Elements that a sum adds, 1 for averages; NaN where that is settled at run time."""
    if op_name(call) != "relax.sum":
        return 1.0
    extents = [type_of(call.args[0]).shape[axis] for axis in axes]
    return float(prod(extents)) if all(isinstance(n, int) for n in extents) else float("nan")


def stripped(graph: Graph, expr: Any) -> tuple[Any, set[Any]]:
    """``expr`` without the views that give a statistic its axes back, and those views."""
    nodes: set[Any] = set()
    expr = graph.resolve(expr)
    while (call := graph.call(expr, *_VIEWS)) is not None:
        nodes.add(expr)
        expr = graph.resolve(call.args[0])
    return expr, nodes


def stands_against(statistic: Any, x: Any, axes: tuple[int, ...]) -> bool:
    """Whether a statistic has its axes in place: extent 1 each, or spread over ``x``."""
    if not isinstance(statistic.ty, relax.TensorType) or statistic.ty.ndim != x.ty.ndim:
        return False
    own, full = type_of(statistic).shape, type_of(x).shape
    kept = [1 if at in axes else extent for at, extent in enumerate(full)]
    return any(all(map(infer.equal, own, wanted)) for wanted in (kept, full))


def _odd_deviation(graph: Graph, found: Product) -> Near | None:
    """Denominators that look like a deviation or a norm, and why they are not one."""
    for factor, power in found.factors.items():
        if power != -1.0 or not isinstance(factor, relax.Var):
            continue
        limit = graph.call(factor, *_LIMITS)
        if limit is not None and _is_norm(graph, limit.args[0], found):
            return Near("the norm is limited from below, not regularised by an epsilon")
        added = total(graph, factor)
        if len(added.terms) == 1 and added.constant and _is_norm(graph, added.terms[0][1], found):
            return Near(f"epsilon {added.constant:g} is added to the deviation, not the variance")
    return None


def _is_norm(graph: Graph, expr: Any, found: Product) -> bool:
    """Whether ``expr`` is the square root of a sum of squares of a factor of ``found``."""
    inside = product(graph, expr).one(0.5)
    call = graph.call(inside, "relax.mean", "relax.sum") if inside is not None else None
    base = product(graph, call.args[0]).one(2.0) if call is not None else None
    return base is not None and found.factors.get(base) == 1.0
