"""Mutations of tensors, of what a model declares, and of the model as a whole."""

from __future__ import annotations

import random
from typing import Any

from tests.fuzz.mutate import (
    DOMAINS,
    NUMBERS,
    SIZES,
    TYPES,
    graphs,
    mutation,
    names_of,
    nodes_of,
    pick,
    tensors_of,
)

# --- tensors ---------------------------------------------------------------------------------


@mutation
def resize_tensor(model: Any, rng: random.Random) -> bool:
    """Declared dimensions that the data does not have."""
    for tensor in pick(tensors_of(model), rng):
        if tensor.dims and rng.random() < 0.7:
            tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(SIZES)
        elif tensor.dims and rng.random() < 0.5:
            del tensor.dims[rng.randrange(len(tensor.dims))]
        else:
            tensor.dims.append(rng.choice(SIZES))
        return True
    return False


@mutation
def retype_tensor(model: Any, rng: random.Random) -> bool:
    """Data under another element type."""
    for tensor in pick(tensors_of(model), rng):
        tensor.data_type = rng.choice(TYPES)
        return True
    return False


@mutation
def truncate_tensor(model: Any, rng: random.Random) -> bool:
    """Data that ends early, or is gone."""
    for tensor in pick([t for t in tensors_of(model) if t.raw_data], rng):
        tensor.raw_data = tensor.raw_data[: rng.randrange(len(tensor.raw_data))]
        return True
    return False


@mutation
def extreme_values(model: Any, rng: random.Random) -> bool:
    """Axes, shapes, indices and scales at the ends of their types."""
    from onnx import numpy_helper

    for tensor in pick([t for t in tensors_of(model) if t.data_type in (1, 6, 7, 11)], rng):
        array = numpy_helper.to_array(tensor).copy()
        values = NUMBERS if array.dtype.kind == "f" else SIZES
        if not array.size:
            return False
        array.reshape(-1)[rng.randrange(array.size)] = rng.choice(values)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        return True
    return False


@mutation
def to_external(model: Any, rng: random.Random) -> bool:
    """Data that lies elsewhere."""
    from onnx import TensorProto

    for tensor in pick(tensors_of(model), rng):
        tensor.data_location = TensorProto.EXTERNAL
        entry = tensor.external_data.add()
        entry.key = "location"
        entry.value = rng.choice(("../../etc/passwd", "/dev/zero", "/dev/stdin", "w", "", "\0"))
        return True
    return False


@mutation
def delete_tensor(model: Any, rng: random.Random) -> bool:
    """A weight goes missing, or turns into an input."""
    if not model.graph.initializer:
        return False
    del model.graph.initializer[rng.randrange(len(model.graph.initializer))]
    return True


# --- the model -------------------------------------------------------------------------------


@mutation
def change_value_info(model: Any, rng: random.Random) -> bool:
    """Declared inputs and outputs of other types and shapes."""
    values = [v for g in graphs(model) for v in (*g.input, *g.output) if hasattr(v, "type")]
    for value in pick(values, rng):
        tensor = value.type.tensor_type
        how = rng.randrange(5)
        if how == 0:
            tensor.elem_type = rng.choice(TYPES)
        elif how == 1:
            value.type.Clear()
        elif how == 2:
            tensor.shape.dim.add().dim_value = rng.choice(SIZES)
        elif tensor.shape.dim:
            dim = rng.choice(list(tensor.shape.dim))
            if how == 3:
                dim.dim_value = rng.choice(SIZES)
            else:
                dim.dim_param = rng.choice(("n", "", "n+1", "\u2603"))
        return True
    return False


@mutation
def change_signature(model: Any, rng: random.Random) -> bool:
    """Inputs and outputs doubled, renamed or gone."""
    for graph in pick(graphs(model), rng):
        values = rng.choice((graph.input, graph.output))
        if not values or not hasattr(values[0], "name"):
            return False
        index, how = rng.randrange(len(values)), rng.randrange(3)
        if how == 0:
            del values[index]
        elif how == 1:
            values.add().CopyFrom(values[index])
        else:
            values[index].name = rng.choice(names_of(model))
        return True
    return False


@mutation
def change_versions(model: Any, rng: random.Random) -> bool:
    """Operator sets and file formats that are old, new or absurd."""
    how = rng.randrange(4)
    if how == 0:
        model.ir_version = rng.choice((0, 1, 3, 4, 99, 2**40, -5))
    elif how == 1 and model.opset_import:
        del model.opset_import[rng.randrange(len(model.opset_import))]
    elif how == 2:
        entry = model.opset_import.add()
        entry.domain, entry.version = rng.choice(DOMAINS), rng.choice((0, 1, 7, 999))
    elif model.opset_import:
        versions = (-1, 0, 1, 2, 5, 6, 7, 9, 10, 11, 12, 13, 17, 18, 21, 23, 999, 2**40)
        rng.choice(list(model.opset_import)).version = rng.choice(versions)
    return True


@mutation
def into_function(model: Any, rng: random.Random) -> bool:
    """A local function that takes an operator's place, and may call itself."""
    for node in pick(nodes_of(model), rng):
        function = model.functions.add()
        function.name, function.domain = node.op_type, node.domain
        function.input.extend(name or f"i{k}" for k, name in enumerate(node.input))
        function.output.extend(name or f"o{k}" for k, name in enumerate(node.output))
        inner = function.node.add()
        inner.CopyFrom(node)
        if rng.random() < 0.5:
            inner.domain = "" if node.domain else "else.where"
        function.opset_import.extend(model.opset_import)
        return True
    return False


@mutation
def nest_deeply(model: Any, rng: random.Random) -> bool:
    """A node inside many branches, or a branch with too few results."""
    from onnx import TensorProto, helper

    if not model.graph.node:
        return False
    place = rng.randrange(len(model.graph.node))
    node = type(model.graph.node[place])()
    node.CopyFrom(model.graph.node[place])
    outputs = list(node.output)
    results = [helper.make_tensor_value_info(name or "none", 1, None) for name in outputs]
    plain = helper.make_graph([node], "plain", [], results)
    for _ in range(rng.choice((1, 3, 12, 28))):
        branch = helper.make_graph([node], "b", [], results[: rng.choice((None, None, None, 0))])
        node = helper.make_node("If", ["deep"], outputs, then_branch=branch, else_branch=plain)
    model.graph.node[place].CopyFrom(node)
    model.graph.initializer.append(helper.make_tensor("deep", TensorProto.BOOL, [], [True]))
    return True
