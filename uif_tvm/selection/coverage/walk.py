"""A walk over an ONNX graph with real values: every operator met on the way is handed on.

Nodes are evaluated one by one, so shapes, types and values are those of a real run, whatever the
model leaves open. Bodies of ``If``, ``Loop`` and ``Scan`` are walked too: both branches, and the
first iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from uif_tvm.selection.arrays import Array
from uif_tvm.selection.onnx_node import (
    DATA_DEPENDENT,
    RANDOM,
    Evaluator,
    Operand,
    Setting,
    Value,
    outer_names,
    subgraphs,
)

#: Iterations of a loop's body that are looked at; later ones have the same operators.
MAX_ITERATIONS = 2
#: A trip count above this is a way to say "until the condition fails".
MAX_TRIPS = 1_000_000
#: Why an operator of a branch was not looked at.
NOT_TAKEN = "in a branch that these inputs do not take, and they do not fit it"
#: Operators whose result has a shape that these operands decide.
SHAPE_OPERANDS: Mapping[str, tuple[int, ...]] = {
    "Reshape": (1,),
    "Expand": (1,),
    "Tile": (1,),
    "ConstantOfShape": (0,),
    "Range": (0, 1, 2),
    "Slice": (1, 2, 3, 4),
    "Pad": (1,),
    "Resize": (2, 3),
    "Upsample": (1,),
    "OneHot": (1,),
    "TopK": (1,),
    "Split": (1,),
    "Unsqueeze": (1,),
    "Squeeze": (1,),
    "CenterCropPad": (1,),
    "Loop": (0, 1),
}
#: They read shapes only, which are settled when the operand's is.
OF_SHAPE = frozenset({"Shape", "Size"})


@dataclass(frozen=True)
class Traced:
    """A value of the run.

    Args:
        value: what it is; ``None`` where nobody could compute it.
        fixed: the same for all inputs of these shapes.
        fixed_shape: its shape is.
        real: it was computed, and not made up to go on, nor from something made up.
        guessed: it was made up itself.
    """

    value: Value | None
    fixed: bool = False
    fixed_shape: bool = True
    real: bool = True
    guessed: bool = False


@dataclass(frozen=True)
class Met:
    """One operator met, with its operands and results.

    Args:
        path: names of the nodes around it, and its own.
        operands: one per input, ``None`` where left out.
        outer: values that its subgraphs read.
        results: ``None`` where it could not be evaluated.
        by: who evaluated it.
        calls: executions per run of the model.
        obstacle: why operands are missing, empty if they are not.
    """

    node: Any
    setting: Setting
    path: str
    operands: Sequence[Operand | None]
    outer: Mapping[str, Operand]
    results: Sequence[Value | None] | None
    by: str
    calls: float
    settled: bool
    real: bool
    obstacle: str = ""


@dataclass
class Scope:
    """Names visible to a graph: its own, then those of the graphs around it."""

    parent: Scope | None = None
    values: dict[str, Traced] = field(default_factory=dict)

    def find(self, name: str) -> Traced:
        """The value called ``name``; an unknown one where nothing defines it."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.parent
        return Traced(None)


#: (name, node, operands) -> a made-up value of that result, ``None`` where nothing is known of it.
Guess = Callable[[str, Any, Sequence[Operand | None]], Value | None]


class Walker:
    """Evaluates graphs node by node.

    Args:
        setting: operator sets of the model.
        read: initializer -> array.
        evaluate: see :class:`Evaluator`.
        meet: called with each operator, in order.
        guess: makes up values of results that nobody could compute.
        watch: called with each (name, value) of the outermost graph.
    """

    def __init__(
        self,
        setting: Setting,
        read: Callable[[Any], Array],
        evaluate: Evaluator,
        meet: Callable[[Met], None],
        guess: Guess,
        watch: Callable[[str, Traced], None] = lambda name, value: None,
    ) -> None:
        self._setting = setting
        self._read = read
        self._evaluate = evaluate
        self._meet = meet
        self._guess = guess
        self._watch = watch
        self._calls = 1.0
        self._path: list[str] = []

    def graph(self, graph: Any, scope: Scope) -> list[Traced]:
        """Walk ``graph``, whose inputs are in ``scope``; returns its outputs."""
        for initializer in graph.initializer:
            if initializer.name not in scope.values:
                scope.values[initializer.name] = Traced(self._read(initializer), fixed=True)
        last_use = _last_uses(graph)
        for position, node in enumerate(graph.node):
            if position not in last_use.needed:
                continue
            self._node(node, scope)
            for name in last_use.dead_after.get(position, ()):
                scope.values.pop(name, None)
        return [scope.find(value.name) for value in graph.output]

    def _node(self, node: Any, scope: Scope) -> None:
        traced = [scope.find(name) if name else None for name in node.input]
        around = {name: scope.find(name) for name in outer_names(node)}
        everything = [item for item in [*traced, *around.values()] if item is not None]
        path = "/".join([*self._path, _label(node)])
        settled = _settled(node, traced, everything)
        missing = [
            name
            for name, item in [*zip(node.input, traced, strict=True), *around.items()]
            if item is not None and item.value is None
        ]
        if missing:
            obstacle = f"its operand {missing[0]!r} is not known" if self._calls else NOT_TAKEN
            self._say(node, path, [], {}, None, "", settled, False, obstacle)
            self._bind(node, scope, [Traced(None)] * len(node.output))
            return
        operands = [_operand(item) for item in traced]
        outer = {name: _operand(item) for name, item in around.items()}
        present = {name: item for name, item in outer.items() if item is not None}
        results, by = self._value(node, operands, present)
        real = all(item.real for item in everything)
        if results is None and not self._calls:
            # Nothing has to work in a branch that these inputs do not take.
            self._say(node, path, [], {}, None, "", settled, real, NOT_TAKEN)
            self._bind(node, scope, [Traced(None)] * len(node.output))
            return
        if node.op_type != "Constant":
            self._say(node, path, operands, present, results, by, settled, real, "")
        self._bodies(node, traced, scope, results)
        fixed_shape = settled or _fixed_shape(node, traced, everything)
        if results is None:
            self._bind(node, scope, self._guesses(node, operands))
            return
        values = [Traced(v, settled, fixed_shape, real) for v in results]
        self._bind(node, scope, values)

    def _value(
        self, node: Any, operands: Sequence[Operand | None], outer: Mapping[str, Operand]
    ) -> tuple[list[Value | None] | None, str]:
        try:
            results, by = self._evaluate(node, self._setting, operands, outer)
        except Exception:  # evaluators refuse in many ways; without a result the walk goes on
            return None, ""
        return results, by

    def _guesses(self, node: Any, operands: Sequence[Operand | None]) -> list[Traced]:
        made = [self._guess(name, node, operands) if name else None for name in node.output]
        return [Traced(value, real=False, guessed=True) for value in made]

    def _bind(self, node: Any, scope: Scope, values: Sequence[Traced]) -> None:
        for name, value in zip(node.output, values, strict=False):
            if name:
                scope.values[name] = value
                if not self._path:
                    self._watch(name, value)

    def _say(
        self,
        node: Any,
        path: str,
        operands: Sequence[Operand | None],
        outer: Mapping[str, Operand],
        results: Sequence[Value | None] | None,
        by: str,
        settled: bool,
        real: bool,
        obstacle: str,
    ) -> None:
        self._meet(
            Met(
                node, self._setting, path, operands, outer,
                results, by, self._calls, settled, real, obstacle,
            )
        )  # fmt: skip

    # --- bodies ------------------------------------------------------------------------------

    def _bodies(
        self,
        node: Any,
        traced: Sequence[Traced | None],
        scope: Scope,
        results: Sequence[Value | None] | None,
    ) -> None:
        if not any(True for _ in subgraphs(node)):
            return
        bodies = {a.name: a.g for a in node.attribute if a.HasField("g")}
        inputs = [item or Traced(None) for item in traced]
        if node.op_type == "If":
            taken = bool(np.asarray(inputs[0].value).reshape(-1)[:1].any())
            for name, calls in (("then_branch", float(taken)), ("else_branch", float(not taken))):
                if inputs[0].fixed and not calls:
                    continue  # no inputs of these shapes ever come here
                with self._inside(f"{_label(node)}:{name.split('_')[0]}", calls):
                    self.graph(bodies[name], Scope(scope))
        elif node.op_type == "Loop":
            self._loop(node, bodies["body"], inputs, scope)
        elif node.op_type == "Scan":
            self._scan(node, bodies["body"], inputs, scope)
        elif node.op_type == "SequenceMap":
            items = [_first(item) for item in inputs]
            with self._inside(_label(node), _length(inputs[0])):
                self.graph(bodies["body"], _called(bodies["body"], items, scope))

    def _loop(self, node: Any, body: Any, inputs: Sequence[Traced], scope: Scope) -> None:
        limit = inputs[0].value if node.input[0] else None
        trips = int(np.asarray(limit).reshape(-1)[0]) if limit is not None else MAX_TRIPS
        weight = float(trips) if trips < MAX_TRIPS else 1.0
        go_on = inputs[1] if len(node.input) > 1 and node.input[1] else Traced(np.array(True), True)
        carried = [Traced(i.value, False, i.fixed_shape, i.real) for i in inputs[2:]]
        # A loop that runs no time here still has operators: they are met once, for nothing.
        for iteration in range(max(1, min(trips, MAX_ITERATIONS))):
            given = [Traced(np.array(iteration, np.int64)), Traced(go_on.value), *carried]
            with self._inside(_label(node), weight if iteration == 0 else 0.0):
                outputs = self.graph(body, _called(body, given, scope))
            go_on, carried = outputs[0], outputs[1 : 1 + len(carried)]
            if go_on.value is None or not bool(np.asarray(go_on.value).all()):
                break

    def _scan(self, node: Any, body: Any, inputs: Sequence[Traced], scope: Scope) -> None:
        attributes = {a.name: a for a in node.attribute}
        scanned = int(attributes["num_scan_inputs"].i)
        states = len(inputs) - scanned
        chosen = attributes.get("scan_input_axes")
        axes = list(chosen.ints) if chosen is not None else [0] * scanned
        slices, length = [], 1.0
        for item, axis in zip(inputs[states:], axes, strict=False):
            if isinstance(item.value, np.ndarray) and item.value.shape[axis]:
                length = float(item.value.shape[axis])
                slices.append(Traced(np.take(item.value, 0, axis), real=item.real))
            else:
                slices.append(Traced(None))
        given = [Traced(i.value, False, i.fixed_shape, i.real) for i in inputs[:states]]
        with self._inside(_label(node), length):
            self.graph(body, _called(body, [*given, *slices], scope))

    @contextmanager
    def _inside(self, label: str, calls: float) -> Iterator[None]:
        outer = self._calls
        self._calls *= calls
        self._path.append(label)
        try:
            yield
        finally:
            self._calls = outer
            self._path.pop()


@dataclass(frozen=True)
class _Uses:
    """Which nodes are needed, and which names nothing reads after a node."""

    needed: frozenset[int]
    dead_after: Mapping[int, Sequence[str]]


def _last_uses(graph: Any) -> _Uses:
    kept = {value.name for value in graph.output}
    wanted = set(kept)
    needed = set()
    last: dict[str, int] = {}
    for position in range(len(graph.node) - 1, -1, -1):
        node = graph.node[position]
        if not any(name in wanted for name in node.output if name):
            continue
        needed.add(position)
        for name in [*node.input, *outer_names(node)]:
            wanted.add(name)
            last.setdefault(name, position)
    weights = {initializer.name for initializer in graph.initializer}
    dead: dict[int, list[str]] = {}
    for name, position in last.items():
        if name not in kept and name not in weights:
            dead.setdefault(position, []).append(name)
    return _Uses(frozenset(needed), dead)


def _settled(node: Any, traced: Sequence[Traced | None], everything: Sequence[Traced]) -> bool:
    """Whether the importer computes the node: it depends on no input's values."""
    if node.op_type in RANDOM:
        return False
    if node.op_type in OF_SHAPE and traced and traced[0] is not None:
        return traced[0].fixed_shape
    return all(item.fixed for item in everything)


def _fixed_shape(node: Any, traced: Sequence[Traced | None], everything: Sequence[Traced]) -> bool:
    if node.op_type in DATA_DEPENDENT or not all(item.fixed_shape for item in everything):
        return False
    deciding = [traced[i] for i in SHAPE_OPERANDS.get(node.op_type, ()) if i < len(traced)]
    return all(item is None or item.fixed for item in deciding)


def _operand(item: Traced | None) -> Operand | None:
    return None if item is None or item.value is None else Operand(item.value, item.fixed)


def _called(body: Any, given: Sequence[Traced], scope: Scope) -> Scope:
    names = [value.name for value in body.input]
    return Scope(scope, dict(zip(names, given, strict=False)))


def _first(item: Traced) -> Traced:
    if isinstance(item.value, list):
        return Traced(item.value[0] if item.value else None, real=item.real)
    return item


def _length(item: Traced) -> float:
    return float(len(item.value)) if isinstance(item.value, list) else 1.0


def _label(node: Any) -> str:
    return str(node.name or next(iter(node.output), "") or node.op_type)
