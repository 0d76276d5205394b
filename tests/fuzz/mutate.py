"""Damaged ONNX models: what editors, exporters, disks and attackers do to a file, seeded."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

SIZES = (0, 1, -1, 2, 3, 5, 7, 64, 2**16, 2**31, 2**40, 2**62, -(2**63))
NUMBERS = (0.0, -0.0, 1.0, -1.0, 1e-30, 1e38, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "SAME_UPPER", "linear", "reflect", "add", "DCR", "i,j->", "\x00", "ä" * 50, "x" * 5000)
TYPES = (0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 17, 20, 22, 23, 99)
DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft", "else.where", "uif", "\u2603")
Mutation = Callable[[Any, random.Random], bool]
MUTATIONS: list[Mutation] = []


def mutation(function: Mutation) -> Mutation:
    """Register a change of a ``ModelProto``; it says whether it found something to change."""
    MUTATIONS.append(function)
    return function


def mutated(model: Any, rng: random.Random) -> bytes:
    """The serialised model after one to three changes, structured ones or of bytes."""
    from tests.fuzz import mutate_model  # noqa: F401 - it registers what it has

    copy = type(model)()
    copy.CopyFrom(model)
    wanted = rng.choice((1, 1, 1, 2, 3))
    for _ in range(50):
        if not wanted:
            break
        try:
            wanted -= bool(rng.choice(MUTATIONS)(copy, rng))
        except Exception:
            continue  # protobuf itself refuses the value or the depth, or onnx an earlier change
    data = copy.SerializeToString()
    return damaged(data, rng) if rng.random() < 0.12 else data


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Flipped bits, or a piece cut out, doubled or overwritten."""
    if not data:
        return data
    start = rng.randrange(len(data))
    end = min(len(data), start + rng.choice((1, 2, 5, 16, 200)))
    kind = rng.randrange(5)
    if kind == 0:
        return data[:start]
    if kind == 1:
        return data[:start] + data[end:]
    if kind == 2:
        return data[:end] + data[start:]
    if kind == 3:
        return data[:start] + rng.randbytes(end - start) + data[end:]
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 3, 10))):
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


# --- finding something to change -------------------------------------------------------------


def graphs(model: Any) -> list[Any]:
    """The main graph, all subgraphs, and functions (which have nodes too)."""
    found: list[Any] = []

    def walk(graph: Any) -> None:
        found.append(graph)
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    walk(attribute.g)
                for inner in attribute.graphs:
                    walk(inner)

    walk(model.graph)
    for function in model.functions:
        walk(function)
    return found


def nodes_of(model: Any) -> list[Any]:
    return [node for graph in graphs(model) for node in graph.node]


def names_of(model: Any) -> list[str]:
    names = [name for node in nodes_of(model) for name in (*node.input, *node.output)]
    names += [value.name for value in model.graph.input]
    return [*names, "", "nowhere"]


def tensors_of(model: Any) -> list[Any]:
    found = [t for graph in graphs(model) for t in getattr(graph, "initializer", ())]
    for node in nodes_of(model):
        found += [a.t for a in node.attribute if a.HasField("t")]
    return found


def attributes_of(model: Any) -> list[Any]:
    return [attribute for node in nodes_of(model) for attribute in node.attribute]


@cache
def op_types() -> tuple[str, ...]:
    import onnx

    return tuple(sorted({schema.name for schema in onnx.defs.get_all_schemas()}))


def pick(items: Any, rng: random.Random) -> Iterator[Any]:
    """One item, or none where there is none to pick; for use as ``for x in pick(...)``."""
    items = list(items)
    if items:
        yield rng.choice(items)


# --- nodes -----------------------------------------------------------------------------------


@mutation
def delete_node(model: Any, rng: random.Random) -> bool:
    """A node goes missing."""
    for graph in pick([g for g in graphs(model) if g.node], rng):
        del graph.node[rng.randrange(len(graph.node))]
        return True
    return False


@mutation
def duplicate_node(model: Any, rng: random.Random) -> bool:
    """A node twice, under its old output names or new ones."""
    for graph in pick([g for g in graphs(model) if g.node], rng):
        copy = graph.node.add()
        copy.CopyFrom(rng.choice(list(graph.node[:-1]) or [copy]))
        if rng.random() < 0.5:
            for index, name in enumerate(copy.output):
                copy.output[index] = f"{name}_again" if name else ""
        return True
    return False


@mutation
def swapnodes_of(model: Any, rng: random.Random) -> bool:
    """Two nodes change places, so that one reads what is not there yet."""
    for graph in pick([g for g in graphs(model) if len(g.node) > 1], rng):
        order = list(graph.node)
        i, j = rng.sample(range(len(order)), 2)
        order[i], order[j] = order[j], order[i]
        copies = []
        for node in order:
            copies.append(type(node)())
            copies[-1].CopyFrom(node)
        del graph.node[:]
        graph.node.extend(copies)
        return True
    return False


@mutation
def other_operator(model: Any, rng: random.Random) -> bool:
    """Another operator with the same operands."""
    for node in pick(nodes_of(model), rng):
        node.op_type = rng.choice((*op_types(), "Nope", "", "Conv" * 100))
        return True
    return False


@mutation
def other_domain(model: Any, rng: random.Random) -> bool:
    """The operator of another domain."""
    for node in pick(nodes_of(model), rng):
        node.domain = rng.choice(DOMAINS)
        return True
    return False


@mutation
def rewire_input(model: Any, rng: random.Random) -> bool:
    """A node reads another tensor, nothing, or what nobody computes; a cycle perhaps."""
    for node in pick([n for n in nodes_of(model) if n.input], rng):
        node.input[rng.randrange(len(node.input))] = rng.choice(names_of(model))
        return True
    return False


@mutation
def change_arity(model: Any, rng: random.Random) -> bool:
    """One operand or result too many or too few."""
    for node in pick(nodes_of(model), rng):
        names = rng.choice((node.input, node.output))
        if names and rng.random() < 0.5:
            del names[rng.randrange(len(names))]
        else:
            names.append(rng.choice(names_of(model)))
        return True
    return False


@mutation
def rename_output(model: Any, rng: random.Random) -> bool:
    """A result under a name that is taken, empty or new."""
    for node in pick([n for n in nodes_of(model) if n.output], rng):
        node.output[rng.randrange(len(node.output))] = rng.choice(names_of(model))
        return True
    return False


# --- attributes ------------------------------------------------------------------------------


@mutation
def delete_attribute(model: Any, rng: random.Random) -> bool:
    """An attribute goes missing."""
    for node in pick([n for n in nodes_of(model) if n.attribute], rng):
        del node.attribute[rng.randrange(len(node.attribute))]
        return True
    return False


@mutation
def change_attribute(model: Any, rng: random.Random) -> bool:
    """Another value of the same type."""
    for a in pick(attributes_of(model), rng):
        a.i, a.f = rng.choice(SIZES), rng.choice(NUMBERS)
        if a.s:
            a.s = rng.choice(TEXTS).encode()
        for values, choices in ((a.ints, SIZES), (a.floats, NUMBERS)):
            if not values:
                continue
            how = rng.randrange(4)
            if how == 0:
                del values[rng.randrange(len(values))]
            elif how == 1:
                values.append(rng.choice(choices))
            else:
                values[rng.randrange(len(values))] = rng.choice(choices)
        return True
    return False


@mutation
def retype_attribute(model: Any, rng: random.Random) -> bool:
    """An attribute that says it is of another type."""
    for attribute in pick(attributes_of(model), rng):
        attribute.type = rng.randrange(15)
        return True
    return False


@mutation
def rename_attribute(model: Any, rng: random.Random) -> bool:
    """An attribute under another name, perhaps one given already."""
    attributes = attributes_of(model)
    for attribute in pick(attributes, rng):
        attribute.name = rng.choice([*(a.name for a in attributes), "axis", "axes", "to", ""])
        return True
    return False


@mutation
def add_attribute(model: Any, rng: random.Random) -> bool:
    """An attribute that the operator has, or has not, with a strange value."""
    from onnx import helper

    for node in pick(nodes_of(model), rng):
        name = rng.choice(
            ("axis", "axes", "perm", "pads", "strides", "dilations", "group", "kernel_shape",
             "auto_pad", "to", "keepdims", "mode", "alpha", "direction", "hidden_size", "epsilon")
        )  # fmt: skip
        some = [rng.choice(SIZES) for _ in range(rng.randrange(1, 5))]
        value = rng.choice([rng.choice(SIZES), rng.choice(NUMBERS), rng.choice(TEXTS), some])
        node.attribute.append(helper.make_attribute(name, value))
        return True
    return False
