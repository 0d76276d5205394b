"""How a block touches memory: strides along one iteration variable, cost per element.

These are estimates for choosing loops; nothing here decides whether a transformation is legal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uif_tvm.target.spec import dtype_bytes

if TYPE_CHECKING:
    from uif_tvm.target.spec import Machine

#: Calls that read conditionally or jump: a vector loop around them becomes scalar code.
_BRANCHING = ("if_then_else",)


@dataclass(frozen=True)
class Access:
    """One load or store of a block.

    Args:
        buffer: the buffer.
        indices: its index expressions over the block's variables.
        dtype: element type.
    """

    buffer: Any
    indices: tuple[Any, ...]
    dtype: str


@dataclass(frozen=True)
class Body:
    """What a one-store block does per iteration.

    Args:
        store: the store.
        loads: every load, in order, repeats included.
        operations: arithmetic nodes, each about one instruction.
        calls: names of intrinsics called.
        branching: a condition guards a load.
    """

    store: Access
    loads: tuple[Access, ...]
    operations: int
    calls: tuple[str, ...]

    @property
    def branching(self) -> bool:
        """Whether a condition guards a load."""
        return any(name.endswith(_BRANCHING) for name in self.calls)

    def lanes(self, machine: Machine) -> int:
        """Lanes of the widest element type touched."""
        widest = max((self.store, *self.loads), key=lambda access: dtype_bytes(access.dtype))
        return machine.lanes(widest.dtype)


def body_of(block: Any) -> Body | None:
    """The body of a block that is one store; ``None`` for any other block."""
    import tvm
    import tvm_ffi
    from tvm import tirx

    store = block.body
    if not isinstance(store, tirx.BufferStore):
        return None
    loads: list[Access] = []
    calls: list[str] = []
    operations = 0

    def load(node: Any) -> None:
        loads.append(Access(node.source, tuple(node.indices), str(node.source.dtype)))

    def call(node: Any) -> None:
        nonlocal operations
        operations += 1
        calls.append(str(getattr(node.op, "name", node.op)))

    def other(node: Any) -> None:
        nonlocal operations
        operations += 1

    arithmetic = (
        tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod,
        tirx.Min, tirx.Max, tirx.Select, tirx.Cast,
    )  # fmt: skip
    tvm_ffi.structural_walk(
        store.value,
        [(tvm.ir.TensorLoad, load), (tvm.ir.Call, call), *((kind, other) for kind in arithmetic)],
    )
    target = Access(store.buffer, tuple(store.indices), str(store.buffer.dtype))
    return Body(target, tuple(loads), operations, tuple(calls))


def stride(access: Access, var: Any) -> int | None:
    """Elements that ``access`` moves when ``var`` grows by one; ``None`` when not constant."""
    from tvm import sym, tirx

    total = 0
    step: int | None = 1
    for index, extent in zip(reversed(access.indices), reversed(access.buffer.shape), strict=True):
        linear = sym.detect_linear_equation(index, [var])
        if not len(linear) or not isinstance(linear[0], tirx.IntImm):
            return None
        coefficient = int(linear[0].value)
        if coefficient:
            if step is None:
                return None
            total += coefficient * step
        step = step * int(extent) if step is not None and isinstance(extent, tirx.IntImm) else None
    return total


def same_index(accesses: list[Access]) -> bool:
    """Whether all accesses use one and the same index over buffers of one shape."""
    import tvm_ffi

    first = accesses[0]
    return all(
        len(other.indices) == len(first.indices)
        and all(
            tvm_ffi.structural_equal(a, b)
            for a, b in zip(first.indices, other.indices, strict=True)
        )
        and all(
            tvm_ffi.structural_equal(a, b)
            for a, b in zip(first.buffer.shape, other.buffer.shape, strict=True)
        )
        for other in accesses[1:]
    )
