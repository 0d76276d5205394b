"""The memory plan of a target's section: arenas, the tensors in them, and who makes each result.

Compiled code of a planned section takes ``(inputs..., weights, memory, results...)``: ``memory``
is a tuple of tensors over the engine's arenas, made once; ``results`` are tensors over memory that
the caller will own. What it returns are the results that are not written that way, in order.

A plan from a file is believed only as far as it can be checked here: no tensor leaves its arena,
and every size is one that NumPy and the runtime can represent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from uif_tvm.artifact.strictjson import MAX_INT, Fields, dumps, loads

#: File name of the plan among a section's extras.
MEMORY_PLAN = "memory.json"
#: Every tensor starts at a multiple of this, bytes: what compiled code assumes.
ALIGNMENT = 64
MAX_PLAN_BYTES = 64 << 20

_CODE = "UIF-ARTIFACT-MEMORY"
#: NumPy's own limit; the runtime knows none.
_MAX_RANK = 32
#: Bytes of one element of each type that compiled code computes with.
ELEMENT_BYTES = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "float32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
}


@dataclass(frozen=True)
class Arena:
    """One block of memory: the tier it lies in, by name, and its bytes."""

    tier: str
    bytes: int


@dataclass(frozen=True)
class ArenaTensor:
    """A tensor at a fixed place: index of its arena, bytes from its start, shape, dtype."""

    arena: int
    offset: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * ELEMENT_BYTES[self.dtype]


@dataclass(frozen=True)
class ResultTensor:
    """A result that compiled code writes into the caller's memory: shape and stored dtype."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * ELEMENT_BYTES[self.dtype]


@dataclass(frozen=True)
class ResidentWeight:
    """A weight that stays in an arena for good: its place among the weights, and the tensor's."""

    weight: int
    tensor: int


@dataclass(frozen=True)
class MemoryPlan:
    """See the module text.

    Args:
        arenas: blocks that an engine allocates once per thread that runs.
        tensors: the ``memory`` tuple.
        results: one per output of the signature that is a tensor or a list, in order; ``None``
            for what compiled code returns.
        resident: weights that are copied into an arena when it is made.
        run_allocations: allocations of tensors that are left to each run: extents that have no
            upper limit, or results of open extents.
    """

    arenas: tuple[Arena, ...]
    tensors: tuple[ArenaTensor, ...]
    results: tuple[ResultTensor | None, ...]
    resident: tuple[ResidentWeight, ...] = ()
    run_allocations: int = 0

    @property
    def arena_bytes(self) -> int:
        """Bytes of all arenas."""
        return sum(arena.bytes for arena in self.arenas)

    @property
    def result_bytes(self) -> int:
        """Bytes of the results that are written into the caller's memory."""
        return sum(result.nbytes for result in self.results if result is not None)

    def to_bytes(self) -> bytes:
        """The plan as JSON; equal plans give equal bytes."""
        return dumps(
            {
                "arenas": [{"tier": arena.tier, "bytes": arena.bytes} for arena in self.arenas],
                "tensors": [
                    {
                        "arena": item.arena,
                        "offset": item.offset,
                        "shape": list(item.shape),
                        "dtype": item.dtype,
                    }
                    for item in self.tensors
                ],
                "results": [
                    {"shape": list(item.shape), "dtype": item.dtype} if item else {}
                    for item in self.results
                ],
                "resident": [vars(item) for item in self.resident],
                "run_allocations": self.run_allocations,
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> MemoryPlan:
        """Inverse of :meth:`to_bytes`, for data from anywhere.

        Raises:
            ArtifactError: code ``UIF-ARTIFACT-MEMORY``: not a plan, or one that leaves an arena.
        """
        with Fields(loads(data, "memory plan", _CODE, MAX_PLAN_BYTES), "memory plan", _CODE) as top:
            arenas = top.objects("arenas", _arena)
            if sum(arena.bytes for arena in arenas) > MAX_INT:
                top.refuse("the arenas together are larger than any memory")
            tensors = top.objects("tensors", lambda row: _tensor(row, arenas))
            return cls(
                arenas=arenas,
                tensors=tensors,
                results=top.objects("results", _result),
                resident=top.objects("resident", lambda row: _resident(row, len(tensors))),
                run_allocations=top.integer("run_allocations"),
            )


def _arena(row: Fields) -> Arena:
    return Arena(row.text("tier"), row.integer("bytes"))


def _tensor(row: Fields, arenas: tuple[Arena, ...]) -> ArenaTensor:
    index, offset = row.integer("arena"), row.integer("offset")
    tensor = ArenaTensor(index, offset, *_shape_and_dtype(row))
    if index >= len(arenas):
        row.refuse(f"there is no arena {index}, only {len(arenas)}")
    if offset % ALIGNMENT:
        row.refuse(f"offset {offset} is no multiple of {ALIGNMENT}")
    if offset + tensor.nbytes > arenas[index].bytes:
        row.refuse(
            f"it ends at byte {offset + tensor.nbytes} of an arena of {arenas[index].bytes} bytes"
        )
    return tensor


def _resident(row: Fields, tensors: int) -> ResidentWeight:
    item = ResidentWeight(row.integer("weight"), row.integer("tensor"))
    if item.tensor >= tensors:
        row.refuse(f"there is no tensor {item.tensor}, only {tensors}")
    return item


def _result(row: Fields) -> ResultTensor | None:
    return ResultTensor(*_shape_and_dtype(row)) if list(row) else None


def _shape_and_dtype(row: Fields) -> tuple[tuple[int, ...], str]:
    shape, dtype = row.sizes("shape"), row.text("dtype")
    if len(shape) > _MAX_RANK:
        row.refuse(f"{len(shape)} axes are more than the {_MAX_RANK} allowed")
    if dtype not in ELEMENT_BYTES:
        row.refuse(f"{dtype!r:.80} is no dtype of planned tensors")
    # Extents of zero hide what the others would overflow.
    if math.prod(extent or 1 for extent in shape) * ELEMENT_BYTES[dtype] > MAX_INT:
        row.refuse("it is larger than any memory")
    return shape, dtype
