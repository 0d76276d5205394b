"""OpInstance: one operator as models use it, and what makes two of them the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from uif_tvm.selection.arrays import Array, dtype_name

#: Fixed operands up to this many elements tell instances apart, where they decide the result.
MAX_DECIDING = 64
#: Floating-point operands that change what is computed, and not just with which numbers.
DECIDING_FLOATS: Mapping[str, frozenset[int]] = {
    "Pow": frozenset({1}),
    "Range": frozenset({0, 1, 2}),
    "Resize": frozenset({1, 2}),
    "Upsample": frozenset({1}),
}
#: Longest value of an operand in a signature, characters.
MAX_SHOWN = 32
#: Names kept of the nodes that an instance stands for.
MAX_NODES = 20


@dataclass(frozen=True)
class OperandInfo:
    """One operand or result.

    Args:
        dtype, shape: as found on the model's inputs; a sequence has one entry per tensor.
        role: ``input``; ``constant`` (the model fixes it, or it is settled at import); ``absent``.
        value: elements of a constant that decides the result (axes, shapes, pads), as text.
    """

    dtype: str
    shape: tuple[int, ...]
    role: str = "input"
    value: str = ""

    def __str__(self) -> str:
        if self.role == "absent":
            return "-"
        value = self.value if len(self.value) <= MAX_SHOWN else self.value[: MAX_SHOWN - 3] + "..."
        fixed = f"={value}" if value else "" if self.role == "input" else " const"
        return f"{self.dtype}[{','.join(map(str, self.shape))}]{fixed}"


@dataclass
class OpInstance:
    """One distinct operator instance and where it occurs in one model.

    Args:
        digest: equal for instances that compile to the same thing.
        op: ``domain::Op``, plain ``Op`` for the standard domain.
        version: operator set version that defines it.
        attributes: name to text.
        inputs, outputs: see :class:`OperandInfo`.
        flops, bytes: estimated, per call.
        dtype: element type that the arithmetic is done in.
        expected_by: who computed the expected results; empty if nobody could.
        nodes: names of nodes, at most ``MAX_NODES``.
        count: nodes in the model.
        calls: executions per run of the model, loops counted.
        notes: ``random``, ``made-up-inputs``, ``settled`` (all operands are fixed), ``body`` (it
            has subgraphs, whose operators are rows of their own) ...
        obstacle: why it could not be taken out of the model; empty if it was.
    """

    digest: str
    op: str
    version: int
    attributes: dict[str, str] = field(default_factory=dict)
    inputs: list[OperandInfo] = field(default_factory=list)
    outputs: list[OperandInfo] = field(default_factory=list)
    flops: float = 0.0
    bytes: float = 0.0
    dtype: str = "float32"
    expected_by: str = ""
    nodes: list[str] = field(default_factory=list)
    count: int = 0
    calls: float = 0.0
    notes: list[str] = field(default_factory=list)
    obstacle: str = ""

    def occurs(self, node: str, calls: float) -> None:
        """Count one more node."""
        self.count += 1
        self.calls += calls
        if len(self.nodes) < MAX_NODES:
            self.nodes.append(node)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> OpInstance:
        """What :meth:`to_json` gave, after a trip through JSON."""
        fields = dict(data)
        for name in ("inputs", "outputs"):
            fields[name] = [
                OperandInfo(i["dtype"], tuple(i["shape"]), i["role"], i["value"])
                for i in fields[name]
            ]
        return cls(**fields)

    def signature(self) -> str:
        """``Conv(float32[1,3,8,8], float32[4,3,3,3] const) pads=[1, 1, 1, 1]``."""
        shown = [str(item) for item in self.inputs]
        while shown and shown[-1] == "-":
            shown.pop()
        attributes = " ".join(f"{name}={text}" for name, text in self.attributes.items())
        return f"{self.op}({', '.join(shown)}) {attributes}".strip()


def digest_of(*parts: Any) -> str:
    """A short digest of plain data."""
    text = json.dumps(parts, sort_keys=True, default=str, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def deciding_value(op: str, index: int, array: Array) -> str:
    """The elements of a fixed operand as text where they decide the result, else empty.

    Integers of 32 and 64 bits and booleans are axes, shapes and masks; 8-bit ones are zero points.
    """
    if array.size > MAX_DECIDING:
        return ""
    kind = dtype_name(array)
    decides = kind in ("int64", "int32", "bool", "string")
    if not decides and index not in DECIDING_FLOATS.get(op, ()):
        return ""
    return json.dumps(array.tolist(), default=str, separators=(",", ":"))


def operand_infos(
    op: str, index: int, value: Array | Sequence[Array], fixed: bool
) -> list[OperandInfo]:
    """What a tensor, or each tensor of a sequence, is."""
    if isinstance(value, list):
        return [info for item in value for info in operand_infos(op, index, item, fixed)]
    array: Any = value
    return [
        OperandInfo(
            dtype_name(array),
            tuple(int(extent) for extent in array.shape),
            "constant" if fixed else "input",
            deciding_value(op, index, array) if fixed else "",
        )
    ]
