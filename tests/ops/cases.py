"""One model from all cases of an operator: a single compilation checks every case."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tests.models import imported
from uif_tvm import standard_ops
from uif_tvm.frontends.imported import ImportedModel
from uif_tvm.ops.build import numpy_dtype
from uif_tvm.ops.spec import Case, OpSpec, TensorType


def types_of(case: Case) -> list[TensorType | None]:
    """Types of a case's operands."""
    return [
        None if array is None else TensorType(array.shape, str(array.dtype))
        for array in map(as_array, case.inputs)
    ]


def as_array(value: Any) -> np.ndarray[Any, Any] | None:
    """NumPy scalars as arrays of rank 0."""
    return None if value is None else np.asarray(value)


def model_of(
    spec: OpSpec, cases: list[Case], decompose: bool = False
) -> tuple[ImportedModel, list[np.ndarray[Any, Any]]]:
    """(model, its inputs): the operator, or its decomposition, applied to every case."""
    arrays = [as_array(value) for case in cases for value in case.inputs if value is not None]
    inputs = [(f"x{i}", a.shape, str(a.dtype)) for i, a in enumerate(arrays)]

    def build(*values: relax.Expr) -> list[relax.Expr]:
        bb, given, results = relax.BlockBuilder.current(), iter(values), []
        builder = standard_ops.RelaxBuilder(bb)
        for case in cases:
            operands = [None if value is None else next(given) for value in case.inputs]
            if decompose:
                value = spec.decompose(builder, operands, spec.resolve(case.attrs))
            else:
                value = builder.op(spec.name, *operands, **case.attrs)
            results += list(value) if isinstance(value, tuple) else [value]
        return results

    return imported(inputs, build), arrays


def assert_close(spec: OpSpec, have: Any, want: Any, where: str) -> None:
    """Equal shape and dtype, values within the operator's tolerance, equal special values."""
    assert (have.shape, have.dtype) == (want.shape, want.dtype), where
    limit = spec.tolerance_for(str(want.dtype))
    wide = [np.asarray(item) for item in (have, want)]
    if want.dtype in map(numpy_dtype, ("bfloat16", "float16")):
        wide = [item.astype(np.float64) for item in wide]
    np.testing.assert_allclose(*wide, rtol=limit.rtol, atol=limit.atol, err_msg=where)
