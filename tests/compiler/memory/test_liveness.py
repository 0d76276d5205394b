"""Who lives when: names, views, branches, unknown functions, results."""

from __future__ import annotations

from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from uif_tvm.compiler.memory.liveness import analyse


@I.ir_module(s_tir=True)
class Chain:
    @R.function(pure=False)
    def main(x: R.Tensor((4, 8), "float32"), weights: R.Any):
        a = R.builtin.alloc_tensor(R.shape([4, 8]), R.dtype("float32"), 0)
        R.call_packed("k0", x, a, ty_args=R.Tuple)
        first: R.Tensor((4, 8), "float32") = a
        flat = R.reshape(first, R.shape([32]))
        b = R.builtin.alloc_tensor(R.shape([32]), R.dtype("float32"), 0)
        R.call_packed("k1", x, b, ty_args=R.Tuple)
        c = R.builtin.alloc_tensor(R.shape([32]), R.dtype("float32"), 0)
        R.call_packed("k2", flat, b, c, ty_args=R.Tuple)
        square = R.reshape(c, R.shape([4, 8]))
        return (square, x, c)


def by_var(mod):
    live = analyse(mod["main"])
    return live, {item.var.name: item for item in live.allocations}


def spans(found):
    return {name: (item.first, item.end) for name, item in found.items()}


def test_views_extend_the_life_of_what_they_show():
    live, found = by_var(Chain)
    assert live.steps == ["k0", "k1", "k2"]
    # a is read as flat in step 2; c is a result, alive after the last step.
    assert spans(found) == {"a": (0, 3), "b": (1, 3), "c": (2, 4)}
    assert found["a"].uses == [0, 2]
    assert found["a"].source == "first"
    assert [(name, item.var.name) for name, item in live.views] == [("flat", "a"), ("square", "c")]


def test_results_are_told_apart():
    live, found = by_var(Chain)
    square, same, again = live.outputs
    assert square.exact is again.exact is found["c"]
    assert same.exact is None
    assert not same.touches


@I.ir_module(s_tir=True)
class Branches:
    @R.function(pure=False)
    def main(x: R.Tensor((4,), "float32"), c: R.Tensor((), "bool"), weights: R.Any):
        before = R.builtin.alloc_tensor(R.shape([4]), R.dtype("float32"), 0)
        R.call_packed("k0", x, before, ty_args=R.Tuple)
        if c:
            t = R.builtin.alloc_tensor(R.shape([4]), R.dtype("float32"), 0)
            R.call_packed("k1", x, t, ty_args=R.Tuple)
            u = R.builtin.alloc_tensor(R.shape([4]), R.dtype("float32"), 0)
            R.call_packed("k2", t, u, ty_args=R.Tuple)
            y = R.reshape(u, R.shape([4]))
        else:
            v = R.builtin.alloc_tensor(R.shape([4]), R.dtype("float32"), 0)
            R.call_packed("k3", before, v, ty_args=R.Tuple)
            y = R.reshape(v, R.shape([4]))
        w = R.builtin.alloc_tensor(R.shape([4]), R.dtype("float32"), 0)
        R.call_packed("k4", y, w, ty_args=R.Tuple)
        return (w,)


def test_branches_share_only_what_cannot_meet():
    _, found = by_var(Branches)
    assert spans(found) == {
        "before": (0, 4),  # read in the later branch, so not to be overwritten in the other
        "t": (1, 3),
        "u": (2, 5),  # may be y
        "v": (3, 5),
        "w": (4, 6),
    }
    assert not found["t"].end > found["v"].first
    assert (found["before"].branches, found["t"].branches) == (0, 1)


@I.ir_module(s_tir=True)
class Unknown:
    @R.function(pure=False)
    def main(x: R.Tensor((4,), "float32"), weights: R.Any):
        a = R.builtin.alloc_tensor(R.shape([4]), R.dtype("float32"), 0)
        R.call_packed("k0", x, a, ty_args=R.Tuple)
        maybe = R.call_packed("f", a, ty_args=R.Tensor((4,), "float32"))
        sizes = R.call_packed("g", a, ty_args=R.Shape(ndim=1))
        b = R.builtin.alloc_tensor(R.shape([4]), R.dtype("float32"), 0)
        R.call_packed("k1", maybe, b, ty_args=R.Tuple)
        unused = R.builtin.alloc_tensor(R.shape([4]), R.dtype("float32"), 0)  # noqa: F841
        return (maybe, b, sizes)


def test_results_of_unknown_functions_may_be_their_arguments():
    live, found = by_var(Unknown)
    assert live.steps == ["k0", "f", "g", "k1"]
    assert found["a"].end == 5  # maybe is a result
    maybe, b, sizes = live.outputs
    assert maybe.exact is None
    assert maybe.touches == {found["a"]}
    assert b.exact is found["b"]
    assert not sizes.touches
    assert spans(found)["unused"] == (0, 1)


def test_weights_are_followed_as_well():
    @I.ir_module(s_tir=True)
    class Weighted:
        @R.function(pure=False)
        def main(x: R.Tensor((4,), "float32"), weights: R.Any):
            w = R.call_packed(
                "vm.builtin.tuple_getitem", weights, 3, ty_args=R.Tensor((4,), "float32")
            )
            a = R.builtin.alloc_tensor(R.shape([4]), R.dtype("float32"), 0)
            R.call_packed("k0", x, w, a, ty_args=R.Tuple)
            again = R.call_packed(
                "vm.builtin.tuple_getitem", weights, 3, ty_args=R.Tensor((4,), "float32")
            )
            R.call_packed("k1", a, again, ty_args=R.Tuple)
            return (again,)

    live = analyse(Weighted["main"])
    (weight,) = live.weights.values()
    assert (weight.weight, weight.uses) == (3, [0, 1, 2])
    assert live.outputs[0].exact is weight
    assert [item.var.name for item in live.allocations] == ["a"]


def test_functions_as_values_are_noticed():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([4], "float32"))
    with builder.function("main", [x]):
        inner = relax.Var("z", relax.TensorType([4], "float32"))
        made = relax.Function([inner], relax.SeqExpr([], inner), inner.ty, True)
        builder.emit(made)
        builder.emit_func_output(relax.Tuple([x]))
    assert analyse(builder.get()["main"]).functions
