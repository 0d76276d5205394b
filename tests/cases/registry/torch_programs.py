"""PyTorch programs."""

from __future__ import annotations

import torch
from caselib import Registry

R = Registry("torch")
T = "apache/tvm#"


def tt(*v, **kw):
    return torch.tensor(*v, **kw)


def tn(*s):
    return torch.randn(*s)


R.torch(
    "t-int-times-float-scalar",
    T + "20372",
    "torch-dtype",
    "int64 tensor * 0.5 imports as a tensor of zeros",
    "float32 result",
    lambda: lambda x: x * 0.5,
    lambda: (tt([1, 2, 3]),),
)
R.torch(
    "t-bool-plus-int",
    T + "20372",
    "torch-dtype",
    "bool tensor + 1 fails",
    "int64 result",
    lambda: lambda x: x + 1,
    lambda: (tt([True, False, True]),),
)
R.torch(
    "t-int-true-divide",
    T + "20373",
    "torch-dtype",
    "int64 / int64 stays integer",
    "float32 quotient",
    lambda: lambda x: x / (x + 1),
    lambda: (tt([3, 4, 5]),),
)
R.torch(
    "t-floor-divide-scalar",
    T + "20373",
    "torch-dtype",
    "x // 2 fails to import",
    "floor division, dtype kept",
    lambda: lambda x: x // 2,
    lambda: (tt([-7, -3, 4]),),
)
R.torch(
    "t-reciprocal-int",
    T + "20373",
    "torch-dtype",
    "reciprocal of an int tensor stays integer",
    "float32",
    lambda: torch.reciprocal,
    lambda: (tt([2, 4, 5]),),
)
R.torch(
    "t-mean-dtype",
    T + "20230",
    "torch-dtype",
    "mean(dtype=...) drops dtype",
    "result in the asked dtype",
    lambda: lambda x: x.mean(1, dtype=torch.float64),
    lambda: (tn(2, 3, 4),),
)
R.torch(
    "t-sqrt-of-int-size",
    T + "18443",
    "torch-dtype",
    "sqrt of an integer tensor fails",
    "float32",
    lambda: lambda x: x / torch.sqrt(tt(x.size(-1))),
    lambda: (tn(2, 4),),
)
R.torch(
    "t-int-pow-scalar",
    T + "19550",
    "torch-dtype",
    "integer pow reaches a float-only kernel",
    "integer power",
    lambda: lambda x: x.pow(3),
    lambda: (tt([-2, 1, 3]),),
)
R.torch(
    "t-fmod-tensor",
    T + "17880",
    "torch-missing",
    "fmod.Tensor unsupported",
    "remainder with the dividend's sign",
    lambda: torch.fmod,
    lambda: (tt([-7.5, 7.5, 3.0]), tt([2.0, -2.0, 5.0])),
)
R.torch(
    "t-squeeze-non-unit",
    T + "18442",
    "torch-shape",
    "squeeze on a dimension that is not 1 rejected",
    "no-op",
    lambda: lambda x: x.squeeze(1) + 1,
    lambda: (tn(2, 5),),
)
R.torch(
    "t-add-alpha",
    "tenstorrent/pytorch2.0_ttnn#1340",
    "torch-argument",
    "torch.add(a, b, alpha=k) drops alpha",
    "a + k*b",
    lambda: lambda a, b: torch.add(a, b, alpha=3),
    lambda: (tn(2, 3), tn(2, 3)),
)
R.torch(
    "t-avgpool-divisor-override",
    T + "14795",
    "torch-argument",
    "AvgPool2d ignores divisor_override",
    "window sum / divisor",
    lambda: torch.nn.AvgPool2d(2, divisor_override=3),
    lambda: (tn(1, 2, 4, 4),),
)
R.torch(
    "t-threshold",
    T + "14805",
    "torch-argument",
    "Threshold treated as relu",
    "value where x <= threshold",
    lambda: torch.nn.Threshold(0.5, 3.0),
    lambda: (tt([[-1.0, 0.4, 2.0]]),),
)
# --- torch: indexing


def _index_put_batch(x):
    m = torch.zeros(x.shape[0], 6, 6)
    r = torch.arange(5)
    m[:, r, r + 1] = x
    return m


def _index_assign(i, a, b):
    a = a.clone()
    a[:, i] = b
    return a


R.torch(
    "t-index-put-batch",
    T + "18355",
    "torch-index",
    "M[:, rows, cols] = x crashes the importer",
    "scatter per batch",
    lambda: _index_put_batch,
    lambda: (tn(2, 5),),
)
R.torch(
    "t-index-assign",
    T + "18438",
    "torch-index",
    "a[:, idx] = b crashes the importer",
    "columns replaced",
    lambda: _index_assign,
    lambda: (tt([0, 2, 4]), tn(3, 6), tn(3, 3)),
)
R.torch(
    "t-select-negative",
    T + "20297",
    "torch-index",
    "x[-1] reads memory outside the tensor (negative index passed straight to take)",
    "last row",
    lambda: lambda x: x[-1] * 2,
    lambda: (tn(3, 4),),
)
R.torch(
    "t-none-output",
    T + "18337",
    "torch-shape",
    "a module that returns (Tensor, None) crashes the importer",
    "one tensor",
    lambda: lambda x: (x + 1, None),
    lambda: (tn(2, 3),),
)
# --- torch: image, attention, recurrent, dynamic
R.torch(
    "t-interpolate-nearest",
    "pytorch/pytorch#170688",
    "torch-image",
    "interpolate mode=nearest picks half-pixel neighbours",
    "floor(dst / scale)",
    lambda: lambda x: torch.nn.functional.interpolate(x, scale_factor=1.5, mode="nearest"),
    lambda: (tn(1, 1, 5, 5),),
)
R.torch(
    "t-grid-sample",
    T + "10504",
    "torch-image",
    "grid_sample takes the grid in another layout",
    "N,C,H_out,W_out",
    lambda: (
        lambda x, g: torch.nn.functional.grid_sample(
            x, g, padding_mode="border", align_corners=False
        )
    ),
    lambda: (tn(1, 2, 4, 4), tn(1, 3, 3, 2)),
)
R.torch(
    "t-sdpa-causal",
    T + "17099",
    "torch-attention",
    "scaled_dot_product_attention mapped with a wrong layout",
    "eager value",
    lambda: (
        lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    ),
    lambda: (tn(1, 2, 4, 8), tn(1, 2, 4, 8), tn(1, 2, 4, 8)),
)


def _lstm_mod():

    class M(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.r = torch.nn.LSTM(4, 5, batch_first=True)

        def forward(self, x):
            return self.r(x)[0]

    return M()


R.torch(
    "t-lstm",
    T + "18340",
    "torch-rnn",
    "nn.LSTM unsupported",
    "eager value",
    _lstm_mod,
    lambda: (tn(2, 3, 4),),
)
R.torch(
    "t-mm",
    T + "18339",
    "torch-missing",
    "mm.default unsupported",
    "matrix product",
    lambda: torch.mm,
    lambda: (tn(2, 3), tn(3, 4)),
)
R.torch(
    "t-dynamic-batch-conv",
    T + "18663",
    "torch-dynamic",
    "dynamic batch with only a lower bound gets static memory",
    "works at a batch larger than the example",
    lambda: torch.nn.Conv2d(3, 4, 3, padding=1),
    lambda: (tn(5, 3, 8, 8),),
    dynamic_shapes=lambda: ({0: torch.export.Dim("batch")},),
    export_args=lambda: (tn(2, 3, 8, 8),),
)
R.torch(
    "t-empty-reshape",
    T + "19922",
    "torch-shape",
    "reshape that yields a 0-sized dimension aborts",
    "empty tensor",
    lambda: lambda x: x[:0].reshape(-1, 10) + 1,
    lambda: (tn(4, 10),),
)
R.torch(
    "t-conv-mean-all-dims",
    "microsoft/onnxruntime#20357",
    "torch-reduce",
    "mean over all but the batch after a conv gives wrong scores",
    "eager value",
    lambda: (
        lambda nn: nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1),
            nn.Conv2d(4, 1, 1),
            type("Mean", (nn.Module,), {"forward": lambda s, x: x.mean(dim=(1, 2, 3))})(),
        )
    )(torch.nn),
    lambda: (tn(2, 3, 6, 6),),
)
R.torch(
    "t-relu-nan",
    T + "19579",
    "torch-nan",
    "relu(NaN) returns 0",
    "NaN",
    lambda: torch.relu,
    lambda: (tt([float("nan"), -1.0, 2.0]),),
)
