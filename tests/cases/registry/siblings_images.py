"""Image operators: siblings of known faults."""

from __future__ import annotations

import numpy as np
from caselib import Registry, f32, i64, randn, ref, seq

R = Registry("images")
A = np.array

# --- image ------------------------------------------------------------------------------------
for _mode, _how, _near in (
    ("linear", "align_corners", None),
    ("linear", "asymmetric", None),
    ("linear", "pytorch_half_pixel", None),
    ("cubic", "half_pixel", None),
    ("cubic", "align_corners", None),
    ("nearest", "asymmetric", "ceil"),
    ("nearest", "half_pixel", "round_prefer_ceil"),
    ("nearest", "align_corners", "floor"),
):
    _attrs = {"mode": _mode, "coordinate_transformation_mode": _how}
    if _near:
        _attrs["nearest_mode"] = _near
    R.single(
        f"n-resize-{_mode}-{_how}",
        f"Resize {_mode} with {_how} to odd sizes",
        "Resize",
        {"x": seq(1, 1, 4, 5)},
        inits={"z": A([1, 1, 7, 3], i64)},
        opset=13,
        names=["x", "", "", "z"],
        attrs=_attrs,
    )
R.single(
    "n-resize-cubic-exclude",
    "Resize cubic leaving outside samples out",
    "Resize",
    {"x": seq(1, 1, 4, 4)},
    inits={"s": A([1, 1, 0.8, 0.8], f32)},
    opset=13,
    names=["x", "", "s"],
    attrs={"mode": "cubic", "exclude_outside": 1, "cubic_coeff_a": -0.5},
)
R.single(
    "n-resize-crop",
    "Resize with a region of interest",
    "Resize",
    {"x": seq(1, 1, 4, 4)},
    inits={"r": A([0, 0, 0.4, 0.6, 1, 1, 0.6, 0.8], f32), "z": A([1, 1, 3, 3], i64)},
    opset=13,
    names=["x", "r", "", "z"],
    attrs={"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"},
)
R.single(
    "n-resize-antialias",
    "Resize down with antialiasing",
    "Resize",
    {"x": seq(1, 1, 6, 6)},
    inits={"s": A([1, 1, 0.5, 0.5], f32)},
    opset=18,
    names=["x", "", "s"],
    attrs={"mode": "linear", "antialias": 1},
)
R.single(
    "n-resize-opset10",
    "Resize at opset 10",
    "Resize",
    {"x": seq(1, 1, 2, 2)},
    inits={"s": A([1, 1, 2, 1.5], f32)},
    opset=10,
    attrs={"mode": "nearest"},
)
R.single(
    "n-resize-axes-not-larger",
    "Resize keeping the aspect ratio",
    "Resize",
    {"x": seq(1, 1, 4, 6)},
    inits={"z": A([3, 3], i64)},
    opset=18,
    names=["x", "", "", "z"],
    attrs={"mode": "linear", "axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"},
)
R.single(
    "n-upsample-opset9",
    "Upsample at opset 9",
    "Upsample",
    {"x": seq(1, 1, 2, 2)},
    inits={"s": A([1, 1, 2, 3], f32)},
    opset=9,
    attrs={"mode": "linear"},
)
_GRID = np.stack(np.meshgrid(np.linspace(-1.3, 1.3, 3), np.linspace(-1, 1, 2)), -1)[None]
for _mode, _pad, _corners in (
    ("bilinear", "zeros", 1),
    ("nearest", "reflection", 0),
    ("bicubic", "border", 0),
    ("bilinear", "reflection", 1),
):
    R.single(
        f"n-gridsample-{_mode}-{_pad}",
        f"GridSample {_mode} with {_pad}",
        "GridSample",
        {"x": randn(1, 2, 4, 5), "g": _GRID.astype(f32)},
        opset=16,
        attrs={"mode": _mode, "padding_mode": _pad, "align_corners": _corners},
    )
R.single(
    "n-roialign-max",
    "RoiAlign by maximum with adaptive sampling",
    "RoiAlign",
    {"x": randn(2, 1, 6, 6), "r": A([[0, 0, 4, 4], [1, 1, 5, 3]], f32)},
    inits={"b": A([1, 0], i64)},
    opset=16,
    attrs={"output_height": 2, "output_width": 2, "mode": "avg", "spatial_scale": 0.5},
)
R.single(
    "n-maxroipool",
    "MaxRoiPool with scaled regions",
    "MaxRoiPool",
    {"x": randn(1, 2, 6, 6), "r": A([[0, 0, 0, 6, 6], [0, 2, 2, 9, 7]], f32)},
    attrs={"pooled_shape": [2, 2], "spatial_scale": 0.5},
)
R.single(
    "n-nms-center-boxes",
    "NonMaxSuppression with centre boxes and a score threshold",
    "NonMaxSuppression",
    {
        "b": A([[[0.5, 0.5, 1, 1], [0.5, 0.6, 1, 1], [0.5, 10.5, 1, 1]]], f32),
        "s": A([[[0.9, 0.75, 0.6], [0.1, 0.8, 0.2]]], f32),
    },
    inits={"m": A([3], i64), "t": A([0.5], f32), "c": A([0.3], f32)},
    attrs={"center_point_box": 1},
)
R.single(
    "n-affinegrid",
    "AffineGrid with aligned corners",
    "AffineGrid",
    {"t": randn(1, 2, 3)},
    inits={"z": A([1, 1, 3, 4], i64)},
    opset=20,
    attrs={"align_corners": 1},
    expected=ref,
)
