"""``import_onnx``: the frontend's one public function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax

from uif_tvm.errors import ImportModelError, UifError, UnsupportedError, UnsupportedOp
from uif_tvm.frontends.dynamic import with_ranges
from uif_tvm.frontends.imported import ImportedModel
from uif_tvm.frontends.onnx.dataflow import cut_into_dataflow
from uif_tvm.frontends.onnx.dims import OpenDims, open_dims
from uif_tvm.frontends.onnx.importer import GraphImporter, Scope
from uif_tvm.frontends.onnx.load import load_model
from uif_tvm.frontends.onnx.tensors import numpy_dtype
from uif_tvm.frontends.onnx.validate import (
    check_functions,
    check_graph,
    nodes_below,
    opset_versions,
)
from uif_tvm.frontends.onnx.values import Dynamic, Known, Symbolic, Value, known_ranges, shape_of
from uif_tvm.signature import Signature, TensorSpec

MAX_SPECIALISED = 4096
"""Elements of an input whose value may be compiled in, where an operator needs it at import."""


def import_onnx(
    model: Any,
    dummy_input: Any = None,
    *,
    host_fallback: bool = False,
    dynamic_shapes: Any = None,
) -> ImportedModel:
    """Import an ONNX model into Relax, with the input shapes of ``dummy_input``.

    Args:
        model: path of an ``.onnx`` file, or an ``onnx.ModelProto``.
        dummy_input: example inputs: an array, a sequence in the model's order, or a mapping by
            name. ``None`` when the model's own input shapes are all static.
        host_fallback: let operators without converter run on the host, by ONNX's reference.
        dynamic_shapes: axes that stay open, see :mod:`uif_tvm.frontends.dynamic`; the example
            settles the others.

    Raises:
        UsageError: ``dynamic_shapes`` does not fit the inputs.
        ImportModelError: the model is malformed or hostile, or the inputs do not fit it.
        UnsupportedError: operators without a converter, all of them listed.
    """
    loaded = load_model(model)
    proto = loaded.proto
    try:
        return _import(loaded.folder, proto, dummy_input, host_fallback, dynamic_shapes)
    except UifError:
        raise
    except RecursionError as exc:
        raise ImportModelError("the model is nested too deeply", code="UIF-IMPORT-DEPTH") from exc


def _import(
    folder: Any, proto: Any, dummy_input: Any, host_fallback: bool, dynamic_shapes: Any
) -> ImportedModel:
    graph = proto.graph
    versions = opset_versions(proto.opset_import)
    check_graph(graph)
    functions = check_functions(proto.functions)
    weights = {tensor.name for tensor in graph.initializer}
    declared = [value for value in graph.input if value.name not in weights]
    examples = _by_name([value.name for value in declared], dummy_input)
    dims = open_dims(declared, examples, dynamic_shapes)
    specs = input_specs(declared, examples if dummy_input is not None else None, dims)

    bb = relax.BlockBuilder()
    variables = dims.variables()
    params = [
        relax.Var(
            _identifier(spec.name, number),
            relax.TensorType([variables.get(dim, dim) for dim in spec.shape], spec.dtype),
        )
        for number, spec in enumerate(specs)
    ]
    importer = GraphImporter(bb, folder, functions, host_fallback)
    for spec, param in zip(specs, params, strict=True):
        if spec.name in examples and examples[spec.name].size <= MAX_SPECIALISED:
            importer.examples[param] = (spec.name, np.asarray(examples[spec.name]))
    bounds = {var: dims.table.ranges[name] for name, var in variables.items()}
    with known_ranges(bounds), bb.function("main", params):
        bindings: dict[str, Value] = {
            spec.name: Dynamic(param) for spec, param in zip(specs, params, strict=True)
        }
        try:
            outputs = importer.run_graph(graph, Scope(versions), bindings)
            importer.notes.raise_refused()
            names = [value.name for value in graph.output]
            results = [_result(importer, n, v) for n, v in zip(names, outputs, strict=True)]
        except Exception:
            bb.emit_func_output(relax.Tuple([]))  # leave the builder's scope in order
            raise
        bb.emit_func_output(relax.Tuple(results))
    mod = with_ranges(cut_into_dataflow(bb.finalize()), dims.table.ranges.values())
    histogram = Counter(node.op_type for node in nodes_below(graph.node))
    return ImportedModel(
        mod=mod,
        signature=Signature(
            tuple(specs), tuple(_spec(n, r) for n, r in zip(names, results, strict=True))
        ),
        source="onnx",
        op_histogram=dict(histogram),
        removed=dict(importer.notes.removed),
        specialised=tuple(importer.notes.specialised),
        host_reasons=importer.notes.host_reasons(),
    )


def _identifier(name: str, number: int) -> str:
    cleaned = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
    return cleaned if cleaned and not cleaned[0].isdigit() else f"in{number}_{cleaned}"


def _result(importer: GraphImporter, name: str, value: Value) -> relax.Expr:
    if isinstance(value, Dynamic):
        return value.expr
    if isinstance(value, Known):
        return importer.constant(value.array)
    if isinstance(value, Symbolic):
        return importer.materialise(value, name)
    raise UnsupportedError(
        [UnsupportedOp("sequence or optional output", 1, "only tensors leave a model", (name,))],
        hint="let the model return the sequence's tensors one by one",
    )


def _spec(name: str, expr: relax.Expr) -> TensorSpec:
    dims = [dim if isinstance(dim, int) else str(dim) for dim in shape_of(expr)]
    return TensorSpec(name, tuple(dims), str(expr.ty.dtype))


def input_specs(
    declared: Sequence[Any], dummy_input: Any, dims_open: OpenDims
) -> list[TensorSpec]:
    """Names, shapes and dtypes of the inputs: the model's declaration, completed by the example.

    Axes in ``dims_open`` keep their names; the example's extents there are only examples.

    Raises:
        ImportModelError: the example lacks an input, or contradicts the declaration.
    """
    names = [value.name for value in declared]
    given = _by_name(names, dummy_input)
    specs = []
    for value in declared:
        if not value.type.HasField("tensor_type"):
            raise UnsupportedError(
                [UnsupportedOp("sequence or optional input", 1, "only tensors", (value.name,))],
                hint="pass tensors one by one",
            )
        tensor = value.type.tensor_type
        dtype = str(numpy_dtype(tensor.elem_type, f"input {value.name!r}"))
        fixed = [d.HasField("dim_value") and d.dim_value >= 0 for d in tensor.shape.dim]
        dims: list[int | str | None] = [
            d.dim_value if f else None for d, f in zip(tensor.shape.dim, fixed, strict=True)
        ]
        named = dims_open.axes.get(value.name, {})
        dims = [named.get(axis, dim) for axis, dim in enumerate(dims)]
        if value.name not in given:
            static = tuple(dim for dim in dims if dim is not None)
            if dummy_input is not None or len(static) < len(dims) or not tensor.HasField("shape"):
                raise ImportModelError(
                    f"no example for input {value.name!r}, whose shape is not static",
                    code="UIF-IMPORT-INPUT",
                    op=value.name,
                    hint=f"dummy_input must give {', '.join(names)}, or dynamic_shapes name the "
                    "open axes",
                )
            specs.append(TensorSpec(value.name, static, dtype, dims_open.ranges(static)))
            continue
        array = given[value.name]
        shape, actual = tuple(int(dim) for dim in array.shape), str(array.dtype)
        if tensor.HasField("shape") and not _fits(shape, dims):
            wanted = ["?" if dim is None else dim for dim in dims]
            raise ImportModelError(
                f"input {value.name!r}: the example has shape {list(shape)}, "
                f"the model declares {wanted}",
                code="UIF-IMPORT-INPUT",
                op=value.name,
            )
        if actual != dtype:
            raise ImportModelError(
                f"input {value.name!r}: the example is {actual}, the model declares {dtype}",
                code="UIF-IMPORT-INPUT",
                op=value.name,
                hint=f"convert the example to {dtype}",
            )
        kept = tuple(named.get(axis, extent) for axis, extent in enumerate(shape))
        specs.append(TensorSpec(value.name, kept, dtype, dims_open.ranges(kept)))
    return specs


def _fits(shape: tuple[int, ...], dims: Sequence[int | str | None]) -> bool:
    return len(shape) == len(dims) and all(
        not isinstance(dim, int) or dim == given for dim, given in zip(dims, shape, strict=True)
    )


def _by_name(names: Sequence[str], dummy_input: Any) -> dict[str, Any]:
    if dummy_input is None:
        return {}
    if isinstance(dummy_input, Mapping):
        unknown = [name for name in dummy_input if name not in names]
        if unknown:
            raise ImportModelError(
                f"the model has no input {unknown[0]!r}; it has {', '.join(map(repr, names))}",
                code="UIF-IMPORT-INPUT",
            )
        items = dict(dummy_input)
    else:
        single = hasattr(dummy_input, "shape") or not isinstance(dummy_input, Sequence)
        values = [dummy_input] if single else list(dummy_input)
        if len(values) != len(names):
            raise ImportModelError(
                f"{len(values)} example inputs for a model with {len(names)}: "
                f"{', '.join(map(repr, names))}",
                code="UIF-IMPORT-INPUT",
            )
        items = dict(zip(names, values, strict=True))
    return {name: _as_array(item) for name, item in items.items()}


def _as_array(item: Any) -> Any:
    """Anything array-like; only its shape and dtype are read."""
    if hasattr(item, "__dlpack__") and not isinstance(item, np.ndarray):
        return np.from_dlpack(item.detach() if hasattr(item, "detach") else item)
    return np.asarray(item)
