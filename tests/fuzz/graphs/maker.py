"""A graph under construction: every node is evaluated as it is added, so that it is valid."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper

from tests.fuzz.graphs.evaluate import (
    EPS,
    EXACT,
    IR_VERSION,
    OPSET,
    Array,
    Evaluator,
    Noise,
    Refused,
    rounded,
    simulated,
)

#: No value of a graph grows beyond this, so that roundings stay small beside it.
LARGEST = 300.0
#: No tensor is larger, so that a graph compiles and runs in a fraction of a second; some graphs
#: may have larger ones, for what only pays there.
MOST_ELEMENTS, MANY_ELEMENTS = 6000, 60_000
#: How often a value from inside a block is offered to later steps as well.
INNER_OFFERED = 0.12


def numpy_dtype(name: str) -> np.dtype[Any]:
    """``bfloat16`` and NumPy's own types by name."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def onnx_dtype(name: str) -> int:
    """ONNX's number of an element type."""
    return int(helper.np_dtype_to_tensor_dtype(numpy_dtype(name)))


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of the graph.

    Args:
        name: in the model.
        dtype: as declared.
        array: what it holds for the example inputs (floats of every width as float32).
        exact: free of rounding, so that comparing or truncating it is safe.
        constant: a weight.
    """

    name: str
    dtype: str
    array: Array = field(repr=False)
    exact: bool = True
    constant: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def rank(self) -> int:
        return self.array.ndim

    @property
    def is_float(self) -> bool:
        return self.dtype in EPS

    @property
    def low(self) -> float:
        """The least element; infinite where there is none."""
        return float(self.array.min()) if self.array.size else float("inf")

    @property
    def high(self) -> float:
        """The greatest element; minus infinity where there is none."""
        return float(self.array.max()) if self.array.size else float("-inf")

    @property
    def nearest_zero(self) -> float:
        return float(np.abs(self.array).min()) if self.array.size else float("inf")


class Maker:
    """Grows one graph.

    Args:
        rng: every choice comes from it, so that a graph is known by its seed, and so that
            hypothesis can shrink one.
        special: inputs hold NaN, infinities and the like, and results may.
        large: tensors may be larger than usual.
    """

    def __init__(self, rng: random.Random, special: bool = False, large: bool = False) -> None:
        self.rng = rng
        self.special = special
        self.most = MANY_ELEMENTS if large else MOST_ELEMENTS
        self.evaluator = Evaluator()
        self.inputs: list[Value] = []
        self.weights: list[Value] = []
        self.nodes: list[onnx.NodeProto] = []
        self.values: list[Value] = []
        #: What later steps may use: :meth:`pick` chooses among these.
        self.offered: list[Value] = []
        self.dtypes: dict[str, str] = {}
        self._count = 0

    def name(self, stem: str) -> str:
        """A new name."""
        self._count += 1
        return f"{stem}{self._count}"

    def input(self, array: Array, dtype: str) -> Value:
        """A new input that holds ``array``, rounded to ``dtype``."""
        held = simulated(array.astype(numpy_dtype(dtype)))
        value = Value(self.name("x"), dtype, held)
        self.inputs.append(value)
        self.values.append(value)
        self.offered.append(value)
        self.dtypes[value.name] = dtype
        return value

    def weight(self, array: Any, dtype: str) -> Value:
        """A new constant; not offered to later steps."""
        held = simulated(np.asarray(array).astype(numpy_dtype(dtype)))
        value = Value(self.name("w"), dtype, held, constant=True)
        self.weights.append(value)
        self.dtypes[value.name] = dtype
        return value

    def random(self, shape: Sequence[int], dtype: str, scale: float = 1.0) -> Value:
        """A weight of normal values."""
        source = np.random.default_rng(self.rng.randrange(1 << 16))
        return self.weight(source.standard_normal(shape) * scale, dtype)

    def ints(self, *numbers: int) -> Value:
        """An int64 vector, such as axes or a shape."""
        return self.weight(np.array(numbers, np.int64), "int64")

    def node(
        self,
        op: str,
        operands: Sequence[Value | None],
        dtype: str | None = None,
        *,
        outputs: int = 1,
        **attrs: Any,
    ) -> Any:
        """Add a node; its result, or results where ``outputs`` is not 1.

        Args:
            dtype: of the results; by default the first operand's where that is a float and the
                result is one, else what the evaluator returns.

        Raises:
            Refused: the operator does not take these operands, or the result is of no use.
        """
        names = [self.name("v") for _ in range(outputs)]
        inputs = ["" if value is None else value.name for value in operands]
        proto = helper.make_node(op, inputs, names, name=self.name(op.lower()), **attrs)
        known = {value.name: value.array for value in operands if value is not None}
        results = self.evaluator.run(proto, known, self.dtypes, Noise(None))
        exact = op in EXACT and all(value is None or value.exact for value in operands)
        if op == "Cast":
            exact = operands[0] is not None and operands[0].exact
        made = []
        for name in names:
            array = results[name]
            kind = dtype or array.dtype.name
            if dtype is None and kind == "float32" and operands[0] is not None:
                kind = next((v.dtype for v in operands if v is not None and v.is_float), kind)
            array = rounded(array, kind)
            self._check(op, array)
            made.append(Value(name, kind, array, exact))
        self.nodes.append(proto)
        self.values.extend(made)
        self.offered.extend(made)
        self.dtypes.update((value.name, value.dtype) for value in made)
        return made[0] if outputs == 1 else made

    def branch(self, condition: Value, then: Value, other: Value, start: int) -> Value:
        """An ``If`` whose branches are the nodes added since ``start`` that they need."""
        added = self.nodes[start:]

        def body(result: Value, name: str) -> onnx.GraphProto:
            needed, chosen = {result.name}, []
            for proto in reversed(added):
                if needed & set(proto.output):
                    needed |= set(proto.input)
                    copy = onnx.NodeProto()
                    copy.CopyFrom(proto)
                    chosen.insert(0, _renamed(copy, {o for n in added for o in n.output}, name))
            info = helper.make_tensor_value_info(
                f"{name}{result.name}", onnx_dtype(result.dtype), result.shape
            )
            return helper.make_graph(chosen, name, [], [info])

        if then.dtype != other.dtype or then.shape != other.shape:
            raise Refused("branches of different types")
        graphs = {"then_branch": body(then, "then_"), "else_branch": body(other, "else_")}
        for proto in added:
            for prefix in ("then_", "else_"):
                self.dtypes.update((f"{prefix}{o}", self.dtypes[o]) for o in proto.output)
        gone = {output for proto in added for output in proto.output}
        del self.nodes[start:]
        self.values = [value for value in self.values if value.name not in gone]
        self.offered = [value for value in self.offered if value.name not in gone]
        taken = then if bool(condition.array) else other
        name = self.name("v")
        self.nodes.append(
            helper.make_node("If", [condition.name], [name], name=self.name("if"), **graphs)
        )
        value = Value(name, taken.dtype, taken.array, then.exact and other.exact)
        self.values.append(value)
        self.offered.append(value)
        self.dtypes[name] = value.dtype
        return value

    def derived(self, inputs: list[Value], nodes: list[onnx.NodeProto]) -> Maker:
        """A part of this graph, for evaluation."""
        part = Maker(self.rng, self.special)
        part.inputs, part.nodes, part.weights = inputs, nodes, self.weights
        part.values, part.dtypes = self.values, self.dtypes
        return part

    def _check(self, op: str, array: Array) -> None:
        if array.size > self.most:
            raise Refused(f"{op} makes {array.size} elements")
        if array.ndim > 6:
            raise Refused(f"{op} makes {array.ndim} axes")
        if array.dtype == np.float32 and not self.special and array.size:
            largest = float(np.abs(array).max())
            if not largest <= LARGEST:
                raise Refused(f"{op} makes values up to {largest}")

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """Undo what was added inside where it ends in :class:`Refused`.

        Of what was added otherwise, later steps mostly see the results: a block whose insides are
        read by others is a block that no pass may rewrite.
        """
        nodes, values, weights = len(self.nodes), list(self.values), len(self.weights)
        offered = list(self.offered)
        try:
            yield
        except Refused:
            del self.nodes[nodes:], self.weights[weights:]
            self.values, self.offered = values, offered
            return
        inner = {name for node in self.nodes[nodes:] for name in node.input}
        self.offered = offered + [
            value
            for value in self.offered[len(offered) :]
            if value.name not in inner or self.chance(INNER_OFFERED)
        ]

    def pick(self, fits: Callable[[Value], bool] = lambda value: True) -> Value:
        """A value that fits, later ones rather than earlier ones."""
        found = [value for value in self.offered if fits(value)]
        if not found:
            raise Refused("no operand fits")
        if self.rng.random() < 0.6:
            return found[-1 - self.rng.randrange(min(3, len(found)))]
        return self.rng.choice(found)

    def pick_float(self, fits: Callable[[Value], bool] = lambda value: True) -> Value:
        """A float value that fits."""
        return self.pick(lambda value: value.is_float and fits(value))

    def chance(self, probability: float) -> bool:
        """True that often."""
        return self.rng.random() < probability


def _renamed(proto: onnx.NodeProto, names: set[str], prefix: str) -> onnx.NodeProto:
    for part in (proto.input, proto.output):
        for index, name in enumerate(part):
            if name in names:
                part[index] = prefix + name
    proto.name = prefix + proto.name
    return proto


def tensor(value: Value) -> onnx.TensorProto:
    """A weight as the model stores it."""
    array = value.array.astype(numpy_dtype(value.dtype), order="C")
    return helper.make_tensor(
        value.name, onnx_dtype(value.dtype), value.shape, array.tobytes(), raw=True
    )


def model(
    inputs: Sequence[tuple[Value, Sequence[int | str]]],
    nodes: Sequence[onnx.NodeProto],
    weights: Sequence[Value],
    outputs: Sequence[Value],
) -> onnx.ModelProto:
    """The ONNX model; ``inputs`` with their declared shapes, unused weights left out."""
    used = {name for node in nodes for name in reads(node)} | {value.name for value in outputs}
    graph = helper.make_graph(
        list(nodes),
        "fuzz",
        [
            helper.make_tensor_value_info(value.name, onnx_dtype(value.dtype), shape)
            for value, shape in inputs
        ],
        [
            helper.make_tensor_value_info(value.name, onnx_dtype(value.dtype), None)
            for value in outputs
        ],
        [tensor(value) for value in weights if value.name in used],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
    )


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """What a node and its branches read."""
    yield from node.input
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            for inner in attribute.g.node:
                yield from reads(inner)
            yield from (result.name for result in attribute.g.output)
