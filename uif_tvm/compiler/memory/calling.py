"""How a planned ``main`` gets its memory and gives its results (``artifact.memory_plan``)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from tvm import relax, tirx

from uif_tvm.artifact.memory_plan import ELEMENT_BYTES, ResultTensor
from uif_tvm.compiler.memory.liveness import GETTER, Allocation, Liveness


def direct_results(main: relax.Function, live: Liveness) -> dict[Allocation, int]:
    """Allocations that are results, each with the first output that it is."""
    results: dict[Allocation, int] = {}
    if returned_fields(main) is None:
        return results
    for index, origin in enumerate(live.outputs):
        item = origin.exact
        if item is None or item.weight is not None or item in results:
            continue
        if item.branches or not item.is_static:
            continue
        if item.dtype in ELEMENT_BYTES and static_shape_of(main.ret_ty.fields[index]) is not None:
            results[item] = index
    return results


def result_tensors(
    main: relax.Function, results: dict[Allocation, int], count: int
) -> list[ResultTensor | None]:
    """Per output, the tensor that ``main`` writes; ``None`` for what it returns."""
    made: list[ResultTensor | None] = [None] * count
    for item, index in results.items():
        shape = static_shape_of(main.ret_ty.fields[index])
        made[index] = None if shape is None else ResultTensor(shape, item.dtype)
    return made


def static_shape_of(ty: Any) -> tuple[int, ...] | None:
    """The shape of a tensor type when every extent is known, else ``None``."""
    values = getattr(getattr(ty, "shape", None), "values", None)
    if values is None or not all(isinstance(extent, tirx.IntImm) for extent in values):
        return None
    return tuple(int(extent.value) for extent in values)


def returned_fields(main: relax.Function) -> list[Any] | None:
    """The expressions that ``main`` returns as a tuple; None where they cannot be told apart."""
    body = main.body.body
    if isinstance(body, relax.Tuple):
        return list(body.fields)
    for block in main.body.blocks:
        for binding in block.bindings:
            if binding.var.same_as(body) and isinstance(binding.value, relax.Tuple):
                return list(binding.value.fields)
    return None


def result_params(main: relax.Function, results: dict[Allocation, int]) -> dict[Any, Any]:
    """Variable of each allocation that is a result -> the parameter that is written instead.

    In the order of the outputs, which is that of the plan.
    """
    ordered = sorted(results, key=lambda item: results[item])
    return {
        item.var: relax.Var(f"result{results[item]}", main.ret_ty.fields[results[item]])
        for item in ordered
    }


def kept_fields(main: relax.Function, written: Collection[int]) -> tuple[list[Any], Any] | None:
    """What ``main`` still returns besides the outputs ``written``, and the type of all that."""
    fields = returned_fields(main)
    if fields is None:
        return None
    kept = [index for index in range(len(fields)) if index not in written]
    types = [main.ret_ty.fields[index] for index in kept]
    return [fields[index] for index in kept], relax.TupleType(types)


def fetched(memory: Any, index: int, ty: Any) -> Any:
    """Element ``index`` of the tuple ``memory``, of type ``ty``."""
    call = relax.Call(relax.ExternFunc(GETTER), [memory, relax.prim_value(index)], None, [ty])
    relax.expr._update_type(call, ty)
    return call


def shaped(param: Any, ty: Any) -> Any:
    """The tensor ``param`` in the shape of ``ty``, over the same bytes."""
    if static_shape_of(param.ty) == static_shape_of(ty):
        return param
    reshaped = relax.op.reshape(param, ty.shape)
    relax.expr._update_type(reshaped, ty)
    return reshaped


def unique_names(items: Iterable[Allocation]) -> dict[Allocation, str]:
    """A name of its own for each, after the value that it holds."""
    names: dict[Allocation, str] = {}
    taken: set[str] = set()
    for item in items:
        name, number = item.source, 1
        while name in taken:
            number += 1
            name = f"{item.source}.{number}"
        taken.add(name)
        names[item] = name
    return names
