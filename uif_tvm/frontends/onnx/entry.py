"""``import_onnx``: the frontend's one public function."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tvm import relax

from uif_tvm.errors import ImportModelError, UifError
from uif_tvm.frontends.dynamic import with_ranges
from uif_tvm.frontends.imported import ImportedModel
from uif_tvm.frontends.onnx.boundary import (
    MISSING,
    example_arrays,
    examples_by_name,
    input_specs,
    input_value,
    output,
)
from uif_tvm.frontends.onnx.dataflow import cut_into_dataflow
from uif_tvm.frontends.onnx.dims import open_dims
from uif_tvm.frontends.onnx.importer import GraphImporter
from uif_tvm.frontends.onnx.load import load_model
from uif_tvm.frontends.onnx.scope import Scope
from uif_tvm.frontends.onnx.validate import (
    check_format,
    check_functions,
    check_graph,
    nodes_below,
    opset_versions,
)
from uif_tvm.frontends.onnx.values import known_ranges
from uif_tvm.runtime.elements import stored_dtype
from uif_tvm.signature import Signature, tensors

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
        raise ImportModelError(
            "the model is nested too deeply",
            code="UIF-IMPORT-DEPTH",
            hint="flatten its branches and functions",
        ) from exc
    except UnicodeDecodeError as exc:
        raise ImportModelError(
            f"a name in the model is no UTF-8 text: {exc.object!r:.80}",
            code="UIF-IMPORT-NAME",
            hint="the model file is damaged: export it again",
        ) from exc


def _import(
    folder: Any, proto: Any, dummy_input: Any, host_fallback: bool, dynamic_shapes: Any
) -> ImportedModel:
    check_format(proto)
    graph = proto.graph
    versions = opset_versions(proto.opset_import)
    check_graph(graph)
    functions = check_functions(proto.functions)
    weights = {tensor.name for tensor in graph.initializer}
    declared = [value for value in graph.input if value.name not in weights]
    examples = examples_by_name(declared, dummy_input)
    plain = [value for value in declared if value.type.HasField("tensor_type")]
    dims = open_dims(
        plain, {v.name: examples[v.name] for v in plain if v.name in examples}, dynamic_shapes
    )
    specs = input_specs(declared, examples, dims, given=dummy_input is not None)

    bb = relax.BlockBuilder()
    variables = dims.variables()
    params = [
        relax.Var(
            _identifier(spec.name, number),
            relax.TensorType(
                [variables[dim] if isinstance(dim, str) else dim for dim in spec.shape],
                stored_dtype(spec.dtype),
            ),
        )
        for number, spec in enumerate(tensors(specs))
    ]
    importer = GraphImporter(bb, folder, functions, host_fallback)
    known = (
        pair for spec in specs for pair in example_arrays(spec, examples.get(spec.name, MISSING))
    )
    for (name, array), param in zip(known, params, strict=True):
        if array is not None and array.size <= MAX_SPECIALISED:
            importer.examples[param] = (name, array)
    importer.guesses.extents = dims.extents(variables, examples)
    bounds = {var: dims.table.ranges[name] for name, var in variables.items()}
    with known_ranges(bounds), bb.function("main", params):
        rest = iter(params)
        bindings = {spec.name: input_value(spec, rest) for spec in specs}
        try:
            outputs = importer.run_main(graph, Scope(versions), bindings)
            importer.notes.raise_refused()
            pairs = zip(graph.output, outputs, strict=True)
            results = [output(importer, v.name, value, v.type) for v, value in pairs]
        except Exception:
            bb.emit_func_output(relax.Tuple([]))  # leave the builder's scope in order
            raise
        bb.emit_func_output(relax.Tuple([expr for _, exprs in results for expr in exprs]))
    mod = with_ranges(cut_into_dataflow(bb.finalize()), dims.table.ranges.values())
    histogram = Counter(node.op_type for node in nodes_below(graph.node))
    return ImportedModel(
        mod=mod,
        signature=Signature(tuple(specs), tuple(spec for spec, _ in results)),
        source="onnx",
        op_histogram=dict(histogram),
        removed=dict(importer.notes.removed),
        composed=dict(importer.notes.composed),
        specialised=tuple(importer.notes.specialised),
        host_reasons=importer.notes.host_reasons(),
        strings=importer.strings.texts,
    )


def _identifier(name: str, number: int) -> str:
    cleaned = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
    return cleaned if cleaned and not cleaned[0].isdigit() else f"in{number}_{cleaned}"
