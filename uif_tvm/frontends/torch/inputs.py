"""Example inputs: as arguments of a module, and against what a program declares."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from uif_tvm.errors import ImportModelError
from uif_tvm.frontends.torch.registry import op_name

#: Operators whose tensors must all have one dtype in PyTorch, and which exporting does not check.
_ONE_DTYPE = ("linear", "mm", "bmm", "addmm", "baddbmm", "matmul", "convolution", "conv1d",
              "conv2d", "conv3d")  # fmt: skip
_CASTS = {
    torch.float32: ".float()",
    torch.float64: ".double()",
    torch.float16: ".half()",
    torch.bfloat16: ".bfloat16()",
}


def as_arguments(
    module: torch.nn.Module, dummy_input: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments from the user's example input.

    Keyword arguments come in the order of ``forward``'s parameters, whatever the dict's order:
    it becomes the order of the compiled model's inputs. Names that ``forward`` does not have
    come last, for PyTorch to judge.
    """
    value = pytree.tree_map(_as_tensor, dummy_input)
    if isinstance(value, Mapping):
        return (), _in_order(dict(value), module)
    if isinstance(value, (tuple, list)):
        return tuple(value), {}
    return (value,), {}


def _in_order(kwargs: dict[str, Any], module: torch.nn.Module) -> dict[str, Any]:
    try:
        parameters = list(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):  # a callable without a Python signature
        return kwargs
    order = [name for name in parameters if name in kwargs]
    return {name: kwargs[name] for name in order} | kwargs


def _as_tensor(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor) and leaf.layout != torch.strided:
        raise ImportModelError(
            f"the example has a tensor of layout {leaf.layout}; only dense ones can be exported",
            code="UIF-IMPORT-INPUT",
            hint="convert the example with .to_dense()",
        )
    if isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype.kind not in "biufc":
        raise ImportModelError(
            f"the example has an array of {leaf.dtype}, which no PyTorch tensor can hold",
            code="UIF-IMPORT-INPUT",
            hint="pass numbers: text has to be encoded before it enters the model",
        )
    if isinstance(leaf, (np.ndarray, np.generic)):
        return torch.from_numpy(np.array(leaf, order="C"))
    return leaf


def check_example(program: ExportedProgram, dummy_input: Any) -> None:
    """Compare an example input with the inputs that an exported program declares.

    Raises:
        ImportModelError: another number of inputs, an unknown name, or a dtype, rank or static
            size that does not fit. Symbolic sizes take any value.
    """
    declared = dict(_user_inputs(program))
    for name, value in _by_name(program, list(declared), dummy_input).items():
        meta = declared[name]
        if not isinstance(meta, torch.Tensor):
            continue
        if not isinstance(value, torch.Tensor):
            raise _misfit(f"input {name!r}: the example is a {type(value).__name__}, no tensor")
        if not _fits(value.shape, meta.shape):
            raise _misfit(
                f"input {name!r}: the example has shape {list(value.shape)}, the program was "
                f"exported for {_sizes(meta.shape)}"
            )
        if value.dtype != meta.dtype:
            raise _misfit(
                f"input {name!r}: the example is {_name(value.dtype)}, the program was exported "
                f"for {_name(meta.dtype)}"
            )


def _misfit(message: str) -> ImportModelError:
    return ImportModelError(
        message,
        code="UIF-IMPORT-INPUT",
        hint="leave the example out, make it fit, or export the program again with it "
        "(torch.export.Dim for sizes that vary)",
    )


def _user_inputs(program: ExportedProgram) -> Iterator[tuple[str, Any]]:
    kinds = {spec.arg.name: spec.kind for spec in program.graph_signature.input_specs}
    for node in program.graph.nodes:
        if node.op == "placeholder" and kinds[node.name] == InputKind.USER_INPUT:
            yield node.name, node.meta.get("val")


def _by_name(program: ExportedProgram, names: list[str], dummy_input: Any) -> dict[str, Any]:
    """The example's leaves under the names of the program's inputs."""
    value = pytree.tree_map(_as_tensor, dummy_input)
    if isinstance(value, Mapping):
        if set(value) == set(names):
            return dict(value)
        keywords = pytree.tree_structure(((), dict(value)))
        known = program.call_spec.in_spec.child(1).context  # the dict's keys, in order
        if keywords.num_leaves == len(names) and set(known) == set(value):
            value = {name: value[name] for name in known}
        else:
            raise _misfit(
                f"the example has the inputs {', '.join(map(repr, value))}, the program has "
                f"{', '.join(map(repr, names))}"
            )
    leaves = pytree.tree_leaves(value)
    if len(leaves) != len(names):
        raise _misfit(
            f"{len(leaves)} example inputs for a program with {len(names)}: "
            f"{', '.join(map(repr, names))}"
        )
    return dict(zip(names, leaves, strict=True))


def _fits(shape: torch.Size, declared: torch.Size) -> bool:
    return len(shape) == len(declared) and all(
        not isinstance(size, int) or size == given
        for given, size in zip(shape, declared, strict=True)
    )


def _sizes(shape: torch.Size) -> str:
    return f"[{', '.join(str(size) for size in shape)}]"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def check_dtypes(program: ExportedProgram) -> None:
    """Refuse products of mixed dtypes, which PyTorch exports but cannot run.

    Raises:
        ImportModelError: naming the inputs of the odd dtype, and the weights' dtype.
    """
    inputs = {
        name: value.dtype
        for name, value in _user_inputs(program)
        if isinstance(value, torch.Tensor)
    }
    weights = {t.dtype for t in program.state_dict.values() if t.is_floating_point()}
    for node in program.graph.nodes:
        if node.op != "call_function" or not op_name(node.target).startswith("aten."):
            continue
        if op_name(node.target).split(".")[1] not in _ONE_DTYPE:
            continue
        metas = [arg.meta.get("val") for arg in node.all_input_nodes]
        dtypes = {meta.dtype for meta in metas if isinstance(meta, torch.Tensor)}
        wanted = dtypes & weights
        if len(dtypes) > 1 and len(wanted) == 1:
            odd = [name for name, dtype in inputs.items() if dtype in dtypes - wanted]
            if odd:
                raise _mixed({name: inputs[name] for name in odd}, wanted.pop())


def mixed_dtypes(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> ImportModelError | None:
    """The reason, when floating example inputs and weights of a module differ in dtype."""
    weights = {p.dtype for p in module.parameters() if p.is_floating_point()}
    if len(weights) != 1:
        return None
    wanted = weights.pop()
    try:
        bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return None
    odd = {
        name: leaf.dtype
        for name, value in bound.items()
        for leaf in pytree.tree_leaves(value)
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.dtype != wanted
    }
    return _mixed(odd, wanted) if odd else None


def _mixed(odd: dict[str, torch.dtype], wanted: torch.dtype) -> ImportModelError:
    are = ", ".join(f"input {name!r} is {_name(dtype)}" for name, dtype in odd.items())
    cast = _CASTS.get(wanted, f".to({wanted})")
    return ImportModelError(
        f"{are}, but the weights are {_name(wanted)}",
        code="UIF-IMPORT-INPUT",
        op=", ".join(odd),
        hint=f"convert the example with {cast}",
    )
