"""Arenas of a memory plan: allocated once per machine, tensors at fixed places in them."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from uif_tvm.artifact.memory_plan import ArenaTensor, MemoryPlan, ResidentWeight
from uif_tvm.artifact.strictjson import REGET
from uif_tvm.errors import ArtifactError, EnvironmentFault
from uif_tvm.runtime.tensors import Array, aligned_empty, numpy_dtype


def machine_bytes() -> int | None:
    """Physical memory of this machine; ``None`` where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def arenas_of(plan: MemoryPlan) -> tuple[Array, ...]:
    """Memory for the arenas of ``plan``; the system provides each page when it is first touched.

    Raises:
        EnvironmentFault: code ``UIF-ENV-MEMORY``: this machine cannot have as much.
    """
    limit = machine_bytes()
    if limit is not None and plan.arena_bytes > limit:
        raise _too_large(plan, f"this machine has {limit >> 20} MiB")
    try:
        return tuple(aligned_empty((arena.bytes,), np.dtype(np.uint8)) for arena in plan.arenas)
    except MemoryError as error:
        raise _too_large(plan, "the system does not give as much") from error


def _too_large(plan: MemoryPlan, reason: str) -> EnvironmentFault:
    return EnvironmentFault(
        f"the model's tensors need {plan.arena_bytes >> 20} MiB per thread that runs it; {reason}",
        code="UIF-ENV-MEMORY",
        stage="load",
        hint="run it on a larger machine or from fewer threads, or export it with smaller inputs",
    )


def tensor_array(arenas: tuple[Array, ...], tensor: ArenaTensor) -> Array:
    """``tensor`` as an array in its arena (the plan was checked when it was read)."""
    dtype = numpy_dtype(tensor.dtype)
    place = arenas[tensor.arena][tensor.offset : tensor.offset + tensor.nbytes]
    if tensor.nbytes:
        return place.view(dtype).reshape(tensor.shape)
    return aligned_empty(tensor.shape, dtype)


def place_weights(plan: MemoryPlan, arenas: tuple[Array, ...], weights: Sequence[Array]) -> None:
    """Copy the weights that live in an arena there.

    Raises:
        ArtifactError: the plan's tensor is not of the weight's shape and type, or there is no
            such weight.
    """
    for item in plan.resident:
        place = tensor_array(arenas, plan.tensors[item.tensor])
        if item.weight >= len(weights):
            raise _unfit(item)
        weight = weights[item.weight]
        if (weight.shape, weight.dtype) != (place.shape, place.dtype):
            raise _unfit(item)
        place[...] = weight


def _unfit(item: ResidentWeight) -> ArtifactError:
    return ArtifactError(
        f"the memory plan is another model's: weight {item.weight} does not fit its place",
        code="UIF-ARTIFACT-MEMORY",
        hint=REGET,
    )
