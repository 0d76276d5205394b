"""Indices from data: what NumPy reads and writes inside, clamped or dropped outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax
from uif_tvm.relay_passes.safe_indexing import PASS

from uif_tvm.compiler.context import CompileContext
from uif_tvm.compiler.report import ReportBuilder
from uif_tvm.errors import CompileError
from uif_tvm.target.registry import get_target

WILD = [0, 2, -1, -3, 3, -4, 1 << 40, -(1 << 40)]


def guard(make: Callable[..., Any], *arrays: np.ndarray, constants: tuple[int, ...] = ()) -> Any:
    """The guarded module of ``make(*tensors)``; arrays numbered in ``constants`` are constants."""
    builder = relax.BlockBuilder()
    variables = [
        relax.const(tvm.runtime.tensor(a))
        if i in constants
        else relax.Var(f"x{i}", relax.TensorType(a.shape, str(a.dtype)))
        for i, a in enumerate(arrays)
    ]
    inputs = [v for i, v in enumerate(variables) if i not in constants]
    with builder.function("main", inputs):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(make(*variables)))
        builder.emit_func_output(result)
    report = ReportBuilder()
    context = CompileContext(target=get_target("cpu"), level=0, report=report)
    mod = PASS.apply(builder.get(), context)
    relax.analysis.well_formed(mod)  # raises when it is not
    return mod, report


def run(make: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
    """Guard, compile and run."""
    mod, report = guard(make, *arrays)
    assert report.decisions
    executable = tvm.compile(
        relax.transform.LegalizeOps()(mod), target=tvm.target.Target({"kind": "llvm"})
    )
    machine = relax.VirtualMachine(executable, tvm.cpu())
    result: np.ndarray = machine["main"](*(tvm.runtime.tensor(a) for a in arrays)).numpy()
    return result


def clamp(index: np.ndarray, size: int) -> np.ndarray:
    """Wrapped once, then limited."""
    return np.clip(np.where(index < 0, index + size, index), 0, size - 1)


def data(*shape: int) -> np.ndarray:
    return np.arange(int(np.prod(shape)), dtype="float32").reshape(shape) + 1


@pytest.mark.parametrize("axis", [0, 1, -1, None])
@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_take_clamps(axis: int | None, dtype: str) -> None:
    x = data(3, 4) if axis is not None else data(12)
    index = np.array([WILD, WILD[::-1]]).clip(-(1 << 30), 1 << 30).astype(dtype)
    size = 12 if axis is None else x.shape[axis]
    have = run(lambda a, i: relax.op.take(a, i, axis), x, index)
    np.testing.assert_array_equal(have, np.take(x, clamp(index, size), axis))


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(-(1 << 62), 1 << 62), min_size=4, max_size=4))
def test_take_reads_inside_for_any_index(values: list[int]) -> None:
    x, index = data(5), np.array(values)
    np.testing.assert_array_equal(
        run(lambda a, i: relax.op.take(a, i, 0), x, index), x[clamp(index, 5)]
    )


def test_gather_elements_clamps() -> None:
    x = data(3, 8)
    index = np.array([WILD] * 3)
    have = run(lambda a, i: relax.op.gather_elements(a, i, 1), x, index)
    np.testing.assert_array_equal(have, np.take_along_axis(x, clamp(index, 8), 1))


def test_gather_nd_clamps_every_component() -> None:
    x = data(2, 3, 4)
    index = np.array([[0, 99], [-1, -99], [7, 1]])
    rows, columns = clamp(index[:, 0], 2), clamp(index[:, 1], 3)
    have = run(lambda a, i: relax.op.gather_nd(a, i), x, index)
    np.testing.assert_array_equal(have, x[rows, columns])


def test_gather_nd_with_batch() -> None:
    x, index = data(2, 3, 4), np.array([[[9], [0]], [[-1], [-9]]])
    have = run(lambda a, i: relax.op.gather_nd(a, i, batch_dims=1), x, index)
    want = np.stack([x[b][clamp(index[b, :, 0], 3)] for b in range(2)])
    np.testing.assert_array_equal(have, want)


def test_index_tensor_clamps_and_broadcasts() -> None:
    x = data(3, 4, 2)
    rows, columns = np.array([[0], [50]]), np.array([-1, -50, 2])
    have = run(lambda a, r, c: relax.op.index_tensor(a, [r, c]), x, rows, columns)
    np.testing.assert_array_equal(have, x[clamp(rows, 3), clamp(columns, 4)])


def reference_scatter(
    x: np.ndarray, index: np.ndarray, new: np.ndarray, axis: int, f: Callable[[Any, Any], Any]
) -> np.ndarray:
    out = x.copy()
    for at in np.ndindex(index.shape):
        place = list(at)
        i = int(index[at])
        i = i + x.shape[axis] if i < 0 else i
        if 0 <= i < x.shape[axis]:
            place[axis] = i
            out[tuple(place)] = f(out[tuple(place)], new[at])
    return out


@pytest.mark.parametrize(
    ("reduction", "f"),
    [
        ("update", lambda a, b: b),
        ("add", lambda a, b: a + b),
        ("mul", lambda a, b: a * b),
        ("min", min),
        ("max", max),
    ],
)
def test_scatter_elements_drops(reduction: str, f: Callable[[Any, Any], Any]) -> None:
    x, index = data(3, 4), np.array([[0, 5, -1, 1 << 40], [-9, 2, 2, 0], [1, 1, -3, 3]])
    new = data(3, 4) * 0.5
    have = run(
        lambda a, i, u: relax.op.scatter_elements(a, i, u, axis=0, reduction=reduction),
        x,
        index,
        new,
    )
    np.testing.assert_allclose(have, reference_scatter(x, index, new, 0, f), rtol=1e-6)


def test_scatter_nd_drops() -> None:
    x, index, new = data(3, 4), np.array([[0, 0], [3, 0], [-1, -1], [1, -5]]), data(4) * 10
    have = run(lambda a, i, u: relax.op.scatter_nd(a, i, u, "update"), x, index, new)
    want = x.copy()
    want[0, 0], want[2, 3] = new[0], new[2]
    np.testing.assert_array_equal(have, want)


def test_index_put_drops() -> None:
    x, rows, columns, new = data(3, 4), np.array([0, 3, -1]), np.array([1, 1, 9]), data(3) * 10
    have = run(
        lambda a, r, c, u: relax.op.index_put(a, relax.Tuple([r, c]), u, accumulate=True),
        x,
        rows,
        columns,
        new,
    )
    want = x.copy()
    want[0, 1] += new[0]
    np.testing.assert_array_equal(have, want)


@pytest.mark.parametrize(
    ("begin", "end", "stride"),
    [
        (0, 5, 1),
        (-2, 99, 1),
        (-99, 3, 2),
        (99, 120, 1),
        (4, -99, -1),
        (99, 0, -2),
        (-1, -3, -1),
        (1, 4, 1 << 40),
        (4, -99, -(1 << 40)),
        (0, 0, 1),
        (1, 4, 0),
    ],
)
def test_dynamic_strided_slice_follows_python(begin: int, end: int, stride: int) -> None:
    x = data(5, 2)
    bounds = [np.array([b, c]) for b, c in ((begin, 0), (end, 2), (stride, 1))]
    have = run(relax.op.dynamic_strided_slice, x, *bounds)
    np.testing.assert_array_equal(have, x[begin : end : stride or 1])


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_nll_loss_reads_inside(reduction: str) -> None:
    p, t, w = data(4, 3), np.array([0, -100, 2, 77]), data(3)
    have = run(
        lambda a, i, v: relax.op.nn.nll_loss(a, i, v, reduction=reduction, ignore_index=-100),
        p,
        t,
        w,
    )
    weight = np.array([w[0], 0, w[2], w[2]])
    lost = -weight * np.array([p[0, 0], 0, p[2, 2], p[3, 2]])
    want = {"none": lost, "sum": lost.sum(), "mean": lost.sum() / weight.sum()}[reduction]
    np.testing.assert_allclose(have, want, rtol=1e-5)


def test_roi_align_names_an_image_that_exists() -> None:
    x = np.stack([np.full((1, 4, 4), 1.0), np.full((1, 4, 4), 2.0)]).astype("float32")
    boxes = np.array([[-5, 0, 0, 3, 3], [1, 0, 0, 3, 3], [1e9, 0, 0, 3, 3]], "float32")
    have = run(lambda a, r: relax.op.vision.roi_align(a, r, (1, 1), 1.0, 2), x, boxes)
    np.testing.assert_allclose(have.ravel(), [1, 2, 2], rtol=1e-6)


def test_constant_index_outside_is_refused() -> None:
    with pytest.raises(CompileError, match=r"index 3 of an axis of size 3") as caught:
        guard(lambda a, i: relax.op.take(a, i, 0), data(3, 4), np.array([0, 3]), constants=(1,))
    assert caught.value.code == "UIF-COMPILE-INDEX"
    with pytest.raises(CompileError, match="-5"):
        guard(
            lambda a, i, u: relax.op.scatter_elements(a, i, u, 0),
            data(4),
            np.array([-5]),
            data(1),
            constants=(1,),
        )


def test_negative_constant_index_counts_from_the_end() -> None:
    mod, _ = guard(lambda a, i: relax.op.take(a, i, 0), data(3), np.array([-1]), constants=(1,))
    executable = tvm.compile(mod, target=tvm.target.Target({"kind": "llvm"}))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    assert machine["main"](tvm.runtime.tensor(data(3))).numpy().tolist() == [3.0]


def test_other_operators_stay() -> None:
    mod, report = guard(lambda a: relax.op.add(a, a), data(3))
    assert not report.decisions
    assert "relax.op.add" in mod.script() or "R.add" in mod.script()
