"""Open dimensions of an ONNX model's inputs: which axes, under which names and ranges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import tirx

from uif_tvm.errors import ImportModelError
from uif_tvm.frontends.dynamic import AUTO, DimTable, axis_entries, by_input, fault, parse_entry
from uif_tvm.signature import DimRange


@dataclass
class OpenDims:
    """The symbolic dimensions of one model.

    Args:
        axes: input name -> axis -> name of its dimension.
        table: their ranges.
    """

    axes: dict[str, dict[int, str]] = field(default_factory=dict)
    table: DimTable = field(default_factory=DimTable)

    def ranges(self, shape: Sequence[int | str]) -> tuple[DimRange, ...]:
        """Ranges of the names in a shape, in order."""
        names = dict.fromkeys(dim for dim in shape if isinstance(dim, str))
        return tuple(self.table.ranges[name] for name in names)

    def variables(self) -> dict[str, tirx.Var]:
        """One variable per dimension."""
        return {name: tirx.Var(name, "int64") for name in self.table.ranges}

    def extents(
        self, variables: Mapping[str, tirx.Var], examples: Mapping[str, Any]
    ) -> dict[tirx.Var, int]:
        """Variable -> extent in the examples, as far as these are given."""
        return {
            variables[dim]: int(examples[name].shape[axis])
            for name, axes in self.axes.items()
            if name in examples
            for axis, dim in axes.items()
        }

    def check_examples(self, examples: Mapping[str, Any]) -> None:
        """Examples must lie in the ranges, and agree where axes share a name.

        Raises:
            ImportModelError: one does not.
        """
        seen: dict[str, tuple[int, str, int]] = {}
        for name, axes in self.axes.items():
            for axis, dim in axes.items():
                if name not in examples:
                    continue
                extent = int(examples[name].shape[axis])
                if extent not in self.table.ranges[dim]:
                    raise _misfit(
                        f"input {name!r}: the example has {extent} along axis {axis}, outside "
                        f"the range {self.table.ranges[dim]}",
                        name,
                    )
                first = seen.setdefault(dim, (extent, name, axis))
                if first[0] != extent:
                    raise _misfit(
                        f"dimension {dim!r} is {first[0]} in the example for {first[1]!r} (axis "
                        f"{first[2]}) but {extent} in that for {name!r} (axis {axis})",
                        name,
                    )


def open_dims(
    declared: Sequence[Any], examples: Mapping[str, Any], dynamic_shapes: Any
) -> OpenDims:
    """Read ``dynamic_shapes`` against the model's inputs.

    Args:
        declared: the ``ValueInfoProto`` of each input.
        examples: arrays by input name, as far as given.
        dynamic_shapes: see :mod:`uif_tvm.frontends.dynamic`; ``None`` for none.

    Raises:
        UsageError: it does not fit the inputs.
        ImportModelError: the examples do not fit it.
    """
    dims = OpenDims()
    if dynamic_shapes is None:
        return dims
    if isinstance(dynamic_shapes, str) and dynamic_shapes == AUTO:
        _open_all(dims, declared, examples)
    else:
        chosen = by_input(dynamic_shapes, [value.name for value in declared])
        for value in declared:
            _open_chosen(dims, value, examples.get(value.name), chosen.get(value.name))
    dims.check_examples(examples)
    return dims


def _extents(value: Any, example: Any) -> list[int | str | None]:
    """What the model declares along each axis: an extent, its own name, or nothing."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return [] if example is None else [None] * len(example.shape)
    return [
        # Exporters write "?" for every open extent: a name without a letter names nothing.
        dim.dim_value
        if dim.HasField("dim_value") and dim.dim_value >= 0
        else (dim.dim_param if any(map(str.isalnum, dim.dim_param)) else None)
        for dim in tensor.shape.dim
    ]


def _open_all(dims: OpenDims, declared: Sequence[Any], examples: Mapping[str, Any]) -> None:
    """Every axis that the declaration leaves open, under the model's own name for it.

    Exporters give one name to axes that have nothing in common: where the example has different
    extents under one name, these are different dimensions.
    """
    own: dict[tuple[str, int | None], str] = {}
    for value in declared:
        example = examples.get(value.name)
        axes = dims.axes[value.name] = {}
        for axis, extent in enumerate(_extents(value, example)):
            if isinstance(extent, int):
                continue
            wanted = extent or f"{value.name}_{axis}"
            key = (wanted, None if example is None else int(example.shape[axis]))
            if extent is None or key not in own:
                own[key] = dims.table.fresh(wanted)
                dims.table.add(DimRange(own[key]))
            axes[axis] = own[key]


def _open_chosen(dims: OpenDims, value: Any, example: Any, entry: Any) -> None:
    extents = _extents(value, example)
    axes = dims.axes[value.name] = {}
    for axis, item in axis_entries(entry, len(extents), f"input {value.name!r}"):
        extent = extents[axis]
        dim = parse_entry(item, f"axis {axis} of input {value.name!r}")
        if not isinstance(dim, DimRange):
            if isinstance(dim, int) and extent != dim and isinstance(extent, int):
                raise fault(f"axis {axis} of {value.name!r} is {extent} in the model, not {dim}")
            continue
        if isinstance(extent, int):
            raise fault(
                f"the model fixes axis {axis} of input {value.name!r} at {extent}",
                "only axes that the model leaves open can be dynamic; export the ONNX file again "
                "with dynamic_axes for this one",
            )
        if not dim.name:
            own = dims.table.fresh(extent or f"{value.name}_{axis}")
            dim = DimRange(own, dim.minimum, dim.maximum)
        dims.table.add(dim)
        axes[axis] = dim.name


def _misfit(message: str, name: str) -> ImportModelError:
    return ImportModelError(
        message,
        code="UIF-IMPORT-INPUT",
        op=name,
        hint="make the example fit dynamic_shapes, or widen the range",
    )
