"""Structural rules of ONNX, checked before the graph is walked.

Each violation is an ``ImportModelError`` that names the node and the rule. Semantics of single
operators are checked when they are converted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from uif_tvm.errors import ImportModelError

KNOWN_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview.training", "com.microsoft")
MAX_DEPTH = 64
"""Nesting of subgraphs and local functions."""


MAX_ELEMENTS = 1 << 38
"""Of one result, 1 TiB in float32: a size that is meant to break whoever allocates it."""


def check_room(node: Any, types: Iterable[Any]) -> None:
    """Refuse results of static shapes that no machine holds, before anything allocates them.

    Raises:
        ImportModelError: naming the node and the shape.
    """
    for ty in types:
        dims: list[Any] = [getattr(d, "value", None) for d in getattr(ty.shape, "values", ())]
        if None not in dims and math.prod(dims) > MAX_ELEMENTS:
            fail("SIZE", f"its result of shape {dims} is more than any machine holds", node)


def node_label(node: Any) -> str:
    """How errors and reports call a node: its name, or its first output."""
    first = next((name for name in node.output if name), "")
    return str(node.name or first or node.op_type)


def fail(rule: str, text: str, node: Any | None = None, hint: str | None = None) -> NoReturn:
    """Raise the error for a broken rule."""
    where = f"node {node_label(node)!r} ({node.op_type}): " if node is not None else ""
    raise ImportModelError(
        f"{where}{text}",
        code=f"UIF-IMPORT-{rule}",
        op=node_label(node) if node is not None else None,
        hint=hint or "the model file is malformed: export it again",
    )


def domain_of(name: str) -> str:
    """Canonical name of an operator domain."""
    return "" if name == "ai.onnx" else name


def opset_versions(imports: Iterable[Any]) -> dict[str, int]:
    """Domain to version; refuses versions this ONNX does not know.

    Raises:
        ImportModelError: no import, a repeated domain, or a version out of range.
    """
    import onnx

    versions: dict[str, int] = {}
    for entry in imports:
        domain = domain_of(entry.domain)
        if versions.get(domain, entry.version) != entry.version:
            fail("OPSET", f"operator set {domain!r} is imported in two versions")
        versions[domain] = int(entry.version)
    newest = onnx.defs.onnx_opset_version()
    for domain, version in versions.items():
        if domain == "" and not 1 <= version <= newest:
            fail(
                "OPSET",
                f"operator set version {version} is not known (1 to {newest} are)",
                hint="install a newer onnx, or convert with onnx.version_converter",
            )
        if version < 1 or version > 2**31:
            fail("OPSET", f"operator set version {version} of {domain!r} cannot be")
    return versions


def check_format(model: Any) -> None:
    """Refuse files whose format is not the one that the installed onnx reads.

    Raises:
        ImportModelError: the IR version is missing, absurd or of the future.
    """
    import onnx

    version, newest = model.ir_version, int(onnx.IR_VERSION)
    if not 1 <= version <= newest:
        fail(
            "VERSION",
            f"the file says that its format (IR version) is {version}; 1 to {newest} are known",
            hint="install a newer onnx" if version > newest else "export the model again",
        )


def check_graph(graph: Any, outer: frozenset[str] = frozenset(), depth: int = 0) -> None:
    """Check names, order and single assignment in a graph and its subgraphs.

    Raises:
        ImportModelError: duplicate or dangling names, nodes out of order or in a cycle.
    """
    if depth > MAX_DEPTH:
        fail("DEPTH", f"subgraphs nested deeper than {MAX_DEPTH}")
    inputs = [value.name for value in graph.input]
    weights = [tensor.name for tensor in graph.initializer]
    weights += [tensor.values.name for tensor in graph.sparse_initializer]
    _unique("input", inputs)
    _unique("initializer", weights)
    defined = set(inputs) | set(weights)
    if "" in defined:
        fail("NAME", "an input or initializer has no name")
    produced = {name for node in graph.node for name in node.output if name}
    for node in graph.node:
        for name in node.input:
            if name and name not in defined and name not in outer:
                if name in produced:
                    fail("CYCLE", f"reads {name!r} before it is computed (a cycle?)", node)
                fail("DANGLING", f"reads {name!r}, which nothing defines", node)
        for attribute in node.attribute:
            for sub in [attribute.g] if attribute.HasField("g") else list(attribute.graphs):
                check_graph(sub, outer | defined, depth + 1)
        for name in node.output:
            if name and name in defined:
                fail("DUPLICATE", f"defines {name!r}, which is defined already", node)
            if name:
                defined.add(name)
    for value in graph.output:
        if value.name not in defined and value.name not in outer:
            fail("DANGLING", f"graph output {value.name!r} is not computed by any node")


def _unique(kind: str, names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            fail("DUPLICATE", f"{kind} {name!r} occurs twice")
        seen.add(name)


def nodes_below(nodes: Iterable[Any]) -> Iterable[Any]:
    """The nodes and those of their subgraphs, at any depth."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for sub in [attribute.g] if attribute.HasField("g") else list(attribute.graphs):
                yield from nodes_below(sub.node)


def check_functions(functions: Iterable[Any]) -> dict[tuple[str, str], Any]:
    """Local functions by (domain, name).

    Raises:
        ImportModelError: duplicates, or functions that call each other in a circle.
    """
    table: dict[tuple[str, str], Any] = {}
    for function in functions:
        key = (domain_of(function.domain), function.name)
        if key in table:
            fail("DUPLICATE", f"local function {key} is defined twice")
        table[key] = function
    _check_recursion(table)
    return table


def _check_recursion(table: Mapping[tuple[str, str], Any]) -> None:
    state: dict[tuple[str, str], int] = {}

    def visit(key: tuple[str, str], depth: int) -> None:
        if state.get(key) == 2:
            return
        if state.get(key) == 1 or depth > MAX_DEPTH:
            fail("CYCLE", f"local function {key} calls itself")
        state[key] = 1
        for node in nodes_below(table[key].node):
            callee = (domain_of(node.domain), node.op_type)
            if callee in table:
                visit(callee, depth + 1)
        state[key] = 2

    for key in table:
        visit(key, 0)
