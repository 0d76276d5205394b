"""GridSample, RoiAlign, DeformConv, MaxUnpool, Resize: modes and edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

from tests.frontends.onnx.harness import check, single
from uif_tvm.errors import ImportModelError

F = np.float32
RNG = np.random.default_rng(3)


def data(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(F)


def check_runtime(model: Any, inputs: dict[str, Any], **kwargs: Any) -> None:
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    check(model, inputs, session.run(None, inputs), **kwargs)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_grid_sample_2d(mode: str, align: int, padding: str) -> None:
    grid = RNG.uniform(-2.2, 2.2, (2, 3, 4, 2)).astype(F)
    model, inputs = single(
        "GridSample", [data(2, 2, 4, 5), grid], opset=20,
        mode=mode, align_corners=align, padding_mode=padding,
    )  # fmt: skip
    check(model, inputs)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_grid_sample_3d(mode: str, padding: str) -> None:
    grid = RNG.uniform(-1.4, 1.4, (1, 2, 2, 2, 3)).astype(F)
    model, inputs = single(
        "GridSample", [data(1, 2, 3, 4, 2), grid], opset=20, mode=mode, padding_mode=padding
    )
    check(model, inputs)


def test_grid_sample_of_one_pixel_and_far_away() -> None:
    grid = np.array([[[[0, 0], [-1e6, 1e6], [5.5, -3.25]]]], F)
    for padding in ("zeros", "border", "reflection"):
        model, inputs = single(
            "GridSample", [data(1, 1, 1, 1), grid], opset=20, padding_mode=padding
        )
        check(model, inputs)


@pytest.mark.parametrize("ratio", [0, 1, 3])
@pytest.mark.parametrize("transform", ["half_pixel", "output_half_pixel"])
def test_roi_align(ratio: int, transform: str) -> None:
    rois = np.array([[1.2, 1.7, 16.3, 17.9], [0, 0, 4.4, 5.1], [-3, -3, 40, 2]], F)
    model, inputs = single(
        "RoiAlign", [data(2, 2, 10, 9), rois, np.array([0, 1, 1], np.int64)], opset=16,
        output_height=3, output_width=2, sampling_ratio=ratio, spatial_scale=0.5,
        coordinate_transformation_mode=transform,
    )  # fmt: skip
    check_runtime(model, inputs)


def test_roi_align_maximum_is_of_weighted_pixels() -> None:
    rois = np.array([[1.2, 1.7, 6.3, 7.9]], F)
    model, inputs = single(
        "RoiAlign", [np.abs(data(1, 1, 10, 10)), rois, np.array([0], np.int64)], opset=16,
        output_height=2, output_width=2, mode="max",
    )  # fmt: skip
    check(model, inputs)


@pytest.mark.parametrize(
    ("channels", "filters", "attributes"),
    [
        (2, 3, {}),
        (4, 2, {"group": 2, "offset_group": 2, "pads": [1, 0, 1, 2], "strides": [2, 1]}),
        (2, 4, {"group": 2, "dilations": [2, 1], "pads": [1, 1, 1, 1]}),
    ],
)
@pytest.mark.parametrize("masked", [False, True])
def test_deform_conv(channels: int, filters: int, attributes: dict[str, Any], masked: bool) -> None:
    x = data(2, channels, 6, 5)
    groups, offsets = attributes.get("group", 1), attributes.get("offset_group", 1)
    w = data(filters, channels // groups, 3, 2)
    pads, strides = attributes.get("pads", [0] * 4), attributes.get("strides", [1, 1])
    dilations = attributes.get("dilations", [1, 1])
    out = [
        (n + pads[i] + pads[i + 2] - (k - 1) * d - 1) // s + 1
        for i, (n, k, d, s) in enumerate(zip((6, 5), (3, 2), dilations, strides, strict=True))
    ]
    offset = 2 * data(2, offsets * 12, *out)
    mask = RNG.random((2, offsets * 6, *out)).astype(F) if masked else None
    model, inputs = single(
        "DeformConv", [x, w, offset, data(filters), mask], opset=19, **attributes
    )
    check(model, inputs, rtol=1e-3, atol=1e-4)


def test_deform_conv_offsets_must_fit() -> None:
    model, inputs = single(
        "DeformConv", [data(1, 1, 4, 4), data(1, 1, 2, 2), data(1, 6, 3, 3)], opset=19
    )
    with pytest.raises(ImportModelError, match="offset has shape"):
        check(model, inputs, expected=[])


@pytest.mark.parametrize("order", [0, 1])
def test_max_pool_indices_take_the_first_of_equals(order: int) -> None:
    x = RNG.integers(0, 3, (2, 2, 7, 6)).astype(F)
    model, inputs = single(
        "MaxPool", [x], 2, kernel_shape=[5, 3], strides=[2, 1], pads=[2, 1, 2, 1],
        storage_order=order,
    )  # fmt: skip
    check_runtime(model, inputs)


def test_unpooling_undoes_pooling() -> None:
    x = data(1, 2, 4, 6)
    model, inputs = single("MaxPool", [x], 2, kernel_shape=[2, 2], strides=[2, 2])
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    pooled, index = session.run(None, inputs)
    model, inputs = single(
        "MaxUnpool", [pooled, index], opset=11, kernel_shape=[2, 2], strides=[2, 2]
    )
    wanted = np.zeros(x.size, F)
    wanted[index.reshape(-1)] = pooled.reshape(-1)
    check(model, inputs, expected=[wanted.reshape(x.shape)])


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("exclude", [0, 1])
def test_resize_antialias(mode: str, exclude: int) -> None:
    scales = np.array([1, 1, 0.6, 0.45], F)
    model, inputs = single(
        "Resize", [data(1, 1, 8, 9), None, scales], constants=[2], mode=mode, antialias=1,
        exclude_outside=exclude,
    )  # fmt: skip
    check(model, inputs)
