"""Which kernels a user's ``disable_fusion`` patterns mean.

A pattern (``*`` and ``?``) may name the operator, with its family or without it
(``relax.nn.conv2d``, ``nn.conv2d``, ``conv2d``), the kernel (``conv2d3``), or the value in the
model that the kernel computes: the Relax variable, which ONNX models call by its node's output.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import TYPE_CHECKING

from uif_tvm.errors import UifError
from uif_tvm.relax_util import calls, op_name
from uif_tvm.standard_ops import read

if TYPE_CHECKING:
    import tvm
    from uif_tvm.relay_passes.fusion_graph import Node

    from uif_tvm.compiler.context import CompileContext

_PREFIXES = ("relax.", "uif.")


def operator_names(mod: tvm.IRModule) -> dict[str, frozenset[str]]:
    """Source name -> every name of the operator behind it, before passes change the model."""
    found: dict[str, frozenset[str]] = {}
    for var, call in calls(mod):
        name = op_name(call)
        if name is None:
            continue
        names = {name, name.rpartition(".")[2]}
        names |= {name.removeprefix(prefix) for prefix in _PREFIXES}
        try:
            spec = read(call)
        except UifError:
            spec = None  # a form that the standard operator does not describe
        if spec is not None:
            names.add(spec[0].name)
        found[str(var.name)] = found.get(str(var.name), frozenset()) | names
    return found


def mark_disabled(nodes: list[Node], pass_name: str, ctx: CompileContext) -> None:
    """Make the nodes stay alone that match one of ``ctx.disabled_fusion``."""
    if not ctx.disabled_fusion:
        return
    names = {node: _names_of(node, ctx.operators) for node in nodes}
    for pattern in ctx.disabled_fusion:
        matched = [node for node in nodes if fnmatch.filter(names[node], pattern)]
        for node in matched:
            node.alone = (
                f"fusion of {node.source} ({node.facts.name}) disabled on request: {pattern!r}"
            )
        if not matched:
            known = ", ".join(sorted({node.facts.name for node in nodes}))
            ctx.report.notes.append(f"disable_fusion: {pattern!r} matches no kernel of {known}")
        elif not any(node.readers or any(node.producers) for node in matched):
            ctx.report.decide(
                pass_name, matched[0].source, False, f"{matched[0].alone}; nothing could join it"
            )


def _names_of(node: Node, operators: Mapping[str, frozenset[str]]) -> set[str]:
    kernel = node.facts.name
    plain = kernel.removeprefix("tir_").rstrip("0123456789")
    return {kernel, plain, node.source} | operators.get(node.source, frozenset())
