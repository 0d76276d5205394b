"""The legalisation map: ours where it applies, TVM's default elsewhere, and fusable patterns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax, tirx
from tvm.ir import Op

from tests.models import constant, engine, imported, module
from uif_tvm import ops
from uif_tvm.kernels.legalize import LEGALIZE


def kernels(inputs: Any, body: Any) -> dict[str, tirx.PrimFunc]:
    mod = relax.transform.LegalizeOps(dict(LEGALIZE))(module(inputs, body))
    return {
        var.name_hint: func
        for var, func in mod.functions.items()
        if isinstance(func, tirx.PrimFunc)
    }


@pytest.mark.parametrize("name", [name for name in LEGALIZE if name.startswith("relax.")])
def test_every_entry_of_relax_has_a_default_to_fall_back_on(name: str) -> None:
    assert Op.get(name).get_attr("FLegalize") is not None


@pytest.mark.parametrize("name", [name for name in LEGALIZE if name.startswith("uif.")])
def test_every_other_entry_is_the_kernel_of_a_standard_operator(name: str) -> None:
    spec = ops.find_graph_op(name)
    assert spec is not None
    assert spec.relax is None


def test_row_kernels_declare_what_fuses_with_them() -> None:
    x = [("x", (4, 32), "float32")]
    (softmax,) = kernels(x, lambda v: [relax.op.nn.softmax(v)]).values()
    assert int(softmax.attrs["op_pattern"]) == 4
    (total,) = kernels(x, lambda v: [relax.op.sum(v, 1)]).values()
    assert int(total.attrs["op_pattern"]) == 3


@pytest.mark.parametrize("exponent", [2.0, 3.0, 0.5])
def test_powers(exponent: float, tmp_path: Path) -> None:
    x = np.linspace(0.5, 2, 12, dtype="float32").reshape(3, 4)
    model = imported(
        [("x", x.shape, "float32")],
        lambda v: [relax.op.power(v, constant(np.float32(exponent)))],
    )
    result = np.asarray(engine(tmp_path, model).run(x)[0])
    np.testing.assert_allclose(result, x**exponent, rtol=1e-6)


@pytest.mark.parametrize("level", [0, 2])
def test_fused_differences_of_floats_do_not_cancel_like_real_numbers(
    level: int, tmp_path: Path
) -> None:
    magic = np.float32(1.5 * 2**23)  # adding and taking it away rounds to whole numbers
    x = np.array([0.3, 1.7, -2.6, np.inf, np.nan], np.float32)
    model = imported(
        [("x", x.shape, "float32")],
        lambda v: [
            relax.op.subtract(relax.op.add(v, constant(magic)), constant(magic)),
            relax.op.abs(relax.op.subtract(v, v)),
        ],
    )
    rounded, nothing = (np.asarray(y) for y in engine(tmp_path, model, level=level).run(x))
    np.testing.assert_array_equal(rounded, [0, 2, -3, np.inf, np.nan])
    np.testing.assert_array_equal(nothing, [0, 0, 0, np.nan, np.nan])


@pytest.mark.parametrize("level", [0, 2])
def test_fused_comparisons_of_nan_stay_false(level: int, tmp_path: Path) -> None:
    x = np.array([-1, 0, 1, np.nan], np.float32)
    nothing = constant(np.float32(0))
    model = imported(
        [("x", x.shape, "float32")],
        lambda v: [
            relax.op.logical_not(relax.op.greater_equal(v, nothing)),
            relax.op.logical_or(relax.op.less(v, nothing), relax.op.greater_equal(v, nothing)),
        ],
    )
    below, number = (np.asarray(y) for y in engine(tmp_path, model, level=level).run(x))
    np.testing.assert_array_equal(below, [True, False, False, True])
    np.testing.assert_array_equal(number, [True, True, True, False])


def test_integers_take_the_default(tmp_path: Path) -> None:
    x = np.arange(12).reshape(3, 4)
    model = imported([("x", x.shape, "int64")], lambda v: [relax.op.sum(v, 1)])
    result = np.asarray(engine(tmp_path, model).run(x)[0])
    np.testing.assert_array_equal(result, x.sum(1))


def test_a_layer_norm_without_scale_ignores_it(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((3, 16)).astype("float32")
    junk = np.full(16, 7, "float32")
    model = imported(
        [("x", x.shape, "float32")],
        lambda v: [
            relax.op.nn.layer_norm(
                v, constant(junk), constant(junk), [-1], center=False, scale=False
            )
        ],
    )
    result = np.asarray(engine(tmp_path, model).run(x)[0])
    expected = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
