"""Kernels are put into an order with a lower peak; what has side effects stays."""

from __future__ import annotations

import numpy as np
import tvm_ffi
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T
from uif_tvm.relay_passes import legalize, reorder_ops

from tests.models import compiled, constant, context, engine, imported, weights
from uif_tvm.compiler.context import CompileContext


@I.ir_module(s_tir=True)
class Before:
    @T.prim_func(private=True, s_tir=True)
    def spread(x: T.Buffer((4,), "float32"), y: T.Buffer((4, 64), "float32")):
        for i, j in T.grid(4, 64):
            with T.sblock("y"):
                v, w = T.axis.remap("SS", [i, j])
                y[v, w] = x[v]

    @T.prim_func(private=True, s_tir=True)
    def first(x: T.Buffer((4, 64), "float32"), y: T.Buffer((4,), "float32")):
        for i in range(4):
            with T.sblock("y"):
                v = T.axis.spatial(4, i)
                y[v] = x[v, 0]

    @T.prim_func(private=True, s_tir=True)
    def add(
        a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")
    ):
        for i in range(4):
            with T.sblock("y"):
                v = T.axis.spatial(4, i)
                y[v] = a[v] + b[v]

    @R.function
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        cls = Before
        with R.dataflow():
            a = R.call_tir(cls.spread, (x,), out_ty=R.Tensor((4, 64), "float32"))
            b = R.call_tir(cls.spread, (x,), out_ty=R.Tensor((4, 64), "float32"))
            c = R.call_tir(cls.first, (a,), out_ty=R.Tensor((4,), "float32"))
            d = R.call_tir(cls.first, (b,), out_ty=R.Tensor((4,), "float32"))
            y = R.call_tir(cls.add, (c, d), out_ty=R.Tensor((4,), "float32"))
            R.output(y)
        return y


@I.ir_module(s_tir=True)
class Expected:
    @T.prim_func(private=True, s_tir=True)
    def spread(x: T.Buffer((4,), "float32"), y: T.Buffer((4, 64), "float32")):
        for i, j in T.grid(4, 64):
            with T.sblock("y"):
                v, w = T.axis.remap("SS", [i, j])
                y[v, w] = x[v]

    @T.prim_func(private=True, s_tir=True)
    def first(x: T.Buffer((4, 64), "float32"), y: T.Buffer((4,), "float32")):
        for i in range(4):
            with T.sblock("y"):
                v = T.axis.spatial(4, i)
                y[v] = x[v, 0]

    @T.prim_func(private=True, s_tir=True)
    def add(
        a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")
    ):
        for i in range(4):
            with T.sblock("y"):
                v = T.axis.spatial(4, i)
                y[v] = a[v] + b[v]

    @R.function
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        cls = Expected
        with R.dataflow():
            a = R.call_tir(cls.spread, (x,), out_ty=R.Tensor((4, 64), "float32"))
            c = R.call_tir(cls.first, (a,), out_ty=R.Tensor((4,), "float32"))
            b = R.call_tir(cls.spread, (x,), out_ty=R.Tensor((4, 64), "float32"))
            d = R.call_tir(cls.first, (b,), out_ty=R.Tensor((4,), "float32"))
            y = R.call_tir(cls.add, (c, d), out_ty=R.Tensor((4,), "float32"))
            R.output(y)
        return y


def applied(mod, ctx: CompileContext | None = None):
    """The module after the pass, and the decisions."""
    ctx = ctx or context(level=3)
    return reorder_ops.PASS.apply(mod, ctx), ctx.report.decisions


def names(mod) -> list[str]:
    return [str(binding.var.name) for binding in mod["main"].body.blocks[0].bindings]


def test_before_and_expected():
    mod, (decision,) = applied(Before)
    assert tvm_ffi.structural_equal(mod, Expected, map_free_vars=True), mod.script()
    assert decision.fired
    # a, b and c at once; after: c, b and d.
    assert decision.reason == (
        "peak of tensors alive from 2064 to 1056 bytes, the lowest of all orders"
    )


def test_what_is_in_the_best_order_stays():
    mod, (decision,) = applied(Expected)
    assert mod.same_as(Expected)
    assert (decision.fired, decision.reason) == (
        False,
        "no order has a lower peak than this one, 1056 bytes",
    )


def _around(call):
    """Two branches breadth first with a step between them that may not be passed."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    spread = builder.add_func(Before["spread"], "spread")
    first = builder.add_func(Before["first"], "first")
    wide, narrow = R.Tensor((4, 64), "float32"), R.Tensor((4,), "float32")
    with builder.function("main", [x]):
        with builder.dataflow():
            a = builder.emit(relax.call_tir(spread, [x], out_ty=wide), "a")
            b = builder.emit(relax.call_tir(spread, [x], out_ty=wide), "b")
            h = builder.emit(call(x), "h")
            c = builder.emit(relax.call_tir(first, [a], out_ty=narrow), "c")
            d = builder.emit(relax.call_tir(first, [b], out_ty=narrow), "d")
            out = builder.emit_output(relax.Tuple([c, d, h]))
        builder.emit_func_output(out)
    return builder.get()


def test_nothing_moves_across_a_call_of_the_host():
    host = _around(
        lambda x: relax.call_dps_packed("uif.host.op", [x], out_ty=R.Tensor((4,), "float32"))
    )
    mod, (decision,) = applied(host)
    assert names(mod) == names(host)
    assert not decision.fired
    assert decision.reason == "no order has a lower peak than this one, 2048 bytes"
    # The same with a view in its place: nothing in the way.
    view = _around(lambda x: relax.op.reshape(x, (2, 2)))
    moved, (decision,) = applied(view)
    assert decision.fired
    assert names(moved).index("c") < names(moved).index("b")


def test_a_view_keeps_its_tensor_alive():
    """c reads a through a view, so that a's bytes are needed until c has run."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    spread = builder.add_func(Before["spread"], "spread")
    first = builder.add_func(Before["first"], "first")
    wide, narrow = R.Tensor((4, 64), "float32"), R.Tensor((4,), "float32")
    with builder.function("main", [x]):
        with builder.dataflow():
            a = builder.emit(relax.call_tir(spread, [x], out_ty=wide), "a")
            flat = builder.emit(relax.op.reshape(a, (256,)), "flat")
            back = builder.emit(relax.op.reshape(flat, (4, 64)), "back")
            b = builder.emit(relax.call_tir(spread, [x], out_ty=wide), "b")
            d = builder.emit(relax.call_tir(first, [b], out_ty=narrow), "d")
            c = builder.emit(relax.call_tir(first, [back], out_ty=narrow), "c")
            out = builder.emit_output(relax.Tuple([c, d]))
        builder.emit_func_output(out)
    mod, (decision,) = applied(builder.get())
    # Results lie in the caller's memory.
    assert decision.reason == (
        "peak of tensors alive from 2048 to 1024 bytes, the lowest of all orders"
    )
    order = names(mod)
    assert order.index("a") < order.index("flat") < order.index("back") < order.index("c")
    assert order.index("c") < order.index("b") or order.index("d") < order.index("a")


def test_fields_of_a_tuple_are_tensors_of_their_own():
    """The wide field of a is done with after c, though its narrow one is read at the end."""

    @I.ir_module(s_tir=True)
    class Fields:
        @T.prim_func(private=True, s_tir=True)
        def both(
            x: T.Buffer((4,), "float32"),
            wide: T.Buffer((4, 64), "float32"),
            narrow: T.Buffer((4,), "float32"),
        ):
            for i, j in T.grid(4, 64):
                with T.sblock("wide"):
                    v, w = T.axis.remap("SS", [i, j])
                    wide[v, w] = x[v]
            for i in range(4):
                with T.sblock("narrow"):
                    v = T.axis.spatial(4, i)
                    narrow[v] = x[v]

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    both = builder.add_func(Fields["both"], "both")
    first = builder.add_func(Before["first"], "first")
    add = builder.add_func(Before["add"], "add")
    wide, narrow = R.Tensor((4, 64), "float32"), R.Tensor((4,), "float32")
    with builder.function("main", [x]):
        with builder.dataflow():
            a = builder.emit(relax.call_tir(both, [x], out_ty=[wide, narrow]), "a")
            b = builder.emit(relax.call_tir(both, [x], out_ty=[wide, narrow]), "b")
            c = builder.emit(relax.call_tir(first, [a[0]], out_ty=narrow), "c")
            d = builder.emit(relax.call_tir(first, [b[0]], out_ty=narrow), "d")
            e = builder.emit(relax.call_tir(add, [a[1], b[1]], out_ty=narrow), "e")
            f = builder.emit(relax.call_tir(add, [c, d], out_ty=narrow), "f")
            out = builder.emit_output(relax.call_tir(add, [e, f], out_ty=narrow), "y")
        builder.emit_func_output(out)
    mod, (decision,) = applied(builder.get())
    assert names(mod).index("c") < names(mod).index("b")
    # One wide field at a time: with its narrow one, the other branch's two, and d.
    assert "to 1088 bytes, the lowest of all orders" in decision.reason


def test_nothing_moves_across_a_function_that_is_no_kernel():
    host = _around(
        lambda x: relax.op.call_pure_packed("uif.host.op", x, ty_args=R.Tensor((4,), "float32"))
    )
    mod, (decision,) = applied(host)
    assert names(mod) == names(host)
    assert not decision.fired


def test_open_sizes_are_declined():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((tirx.Var("n", "int64"),), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            a = builder.emit(relax.op.exp(x), "a")
            out = builder.emit_output(relax.op.exp(a), "b")
        builder.emit_func_output(out)
    mod = legalize.PASS.apply(builder.get(), context())
    after, (decision,) = applied(mod)
    assert after.same_as(mod)
    assert (decision.fired, decision.reason) == (False, "the size of a is known in a run only")


def test_results_are_those_of_level_0(tmp_path):
    """Wide tensors made first and reduced later, which fusion leaves alone."""

    def body(x):
        builder = relax.BlockBuilder.current()
        factors = [constant(weights(8, 256)) for _ in range(3)]
        wide = [builder.emit(relax.op.matmul(x, factor)) for factor in factors]
        narrow = [relax.op.matmul(item, constant(weights(256, 4))) for item in wide]
        return [relax.op.add(narrow[0], relax.op.multiply(narrow[1], narrow[2]))]

    model = imported([("x", (16, 8), "float32")], body)
    payload = compiled(model, level=3)
    fired = [row for row in payload.report["decisions"] if row["pass_name"] == "reorder-ops"]
    assert [row["fired"] for row in fired] == [True], fired
    x = np.random.default_rng(0).standard_normal((16, 8)).astype("float32")
    results = []
    for level in (0, 3):
        folder = tmp_path / str(level)
        folder.mkdir()
        results.append(engine(folder, model, level=level).run({"x": x})[0])
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-5)


def test_it_runs_at_level_3_only():
    model = imported([("x", (4,), "float32")], lambda x: [relax.op.exp(x)])
    passes = [compiled(model, level=level).report["passes"] for level in (2, 3)]
    assert ["reorder-ops" in found for found in passes] == [False, True]
