"""Values that follow from the model alone, computed at import by PyTorch itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from uif_tvm.frontends.torch.emitter import MAX_FOLDED_ELEMENTS


def fold(node: fx.Node, known: dict[fx.Node, torch.Tensor]) -> bool:
    """Compute ``node`` into ``known`` when nothing in it comes from an input.

    Returns:
        False where it does, where the result is random or large, or depends on strides.
    """
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload) or target is torch.ops.aten.as_strided.default:
        return False
    if torch.Tag.nondeterministic_seeded in target.tags or "empty" in str(target):
        return False  # random, or memory as it was found
    if not all(arg in known for arg in node.all_input_nodes):
        return False
    limit = MAX_FOLDED_ELEMENTS + sum(known[arg].numel() for arg in node.all_input_nodes)
    metas = node.meta["val"]
    for meta in metas if isinstance(metas, (tuple, list)) else (metas,):
        if not isinstance(meta, torch.Tensor):
            return False
        if any(isinstance(size, torch.SymInt) for size in meta.shape) or meta.numel() > limit:
            return False
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda arg: known[arg])
    if kwargs.get("device") is not None:
        kwargs = dict(kwargs) | {"device": torch.device("cpu")}
    if target in (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default):
        target = torch.reshape  # folding does not keep strides, on which view depends
    with torch.no_grad():
        known[node] = target(*args, **kwargs)
    return True
