"""Compile an imported model with stock TVM and run it: what the importer alone is judged by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tests.frontends.lowering import plain
from uif_tvm.frontends.imported import ImportedModel
from uif_tvm.frontends.onnx import import_onnx


def runner(imported: ImportedModel) -> Callable[[Mapping[str, Any]], list[np.ndarray[Any, Any]]]:
    """The model through TVM's own pipeline, as a function of named inputs."""
    import tvm
    from tvm import relax

    executable = tvm.compile(plain(imported.mod), tvm.target.Target("llvm"))
    machine = relax.VirtualMachine(executable, tvm.cpu())

    def run(inputs: Mapping[str, Any]) -> list[np.ndarray[Any, Any]]:
        arguments = [
            tvm.runtime.tensor(np.asarray(inputs[spec.name], order="C"))
            for spec in imported.signature.inputs
        ]
        return [result.numpy() for result in machine["main"](*arguments)]

    return run


def execute(imported: ImportedModel, inputs: Mapping[str, Any]) -> list[np.ndarray[Any, Any]]:
    """Outputs of the model on named inputs, through TVM's own pipeline."""
    return runner(imported)(inputs)


def run_model(model: Any, inputs: Mapping[str, Any]) -> list[np.ndarray[Any, Any]]:
    """Import, compile, run; checks that outputs have the shapes and dtypes of the signature."""
    imported = import_onnx(model, dict(inputs))
    outputs = execute(imported, inputs)
    for spec, output in zip(imported.signature.outputs, outputs, strict=True):
        assert str(output.dtype) == spec.dtype, spec
        static = [
            d if isinstance(d, int) else n for d, n in zip(spec.shape, output.shape, strict=True)
        ]
        assert list(output.shape) == static, spec
    return outputs


def single(
    op_type: str,
    inputs: Sequence[Any],
    outputs: int = 1,
    *,
    opset: int = 21,
    domain: str = "",
    constants: Sequence[int] = (),
    **attributes: Any,
) -> tuple[Any, dict[str, Any]]:
    """A model of one node, and the inputs to run it on.

    Args:
        inputs: arrays, or ``None`` for an input left out.
        constants: positions of inputs that become initializers.
    """
    import onnx
    from onnx import helper, numpy_helper

    names = ["" if array is None else f"x{i}" for i, array in enumerate(inputs)]
    arrays = {name: np.asarray(array) for name, array in zip(names, inputs, strict=True) if name}
    node = helper.make_node(
        op_type, names, [f"y{i}" for i in range(outputs)], domain=domain, **attributes
    )
    held = {f"x{i}" for i in constants}
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), list(array.shape)
            )
            for name, array in arrays.items()
            if name not in held
        ],
        [onnx.ValueInfoProto(name=f"y{i}") for i in range(outputs)],
        [numpy_helper.from_array(arrays[name], name) for name in sorted(held)],
    )
    imports = [helper.make_opsetid("", opset)]
    if domain:
        imports.append(helper.make_opsetid(domain, 1))
    model = helper.make_model(graph, opset_imports=imports)
    model.ir_version = 10
    return model, {name: array for name, array in arrays.items() if name not in held}


def reference(model: Any, inputs: Mapping[str, Any]) -> list[np.ndarray[Any, Any]]:
    """Outputs by ONNX's reference evaluator."""
    from onnx.reference import ReferenceEvaluator

    return [np.asarray(y) for y in ReferenceEvaluator(model).run(None, dict(inputs))]


def check(
    model: Any,
    inputs: Mapping[str, Any],
    expected: Sequence[Any] | None = None,
    rtol: float = 1e-4,
    atol: float = 1e-5,
) -> None:
    """The model's outputs equal the expected ones (by default the reference's)."""
    wanted = reference(model, inputs) if expected is None else [np.asarray(e) for e in expected]
    got = run_model(model, inputs)
    assert len(got) == len(wanted)
    for ours, theirs in zip(got, wanted, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=atol)
