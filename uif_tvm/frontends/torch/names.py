"""Names that lead back to the source: module paths, source lines, output names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from uif_tvm.frontends.extension import broken_hint

_TORCH = os.path.dirname(torch.__file__) + os.sep
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def module_path(node: fx.Node) -> str:
    """The submodule that the node comes from (``encoder.layer.0.attention``), or ``""``."""
    stack = node.meta.get("nn_module_stack") or {}
    last = next(reversed(stack.values()), ("", None))
    path = last[0] if isinstance(last, tuple) else str(last)
    return path.removeprefix("L['self'].").split("@")[0]


def frames(node: fx.Node) -> list[tuple[str, int]]:
    """(file, line) of the calls that led to a node, outermost first, as far as they were kept."""
    found = _FRAME.findall(node.meta.get("stack_trace") or "")
    return [(file, int(line)) for file, line in found]


def source_location(node: fx.Node) -> str:
    """Submodule and the user's source line of a node, as far as the exporter kept them."""
    calls = frames(node)
    path = module_path(node)
    if not calls:
        return path or node.name
    outside = [call for call in calls if not call[0].startswith(_TORCH)]
    file, line = (outside or calls)[-1]
    where = f"{file.rsplit('/', 1)[-1]}:{line}"
    return f"{path} ({where})" if path else where


def output_names(program: ExportedProgram, count: int) -> list[str]:
    """One name per flat output: its dict keys or field names, else ``output_<position>``."""
    spec = program.call_spec.out_spec
    names: list[str] = []
    if spec is not None:
        for position, path in enumerate(_leaves(spec)):
            named = path and not path[0].isdigit()
            names.append("_".join(path) if named else f"output_{position}")
    if len(names) != count or len(set(names)) != count:
        names = [f"output_{position}" for position in range(count)]
    return names


def _leaves(spec: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Key paths of a PyTorch tree specification, in flattening order."""
    if spec.is_leaf():
        yield path
        return
    children = spec.children()
    for key, child in zip(_keys(spec, len(children)), children, strict=True):
        yield from _leaves(child, (*path, key))


def _keys(spec: Any, count: int) -> list[str]:
    context = spec.context
    for named in (spec.type, context):  # a named tuple's class
        fields = getattr(named, "_fields", None)
        if fields is not None and len(fields) == count:
            return list(fields)
    if isinstance(context, (list, tuple)) and len(context) == count and issubclass(spec.type, dict):
        return [str(key) for key in context]
    return [str(position) for position in range(count)]


def workaround(name: str, node: fx.Node) -> str:
    """What the model's author can do about an operator without converter."""
    origin = f"{node.meta.get('torch_fn')} {node.meta.get('stack_trace')}".lower()
    if ("rand" in name or "bernoulli" in name or "dropout" in name) and "dropout(" in origin:
        return "call model.eval() before torch.export.export"
    if any(word in name for word in ("rand", "bernoulli", "multinomial", "normal", "dropout")):
        return "random numbers have no place in inference: pass them as an input"
    if any(word in name for word in ("nonzero", "unique", "masked_select", "item", "bincount")):
        return "the size of the result depends on the data; use torch.where with a fixed size"
    if name.startswith(("aten.", "prims.")):
        return "allow fallback_mode='host', or rewrite the model with supported operators"
    remedy = "give the operator a converter with uif.register_op"
    return "; ".join(filter(None, (remedy, broken_hint())))
