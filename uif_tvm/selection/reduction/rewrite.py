"""Rewrites that make a model simpler without cutting it: bodies in place, fewer attributes and
operands, smaller dimensions.

Each yields proposals: (what it does, model, inputs). None needs to be right; a proposal that does
not run, or no longer shows the fault, is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from uif_tvm.selection.arrays import Array
from uif_tvm.selection.onnx_node import subgraphs, tensor

Feeds = Mapping[str, Array]
Proposal = tuple[str, Any, Feeds]

#: Constants up to this many elements may hold sizes that have to shrink along.
MAX_SHAPE = 64


def open_bodies(proto: Any, feeds: Feeds, values: Mapping[str, Array]) -> Iterator[Proposal]:
    """``If`` -> the branch taken; ``Loop`` -> its first iteration."""
    for position, node in enumerate(proto.graph.node):
        if node.op_type == "If" and node.input[0] in values:
            taken = bool(np.asarray(values[node.input[0]]).reshape(-1)[:1].any())
            name = "then_branch" if taken else "else_branch"
            yield f"If {_label(node)} -> its {name}", _with_body(proto, position, name, {}), feeds
        elif node.op_type == "Loop":
            yield f"Loop {_label(node)} -> one iteration", _iterated(proto, position), feeds


def fewer_details(proto: Any, feeds: Feeds) -> Iterator[Proposal]:
    """Nodes without one of their attributes, or without their last operand."""
    for position, node in enumerate(proto.graph.node):
        for attribute in node.attribute:
            if attribute.HasField("g") or attribute.graphs:
                continue
            copy = _copy(proto)
            kept = [a for a in node.attribute if a.name != attribute.name]
            del copy.graph.node[position].attribute[:]
            copy.graph.node[position].attribute.extend(kept)
            yield f"{_label(node)} without attribute {attribute.name}", copy, feeds
        if len(node.input) > 1:
            copy = _copy(proto)
            del copy.graph.node[position].input[-1:]
            yield f"{_label(node)} without operand {len(node.input) - 1}", *_tidy(copy, feeds)


def smaller(proto: Any, feeds: Feeds) -> Iterator[Proposal]:
    """All dimensions of one size cut to 1, to 2 or to half, largest first.

    Dimensions of equal size are mostly the same thing: all operands are cut alike, and integers of
    that size in small constants, which are shapes, change along.
    """
    from onnx import numpy_helper

    weights = {item.name: numpy_helper.to_array(item) for item in proto.graph.initializer}
    sizes = {d for array in [*weights.values(), *feeds.values()] for d in array.shape}
    for size in sorted((size for size in sizes if size > 1), reverse=True):
        for cut in dict.fromkeys((1, 2, size // 2)):
            if not 0 < cut < size:
                continue
            cut_only = {name: _cut(array, size, cut) for name, array in weights.items()}
            shaped = {name: _reshaped(array, size, cut) for name, array in cut_only.items()}
            given = {name: _cut(array, size, cut) for name, array in feeds.items()}
            same = all(shaped[name] is cut_only[name] for name in shaped)
            for less in (shaped,) if same else (shaped, cut_only):
                copy = _copy(proto)
                for item in copy.graph.initializer:
                    item.CopyFrom(tensor(less[item.name], item.name))
                _redeclare(copy, given)
                yield f"size {size} -> {cut}", copy, given


def _cut(array: Array, size: int, cut: int) -> Array:
    if size not in array.shape:
        return array
    return np.ascontiguousarray(
        array[tuple(slice(cut) if d == size else slice(None) for d in array.shape)]
    )


def _reshaped(array: Array, size: int, cut: int) -> Array:
    if array.dtype.kind != "i" or array.size > MAX_SHAPE or not (array == size).any():
        return array
    return np.where(array == size, np.array(cut, array.dtype), array)


def _redeclare(model: Any, feeds: Feeds) -> None:
    """Declare inputs as they are now; outputs are only named, for they have changed too."""
    for value in model.graph.input:
        shape = value.type.tensor_type.shape
        del shape.dim[:]
        for extent in feeds[value.name].shape:
            shape.dim.add().dim_value = int(extent)
    for value in model.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            dim.Clear()
    del model.graph.value_info[:]


def _with_body(
    proto: Any, position: int, attribute: str, bound: Mapping[str, str], skip: int = 0
) -> Any:
    """The node at ``position`` replaced by its body.

    Args:
        bound: the body's inputs -> names outside.
        skip: outputs of the body that the node does not give.
    """
    copy = _copy(proto)
    node = proto.graph.node[position]
    body = next(a.g for a in node.attribute if a.name == attribute)
    outside = {
        value.name: name for value, name in zip(body.output[skip:], node.output, strict=False)
    }
    taken = {name for other in proto.graph.node for name in [*other.input, *other.output]}
    own = {name for inner in body.node for name in inner.output if name}
    own |= {item.name for item in body.initializer}
    names = {name: f"{name}_inner" if name in taken else name for name in own}
    inner = [_renamed(item, {**names, **bound}) for item in body.node]
    identity = []
    for name, result in outside.items():
        if result:
            source = {**names, **bound}.get(name, name)
            identity.append(_identity(source, result))
    del copy.graph.node[:]
    copy.graph.node.extend(proto.graph.node[:position])
    copy.graph.node.extend([*inner, *identity])
    copy.graph.node.extend(proto.graph.node[position + 1 :])
    for item in body.initializer:
        kept = copy.graph.initializer.add()
        kept.CopyFrom(item)
        kept.name = names[item.name]
    return copy


def _iterated(proto: Any, position: int) -> Any:
    """A ``Loop`` replaced by one iteration; results that it stacks get a leading axis."""
    from onnx import helper

    node = proto.graph.node[position]
    body = next(a.g for a in node.attribute if a.name == "body")
    carried = len(body.input) - 2
    bound = {body.input[0].name: "loop_iteration", body.input[1].name: "loop_condition"}
    bound |= {v.name: n for v, n in zip(body.input[2:], node.input[2:], strict=False)}
    copy = _with_body(proto, position, "body", bound, skip=1)
    copy.graph.initializer.append(tensor(np.array(0, np.int64), "loop_iteration"))
    copy.graph.initializer.append(tensor(np.array(True), "loop_condition"))
    stacked = {name for name in node.output[carried:] if name}
    if stacked:
        copy.graph.initializer.append(tensor(np.array([0], np.int64), "loop_axis"))
    for item in copy.graph.node:
        if item.op_type == "Identity" and item.output[0] in stacked:
            lifted = helper.make_node("Unsqueeze", [item.input[0], "loop_axis"], item.output)
            item.CopyFrom(lifted)
    return copy


def _renamed(node: Any, names: Mapping[str, str]) -> Any:
    copy = type(node)()
    copy.CopyFrom(node)
    for field in (copy.input, copy.output):
        changed = [names.get(name, name) for name in field]
        del field[:]
        field.extend(changed)
    for graph in subgraphs(copy):
        local = {v.name for v in graph.input} | {i.name for i in graph.initializer}
        local |= {name for inner in graph.node for name in inner.output}
        outer = {old: new for old, new in names.items() if old not in local}
        inner = [_renamed(item, outer) for item in graph.node]
        del graph.node[:]
        graph.node.extend(inner)
        for value in graph.output:
            value.name = outer.get(value.name, value.name)
    return copy


def _identity(source: str, result: str) -> Any:
    from onnx import helper

    return helper.make_node("Identity", [source], [result], name=f"{result}_is")


def _tidy(model: Any, feeds: Feeds) -> tuple[Any, Feeds]:
    """Drop inputs and initializers that nothing reads any more."""
    from uif_tvm.selection.onnx_node import outer_names

    read = {n for node in model.graph.node for n in [*node.input, *outer_names(node)]}
    for field in (model.graph.input, model.graph.initializer):
        kept = [item for item in field if item.name in read]
        del field[:]
        field.extend(kept)
    return model, {name: array for name, array in feeds.items() if name in read}


def _copy(proto: Any) -> Any:
    copy = type(proto)()
    copy.CopyFrom(proto)
    return copy


def _label(node: Any) -> str:
    return str(node.name or next(iter(node.output), "") or node.op_type)
