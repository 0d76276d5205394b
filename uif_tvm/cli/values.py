"""Sequences and optionals on the command line, as the tensors that they consist of.

The items of a sequence ``x`` are called ``x[0]``, ``x[1]`` ... wherever an array has a name:
``--input 'x[0]=@a.npy'``, ``--input-shape``, output files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from uif_tvm.errors import UsageError
from uif_tvm.signature import Spec, TensorSpec, pack, tensors

if TYPE_CHECKING:
    from uif_tvm.cli.tensors import Array


def assembled(specs: Sequence[Spec], arrays: Mapping[str, Array]) -> dict[str, Any]:
    """What ``Engine.run`` takes, from an array for each tensor of the inputs."""
    leaves = iter([arrays[spec.name] for spec in tensors(specs)])
    return dict(zip((spec.name for spec in specs), pack(specs, leaves), strict=True))


def examples_of(
    declared: Sequence[TensorSpec], given: Mapping[str, Array]
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Example values of a model's sequences and optionals, and the arrays of its tensors.

    An ONNX file does not say how long a sequence is: that is how many items are given. Its
    optionals are empty unless given.

    Raises:
        UsageError: a sequence without items, or with a gap in them.
    """
    rest: dict[str, Any] = dict(given)
    examples: dict[str, Any] = {}
    for spec in declared:
        if spec.dtype not in ("sequence", "optional") or spec.shape != ("?",):
            continue
        items: list[Any] = []
        while f"{spec.name}[{len(items)}]" in rest:
            items.append(rest.pop(f"{spec.name}[{len(items)}]"))
        if items:
            examples[spec.name] = items
        elif spec.dtype == "optional":
            examples[spec.name] = rest.pop(spec.name, None)
        else:
            raise UsageError(
                f"input {spec.name!r} is a sequence, and no item of it is given",
                code="UIF-USAGE-INPUT",
                hint=f"give one array per item: --input '{spec.name}[0]=@FILE.npy' ...",
            )
    return examples, rest
