"""Modules of Relax: passes and memory planning."""

from __future__ import annotations

import numpy as np
from caselib import Registry, f16, f32, i64, randn, seq

R = Registry("relax")
T = "apache/tvm#"
A = np.array


def _alias():
    from tvm import relax

    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((5, 8), "float32"))
    with bb.function("main", [x]):
        a = bb.emit(relax.op.add(x, relax.const(0.25, "float32")))
        left = bb.match_cast(a, relax.TensorType((5, 8), "float32"))
        right = bb.emit(relax.op.add(x, relax.const(0.125, "float32")))
        out = bb.emit(relax.op.add(left, right))
        bb.emit_func_output(out)
    v = randn(5, 8)
    return bb.finalize(), [v], [v + f32(0.25) + v + f32(0.125)]


R.relax(
    "r-match-cast-alias",
    T + "20190",
    "relax-memory",
    "memory planning reuses storage that a match_cast alias still needs: silent wrong value",
    "(x+0.25)+(x+0.125)",
    _alias,
)


def _nested_tuple():
    from tvm import relax

    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            a = bb.emit(relax.op.add(x, relax.const(1.0, "float32")))
            b = bb.emit(relax.op.multiply(x, relax.const(3.0, "float32")))
            t = bb.emit(relax.Tuple([relax.Tuple([a, b]), x]))
            i = bb.emit(relax.TupleGetItem(t, 0))
            g = bb.emit(relax.TupleGetItem(i, 1))
            o = bb.emit_output(relax.op.subtract(g, a))
        bb.emit_func_output(o)
    v = randn(4)
    return bb.finalize(), [v], [v * 3 - (v + 1)]


R.relax(
    "r-fuse-nested-tuple",
    T + "20194",
    "relax-fusion",
    "FuseTIR aborts on a nested tuple get-item that FuseOps made a function of",
    "3x-(x+1)",
    _nested_tuple,
)


def _expand_matmul():
    from tvm import relax

    bb = relax.BlockBuilder()

    def mk(n, s):
        return relax.Var(n, relax.TensorType(s, "float16"))

    x, a, b = mk("x", (2, 4)), mk("a", (4, 3)), mk("b", (4, 3))
    with bb.function("main", [x, a, b]):
        with bb.dataflow():
            w = bb.emit(relax.op.add(a, b))
            o = bb.emit_output(relax.op.matmul(x, w, out_dtype="float32"))
        bb.emit_func_output(o)
    mod = relax.transform.ExpandMatmulOfSum()(bb.finalize())
    vx, va, vb = (
        randn(2, 4, dtype=f16),
        randn(4, 3, seed=1, dtype=f16),
        randn(4, 3, seed=2, dtype=f16),
    )
    return mod, [vx, va, vb], [(vx.astype(f32) @ (va + vb).astype(f32))]


R.relax(
    "r-expand-matmul-out-dtype",
    T + "20198",
    "relax-rewrite",
    "ExpandMatmulOfSum drops out_dtype=float32",
    "float32 result",
    _expand_matmul,
    tol=(2e-2, 2e-2),
)


def _fold_residual():
    from tvm import relax

    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 6), "float32"))
    with bb.function("main", [x]):
        sh = bb.emit(relax.op.tensor_to_shape(relax.const(A([3, 4], i64))))
        r = bb.emit(relax.op.reshape(x, sh))
        bb.emit_func_output(bb.emit(relax.op.add(r, r)))
    v = seq(2, 6)
    return bb.finalize(), [v], [(v * 2).reshape(3, 4)]


R.relax(
    "r-fold-leaves-high-level-op",
    T + "20192",
    "relax-fold",
    "FoldConstant makes a reshape static after legalization and leaves the operator",
    "2x as (3,4)",
    _fold_residual,
)
