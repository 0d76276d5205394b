"""What every OpSpec promises, checked on its own boundary cases."""

from __future__ import annotations

import numpy as np
import pytest

from tests.models import engine
from tests.ops.cases import as_array, assert_close, model_of, types_of
from uif_tvm import ops
from uif_tvm.errors import UsageError
from uif_tvm.ops.build import NumpyBuilder
from uif_tvm.ops.spec import Attribute, Operand, OpSpec, TensorType

NAMES = [spec.name for spec in ops.specs()]
STATIC = [spec.name for spec in ops.specs() if not spec.data_dependent]
DECOMPOSED = [spec.name for spec in ops.specs() if spec.decompose]


def results(value):
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize("name", NAMES)
def test_there_are_cases_and_the_reference_takes_them(name):
    spec = ops.find(name)
    assert spec.cases is not None
    cases = list(spec.cases())
    assert len({case.name for case in cases}) == len(cases) > 0
    for case in cases:
        have = results(spec.evaluate([as_array(value) for value in case.inputs], case.attrs))
        assert len(have) == spec.results or spec.variadic or spec.results == 0


@pytest.mark.parametrize("name", STATIC)
def test_inferred_types_are_those_of_the_reference(name):
    spec = ops.find(name)
    if spec.infer is None:
        pytest.skip("Relax infers the type")
    for case in spec.cases():
        have = results(spec.evaluate([as_array(value) for value in case.inputs], case.attrs))
        inferred = spec.result_types(types_of(case), case.attrs)
        assert list(inferred) == [TensorType(item.shape, str(item.dtype)) for item in have], case
        cost = spec.cost(types_of(case), inferred, spec.resolve(case.attrs))
        assert cost.flops >= 0
        assert cost.bytes >= sum(item.nbytes for item in have)


@pytest.mark.parametrize("name", STATIC)
@pytest.mark.parametrize("level", [0, 2])
def test_the_kernel_agrees_with_the_reference(tmp_path, name, level):
    spec = ops.find(name)
    cases = list(spec.cases())
    model, arrays = model_of(spec, cases)
    have = iter(engine(tmp_path, model, level=level).run(*arrays))
    for case in cases:
        want = results(spec.evaluate([as_array(value) for value in case.inputs], case.attrs))
        for item in want:
            assert_close(spec, next(have), item, f"{name}: {case.name}")


@pytest.mark.parametrize("name", DECOMPOSED)
def test_the_decomposition_means_the_same(tmp_path, name):
    spec = ops.find(name)
    cases = list(spec.cases())
    model, arrays = model_of(spec, cases, decompose=True)
    compiled = iter(engine(tmp_path, model, level=2).run(*arrays))
    for case in cases:
        inputs = [as_array(value) for value in case.inputs]
        wanted = results(spec.evaluate(inputs, case.attrs))
        with np.errstate(all="ignore"):
            value = spec.decompose(NumpyBuilder(), inputs, spec.resolve(case.attrs))
        for have, want in zip(results(value), wanted, strict=True):
            assert_close(spec, np.asarray(have), want, f"{name} in NumPy: {case.name}")
            assert_close(spec, next(compiled), want, f"{name} compiled: {case.name}")


def test_broken_specs_are_refused():
    with pytest.raises(UsageError, match="snake case"):
        OpSpec("Bad Name", "x", np.abs, relax="relax.abs")
    with pytest.raises(UsageError, match="share names"):
        OpSpec(
            "bad", "x", np.abs, operands=(Operand("a"),), attributes=(Attribute("a"),), relax="r"
        )
    with pytest.raises(UsageError, match="infer is needed"):
        OpSpec("bad", "x", np.abs)
    with pytest.raises(UsageError, match="two operators named 'abs'"):
        ops.register(OpSpec("abs", "x", np.abs, relax="relax.abs"))


def test_misuse_names_the_operator_and_the_values():
    spec = ops.find("permute_dims")
    with pytest.raises(UsageError, match=r"permute_dims.*no attribute 'axis'"):
        spec.resolve({"axis": 1})
    with pytest.raises(UsageError, match=r"float32\[2, 3\].*\[0, 0\] are no permutation"):
        spec.result_types([TensorType((2, 3), "float32")], {"axes": (0, 0)})
    with pytest.raises(UsageError, match="there is no standard operator 'nope'"):
        ops.find("nope")
