"""Why a graph goes wrong: the pass that does it, and the smallest graph that still shows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from tests.fuzz.graphs.generate import Graph
from tests.fuzz.graphs.maker import Value, model

#: ``check(graph, disabled passes)``: the kind of fault that the graph shows, or ``None``.
Check = Callable[[Graph, Sequence[str]], str | None]


def guilty(graph: Graph, level: int, kind: str, check: Check) -> list[str]:
    """Optional passes without which the fault does not appear; each alone is enough."""
    return [name for name in optional_passes(level) if check(graph, [name]) != kind]


def optional_passes(level: int) -> list[str]:
    """Names of the passes of a level that can be left out."""
    from uif_tvm.compiler.pipeline import phases

    named = [
        graph_pass.name
        for phase in phases()
        for lowest, graph_pass in phase.passes
        if lowest <= level and graph_pass.optional
    ]
    return list(dict.fromkeys(named))


def minimised(graph: Graph, kind: str, check: Check, seconds: float = 60.0) -> Graph:
    """The smallest graph found that shows a fault of ``kind``.

    Outputs are dropped first; then every node's result is tried as an input that holds what the
    node would have made, the last node first, so that what comes before it falls away.
    """
    limit = time.monotonic() + seconds

    def shows(candidate: Graph) -> bool:
        return time.monotonic() < limit and check(candidate, ()) == kind

    for value in graph.outputs:
        one = _with_outputs(graph, [value])
        if shows(one):
            graph = one
            break
    changed = True
    while changed and time.monotonic() < limit:
        changed = False
        for node in reversed(graph.maker.nodes):
            if node not in graph.maker.nodes:
                continue
            smaller = _without(graph, list(node.output))
            if smaller is not None and shows(smaller):
                graph, changed = smaller, True
        for value in _computed(graph):  # what comes after it falls away
            one = _with_outputs(graph, [value])
            if len(one.maker.nodes) < len(graph.maker.nodes) and shows(one):
                graph, changed = one, True
                break
    return graph


def _computed(graph: Graph) -> list[Value]:
    names = {name for node in graph.maker.nodes for name in node.output}
    return [value for value in graph.maker.values if value.name in names]


def _with_outputs(graph: Graph, outputs: list[Value]) -> Graph:
    return _rebuilt(graph, graph.maker.inputs, outputs)


def _without(graph: Graph, names: list[str]) -> Graph | None:
    """``graph`` with a node's results as inputs; ``None`` where nothing is left of it."""
    if graph.open_axes or any(value.name in names for value in graph.outputs):
        return None
    held = [value for value in graph.maker.values if value.name in names]
    return _rebuilt(graph, [*graph.maker.inputs, *held], graph.outputs)


def _rebuilt(graph: Graph, inputs: list[Value], outputs: list[Value]) -> Graph:
    """The part of the graph between ``inputs`` and ``outputs``."""
    from tests.fuzz.graphs.generate import feed_of
    from tests.fuzz.graphs.maker import reads

    given = {value.name for value in inputs}
    needed, nodes = {value.name for value in outputs}, []
    for node in reversed(graph.maker.nodes):
        if any(name in needed and name not in given for name in node.output):
            nodes.insert(0, node)
            needed |= set(reads(node))
    used = [value for value in inputs if value.name in needed]
    maker = graph.maker.derived(used or inputs[:1], nodes)
    declared = {value.name: value for value in graph.proto.graph.input}
    shapes = [(value, _shape(declared.get(value.name), value)) for value in maker.inputs]
    feeds = [{v.name: feed[v.name] for v in maker.inputs if v.name in feed}
             for feed in graph.feeds]  # fmt: skip
    for feed in feeds:
        rest = [value for value in maker.inputs if value.name not in feed]
        feed.update(feed_of(rest, [value.array for value in rest]))
    proto = model(shapes, nodes, maker.weights, outputs)
    return replace(graph, proto=proto, feeds=feeds, maker=maker, outputs=outputs)


def _shape(declared: object, value: Value) -> list[int | str]:
    if declared is None:
        return list(value.shape)
    dims = declared.type.tensor_type.shape.dim  # type: ignore[attr-defined]
    return [dim.dim_param or dim.dim_value for dim in dims]
