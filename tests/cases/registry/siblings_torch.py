"""PyTorch programs: siblings of known faults, judged by eager PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from caselib import Registry

# fmt: off
R = Registry("torch")
NAN, INF = float("nan"), float("inf")
tt, tn = torch.tensor, torch.randn


def case(id, title, function, *args, **kw):
    """A function of tensors; ``args`` are made anew for each build."""
    R.torch(id, "", "torch", title, "eager value", lambda: function,
            lambda: tuple(a() if callable(a) else a for a in args), **kw)


def ints(*values):
    return lambda: tt(values)


def normal(*shape):
    return lambda: tn(*shape)


# --- dtypes -----------------------------------------------------------------------------------
case("p-int-minus-float-scalar", "int tensor - 0.5", lambda x: x - 0.5, ints(1, 2, 3))
case("p-scalar-minus-int", "rsub: 1 - x of int", lambda x: 1 - x, ints(1, -2))
case("p-int-float-tensor", "int32 + float16 promotes", lambda a, b: a + b,
     lambda: tt([1, 2], dtype=torch.int32), lambda: tt([0.5, 1.5], dtype=torch.float16))
case("p-zero-dim-promotion", "a 0-d float64 does not widen float32", lambda a, b: a * b,
     normal(3), lambda: tt(2.0, dtype=torch.float64))
case("p-bool-sum", "the sum of booleans is int64", lambda x: x.sum(), lambda: tt([True, True]))
case("p-uint8-wrap", "uint8 wraps", lambda x: x + 200, lambda: tt([100, 3], dtype=torch.uint8))
case("p-int-mean-refuses-not", "mean of int with a dtype", lambda x: x.mean(dtype=torch.float32),
     ints(1, 2, 4))
case("p-round-decimals", "round to decimals, half to even", lambda x: torch.round(x, decimals=1),
     lambda: tt([0.25, 0.35, -1.05, 2.5]))
case("p-floor-divide-negative", "floor division of floats",
     lambda a, b: torch.div(a, b, rounding_mode="floor"), lambda: tt([-7.0, 7.0, -0.5]),
     lambda: tt([2.0, -2.0, 3.0]))
case("p-trunc-divide-int", "truncating division of ints",
     lambda a, b: torch.div(a, b, rounding_mode="trunc"), ints(-7, 7), ints(2, -2))
case("p-remainder-negative", "remainder takes the divisor's sign", torch.remainder,
     lambda: tt([-7.5, 7.5]), lambda: tt([2.0, -2.0]))
case("p-int-to-bool-mask", "where by an int comparison", lambda x: torch.where(x > 1, x, -x),
     ints(0, 1, 2))
case("p-cumsum-bool", "cumsum of booleans", lambda x: x.cumsum(0), lambda: tt([True, False, True]))

# --- NaN and infinities -----------------------------------------------------------------------
case("p-max-nan", "max over a row with NaN", lambda x: x.max(1),
     lambda: tt([[1.0, NAN, 3.0], [1.0, 5.0, 5.0]]))
case("p-clamp-nan", "clamp keeps NaN", lambda x: x.clamp(-1, 1), lambda: tt([NAN, 5.0, -INF]))
case("p-argmax-nan", "argmax finds NaN", lambda x: x.argmax(), lambda: tt([1.0, NAN, 3.0]))
case("p-softmax-all-masked", "softmax of a row of minus infinities is NaN",
     lambda x: x.softmax(-1), lambda: tt([[-INF, -INF], [0.0, -INF]]))
case("p-nan-to-num", "nan_to_num", lambda x: torch.nan_to_num(x, nan=7.0),
     lambda: tt([NAN, INF, -INF, 1.0]))
case("p-logaddexp", "logaddexp of infinities", torch.logaddexp, lambda: tt([-INF, 1000.0]),
     lambda: tt([-INF, 999.0]))
case("p-frac", "frac keeps the sign", torch.frac, lambda: tt([-1.75, 2.25]))
case("p-sign-nan", "sgn and sign", lambda x: (x.sign(), x.sgn()), lambda: tt([-2.0, 0.0, 3.0]))

# --- indices ----------------------------------------------------------------------------------
case("p-index-negative", "x[:, [-1, 0]]", lambda x, i: x[:, i], normal(2, 4), ints(-1, 0))
case("p-index-two-axes", "x[i, :, j] moves the result's axis",
     lambda x, i, j: x[i, :, j], normal(3, 4, 5), ints(0, -1), ints(2, 4))
case("p-gather-last", "gather along the last axis", lambda x, i: x.gather(-1, i), normal(2, 4),
     lambda: tt([[0, 3], [1, 1]]))
case("p-scatter-add-duplicates", "scatter_add of duplicates",
     lambda x, i, u: x.scatter_add(0, i, u), lambda: torch.zeros(3), ints(1, 1, 2),
     lambda: tt([1.0, 2.0, 4.0]))
case("p-index-add", "index_add with alpha", lambda x, i, u: x.index_add(0, i, u, alpha=2.0),
     lambda: torch.ones(3, 2), ints(0, 0), normal(2, 2))
case("p-masked-fill-broadcast", "masked_fill with a broadcast mask",
     lambda x, m: x.masked_fill(m, -1e9), normal(2, 3, 4), lambda: tt([True, False, True, False]))
case("p-roll-negative", "roll over two axes", lambda x: x.roll((-1, 2), (0, 1)), normal(3, 5))
case("p-slice-negative-step", "flip and strided slices", lambda x: x.flip(0)[1::2, -3:-1],
     normal(6, 5))
case("p-unfold", "overlapping windows", lambda x: x.unfold(-1, 3, 2), normal(2, 8))
case("p-topk-smallest", "topk, smallest", lambda x: torch.topk(x, 2, largest=False), normal(2, 6))
case("p-sort-stable", "stable sort of equals", lambda x: torch.sort(x, stable=True),
     ints(2, 1, 2, 1))
case("p-diagonal-offset", "diagonal above the main one", lambda x: x.diagonal(1, -2, -1),
     normal(2, 3, 4))
case("p-select-scatter", "in-place row assignment", lambda x: _assigned(x), normal(3, 4))
case("p-repeat-interleave", "repeat_interleave", lambda x: x.repeat_interleave(3, dim=1),
     normal(2, 2))


def _assigned(x):
    y = x.clone()
    y[-1] = 0
    y[:, 1:3] += 10
    return y


# --- layers -----------------------------------------------------------------------------------
case("p-conv-same-even", "padding='same' with an even kernel",
     lambda x, w: F.conv1d(x, w, padding="same"), normal(1, 2, 7), normal(3, 2, 4))
case("p-conv-transpose-groups", "transposed convolution with groups and output padding",
     lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1, groups=2),
     normal(1, 4, 3, 3), normal(4, 2, 3, 3))
case("p-avgpool-ceil", "average pool: ceil_mode, pads not counted",
     lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
     normal(1, 2, 6, 6))
case("p-adaptive-pool-uneven", "adaptive pooling to an uneven size",
     lambda x: F.adaptive_avg_pool2d(x, (3, 2)), normal(1, 2, 7, 5))
case("p-maxpool-indices", "max pool with indices and dilation",
     lambda x: F.max_pool2d(x, 2, 2, 0, 2, return_indices=True), normal(1, 1, 7, 7))
case("p-pad-modes", "reflect, replicate and circular pads",
     lambda x: [F.pad(x, (1, 2), mode=m) for m in ("reflect", "replicate", "circular")],
     normal(1, 2, 5))
case("p-pad-negative", "negative pads crop", lambda x: F.pad(x, (-1, 2, 1, -1), value=3.0),
     normal(3, 4))
case("p-interpolate-bicubic", "bicubic with aligned corners",
     lambda x: F.interpolate(x, (7, 3), mode="bicubic", align_corners=True), normal(1, 1, 4, 5))
case("p-interpolate-down-nearest-exact", "nearest-exact to a smaller size",
     lambda x: F.interpolate(x, (3, 2), mode="nearest-exact"), normal(1, 1, 5, 5))
case("p-group-norm", "group norm of few elements", lambda x: F.group_norm(x, 2), normal(2, 4, 3))
case("p-layer-norm-large", "layer norm about a large mean",
     lambda x: F.layer_norm(x, (4,)), lambda: tt([[1e4, 1e4 + 1, 1e4 + 3, 1e4 + 4]]),
     tol=(1e-3, 1e-3))
case("p-sdpa-mask-gqa", "attention with a boolean mask and grouped heads",
     lambda q, k, v: F.scaled_dot_product_attention(
         q, k, v, attn_mask=torch.ones(3, 5, dtype=torch.bool).tril(1), enable_gqa=True),
     normal(1, 4, 3, 8), normal(1, 2, 5, 8), normal(1, 2, 5, 8))
case("p-embedding-bag-mean", "embedding with padding_idx",
     lambda i, w: F.embedding(i, w, padding_idx=0), lambda: tt([[0, 2], [1, 0]]), normal(3, 4))
case("p-gelu-tanh", "gelu with tanh", lambda x: F.gelu(x, approximate="tanh"), normal(5))
case("p-glu", "gated linear unit on axis 0", lambda x: F.glu(x, 0), normal(4, 3))
case("p-cosine-similarity-zero", "cosine similarity with a zero vector",
     lambda a, b: F.cosine_similarity(a, b, dim=1), lambda: tt([[0.0, 0.0], [1.0, 2.0]]),
     normal(2, 2))
case("p-einsum", "einsum with an ellipsis", lambda a, b: torch.einsum("...ij,jk->...ik", a, b),
     normal(2, 3, 4), normal(4, 5))
case("p-baddbmm", "baddbmm with beta and alpha",
     lambda c, a, b: torch.baddbmm(c, a, b, beta=0.5, alpha=2.0), normal(2, 3, 5),
     normal(2, 3, 4), normal(2, 4, 5))
case("p-std-correction", "std without correction", lambda x: torch.std(x, dim=1, correction=0),
     normal(2, 5))
case("p-norm-inf", "norms of order inf and 0",
     lambda x: (torch.linalg.vector_norm(x, INF, dim=1), torch.linalg.vector_norm(x, 0, dim=1)),
     lambda: tt([[0.0, -3.0, 2.0], [0.0, 0.0, 0.0]]))
case("p-empty-cat", "cat with an empty tensor", lambda x: torch.cat([x[:0], x, x[:, :]], 0),
     normal(2, 3))
case("p-same-output-twice", "one tensor returned twice, and an input", lambda x: (x + 1, x, x + 1),
     normal(2))
R.torch("p-gru-bidirectional", "apache/tvm#18356", "torch-rnn", "bidirectional GRU", "eager value",
        lambda: torch.nn.GRU(4, 3, num_layers=2, bidirectional=True, batch_first=True),
        lambda: (tn(2, 5, 4),))
R.torch("p-dynamic-sequence", "", "torch-dynamic", "a sequence length that varies", "eager value",
        lambda: torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        lambda: (tn(2, 7, 8),), dynamic_shapes=lambda: ({1: torch.export.Dim("length", max=64)},),
        export_args=lambda: (tn(2, 5, 8),), tol=(1e-3, 1e-4))
R.torch("p-batchnorm-eval", "", "torch", "batch norm with running statistics", "eager value",
        lambda: torch.nn.BatchNorm2d(3), lambda: (tn(2, 3, 4, 4),))
