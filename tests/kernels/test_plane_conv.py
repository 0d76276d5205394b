"""Convolutions over extents of run time agree with NumPy for every remainder of the tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from uif_tvm.kernels.plane_conv import pack_filters, plane_conv2d, plane_depthwise

RNG = np.random.default_rng(0)


def reference(
    x: Any, w: Any, strides: Any, padding: Any, dilation: Any, groups: int
) -> np.ndarray[Any, Any]:
    """NCHW convolution, one tap at a time."""
    top, left, bottom, right = padding
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    filters, depth, kh, kw = w.shape
    rows = (x.shape[2] - (kh - 1) * dilation[0] - 1) // strides[0] + 1
    columns = (x.shape[3] - (kw - 1) * dilation[1] - 1) // strides[1] + 1
    out = np.zeros((x.shape[0], filters, rows, columns), np.float64)
    per = filters // groups
    for i in range(kh):
        for j in range(kw):
            top, left = i * dilation[0], j * dilation[1]
            part = x[:, :, top : top + rows * strides[0] : strides[0]]
            part = part[:, :, :rows, left : left + columns * strides[1] : strides[1]][..., :columns]
            for g in range(groups):
                lead = part[:, g * depth : (g + 1) * depth]
                block = w[g * per : (g + 1) * per, :, i, j]
                out[:, g * per : (g + 1) * per] += np.einsum("nchw,oc->nohw", lead, block)
    return out


def built(kernel: Any, arrays: list[Any], spatial: int) -> Any:
    """``kernel`` compiled with batch and spatial extents open, by stock TVM."""
    import tvm
    from tvm import te, tirx

    open_dims = [tirx.Var(name, "int64") for name in ("n", "h", "w")][-1 - spatial :]
    shape = [open_dims[0], arrays[0].shape[1], *open_dims[1:]]
    x = te.placeholder(shape, "float32", name="x")
    w = te.placeholder(arrays[1].shape, "float32", name="w")
    func = te.create_prim_func([x, w, kernel(x, w)])
    return tvm.compile(func, target="llvm")


CASES = [
    # C, O, kernel, strides, padding, dilation, groups
    (5, 7, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    (4, 8, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    (4, 8, (3, 2), (2, 3), (0, 1, 2, 0), (1, 2), 2),
    (6, 12, (2, 3), (1, 2), (0, 0, 0, 0), (2, 1), 3),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_dense_and_grouped(case: Any) -> None:
    channels, filters, kernel, strides, padding, dilation, groups = case
    w = RNG.standard_normal((filters, channels // groups, *kernel)).astype(np.float32)
    packed = pack_filters(w, 4)
    run = built(
        lambda x, p: plane_conv2d(x, p, filters, strides, padding, dilation, groups, 3),
        [np.zeros((1, channels)), packed],
        2,
    )
    for n, rows, columns in [(1, 5, 5), (2, 6, 7), (1, 9, 8), (3, 5, 12)]:
        x = RNG.standard_normal((n, channels, rows, columns)).astype(np.float32)
        check(run, x, packed, reference(x, w, strides, padding, dilation, groups))


def check(run: Any, x: Any, w: Any, expected: Any) -> None:
    import tvm

    out = tvm.runtime.tensor(np.full(expected.shape, np.nan, np.float32))
    run(tvm.runtime.tensor(x), tvm.runtime.tensor(w), out)
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 2, 0, 1)])
@pytest.mark.parametrize("strides", [(1, 1), (2, 2)])
def test_depthwise(padding: Any, strides: Any) -> None:
    w = RNG.standard_normal((3, 1, 3, 2)).astype(np.float32)
    run = built(
        lambda x, p: plane_depthwise(x, p, strides, padding, (1, 1), 4), [np.zeros((1, 3)), w], 2
    )
    for n, rows, columns in [(1, 4, 4), (2, 5, 9), (1, 3, 17)]:
        x = RNG.standard_normal((n, 3, rows, columns)).astype(np.float32)
        check(run, x, w, reference(x, w, strides, padding, (1, 1), 3))


def test_one_row() -> None:
    w = RNG.standard_normal((6, 4, 1, 3)).astype(np.float32)
    packed = pack_filters(w, 4)
    run = built(
        lambda x, p: plane_conv2d(x, p, 6, (1, 2), (0, 1, 0, 1), (1, 1), 1, 3),
        [np.zeros((1, 4)), packed],
        1,
    )
    for n, columns in [(1, 3), (2, 8), (1, 20)]:
        x = RNG.standard_normal((n, 4, columns)).astype(np.float32)
        want = reference(x[:, :, None], w, (1, 2), (0, 1, 0, 1), (1, 1), 1)[:, :, 0]
        check(run, x, packed, want)
