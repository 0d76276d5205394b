"""The model as a graph for reports: what came in, and which kernel each part of it became."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Call, GlobalVar

from uif_tvm.relax_util import bindings, host_function, host_op, op_name

#: One row of a graph: ``name``, ``op``, ``inputs`` (names of nodes) and ``type``.
Node = dict[str, Any]

#: Fused kernel -> (kernel, source name) of each member.
Members = Mapping[str, Sequence[tuple[str, str]]]


def graph(
    mod: tvm.IRModule,
    members: Members | None = None,
    results: Mapping[str, Sequence[str]] | None = None,
) -> list[Node]:
    """The nodes of ``main`` in order: its inputs, then every call.

    Values that are only other names of a node (aliases, fields of tuples) are looked through, and
    so are weights. Names are those of the Relax variables, made unique by a number where they
    repeat.

    Args:
        members: fused kernel -> (operator, source name) of what is in it. Nodes of kernels then
            have ``sources``, the names of the values that they compute.
        results: the same names for each call, by the name of its result; a kernel that is called
            several times computes other values each time.
    """
    main = mod["main"]
    names = _Names()
    nodes: list[Node] = [
        {"name": names.of(param), "op": "input", "inputs": [], "type": type_text(param.ty)}
        for param in main.params
        if isinstance(param.ty, relax.TensorType | relax.ShapeType | relax.TupleType)
    ]
    known = {node["name"] for node in nodes}
    behind: dict[Any, list[str]] = {
        param: [name] for param in main.params if (name := names.of(param)) in known
    }

    def sources(values: Iterable[Any]) -> list[str]:
        found = [name for value in values for name in _leaves(value, behind)]
        return list(dict.fromkeys(found))

    for binding in bindings(main):
        value = getattr(binding, "value", None)
        if isinstance(value, Call) and not _is_weight(value):
            node: Node = {"name": names.of(binding.var), "op": _label(value)}
            node |= {"inputs": sources(_operands(value)), "type": type_text(binding.var.ty)}
            if members is not None:
                inside = members.get(node["op"], [(node["op"], str(binding.var.name))])
                named = (results or {}).get(str(binding.var.name)) if len(inside) > 1 else None
                node["sources"] = list(named or [source for _, source in inside])
            nodes.append(node)
            behind[binding.var] = [node["name"]]
        elif isinstance(value, relax.If):
            ends = [branch.body for branch in (value.true_branch, value.false_branch)]
            behind[binding.var] = sources([value.cond, *ends])
        else:
            behind[binding.var] = sources([value])
    return nodes


def type_text(ty: Any) -> str:
    """``float32[1, 3, 224, 224]`` and the like; tuples in parentheses."""
    if isinstance(ty, relax.TupleType):
        return f"({', '.join(type_text(field) for field in ty.fields)})"
    if not isinstance(ty, relax.TensorType):
        return type(ty).__name__.removesuffix("Type").lower()
    values = getattr(ty.shape, "values", None)
    known = [] if values is None else [getattr(extent, "value", extent) for extent in values]
    extents = "?" if values is None else ", ".join(map(str, known))
    return f"{ty.dtype.dtype}[{extents}]" if ty.dtype is not None else f"[{extents}]"


#: How lifted weights are fetched.
_FETCH = "vm.builtin.tuple_getitem"


class _Names:
    """Unique names of variables, close to their own."""

    def __init__(self) -> None:
        self._known: dict[Any, str] = {}
        self._used: Counter[str] = Counter()

    def of(self, var: Any) -> str:
        if var not in self._known:
            hint = str(var.name)
            count = self._used[hint]
            self._used[hint] += 1
            self._known[var] = f"{hint}#{count}" if count else hint
        return self._known[var]


def _is_weight(call: Call) -> bool:
    """Whether the call only fetches a weight (see the pass that lifts them)."""
    function = getattr(call.args[0], "global_symbol", "") if call.args else ""
    return op_name(call) == "relax.call_pure_packed" and str(function) == _FETCH


def _operands(call: Call) -> Iterator[Any]:
    for arg in call.args:
        yield from arg.fields if isinstance(arg, relax.Tuple) else (arg,)


def _leaves(value: Any, behind: dict[Any, list[str]]) -> list[str]:
    if isinstance(value, relax.Tuple):
        return [name for field in value.fields for name in _leaves(field, behind)]
    if isinstance(value, relax.TupleGetItem):
        return _leaves(value.tuple_value, behind)
    if isinstance(value, relax.Var):
        return behind.get(value, [])
    return []


def _label(call: Call) -> str:
    if host_function(call) is not None:
        return f"host:{host_op(call)}"
    name = op_name(call)
    if name == "relax.call_tir" and isinstance(call.args[0], GlobalVar):
        return str(call.args[0].name_hint)
    if name is not None:
        return name.removeprefix("relax.").removeprefix("uif.")
    return str(getattr(call.op, "name_hint", getattr(call.op, "global_symbol", "function")))
