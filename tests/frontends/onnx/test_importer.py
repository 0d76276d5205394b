"""The graph walker: folding, scopes, functions, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

from tests.frontends.onnx.harness import check, execute, run_model
from tests.frontends.onnx.small_models import ALL, BOOL, F32, I64, build, convolution, function_call
from uif_tvm.errors import ImportModelError, RunError, UnsupportedError
from uif_tvm.frontends.onnx import import_onnx


@pytest.mark.parametrize("make", ALL[:3])
def test_small_models_give_the_reference(make: Any) -> None:
    check(*make())


@pytest.mark.parametrize("make", ALL[3:])
def test_control_flow_and_functions_give_the_runtimes_values(make: Any) -> None:
    model, inputs = make()
    session = onnxruntime.InferenceSession(model.SerializeToString())
    check(model, inputs, session.run(None, inputs))


def test_shape_arithmetic_vanishes() -> None:
    mod = import_onnx(*convolution()).mod
    text = mod["main"].script()
    assert "shape_of" not in text
    assert "concat" not in text


def test_variables_carry_the_source_names() -> None:
    text = import_onnx(*ALL[0]()).mod["main"].script()
    assert all(f"{name}:" in text for name in ("a", "r", "m", "y"))


def test_every_unsupported_operator_is_listed() -> None:
    from onnx import helper as h

    nodes = [
        h.make_node("Mystery", ["x"], ["a"], name="first", domain="other"),
        h.make_node("Mystery", ["a"], ["b"], name="second", domain="other"),
        h.make_node("Enigma", ["b"], ["c"], domain="com.microsoft"),
        h.make_node("Relu", ["c"], ["y"]),
    ]
    model = build(nodes, {"x": (F32, [2])}, ["y"], domains=["other", "com.microsoft"])
    with pytest.raises(UnsupportedError) as caught:
        import_onnx(model)
    rows = {op.op: op for op in caught.value.ops}
    assert set(rows) == {"other::Mystery", "com.microsoft::Enigma"}
    assert rows["other::Mystery"].count == 2
    assert rows["other::Mystery"].locations == ("first", "second")
    assert "uif.register_op" in rows["other::Mystery"].hint
    assert "fallback_mode" not in (caught.value.hint or "")  # the host knows neither


def test_a_misspelt_operator_gets_the_name_that_was_meant() -> None:
    from onnx import helper as h

    model = build([h.make_node("Softplu", ["x"], ["y"])], {"x": (F32, [2])}, ["y"])
    with pytest.raises(UnsupportedError) as caught:
        import_onnx(model)
    assert "did you mean 'Softplus'?" in caught.value.ops[0].hint


def test_what_no_output_needs_is_not_converted() -> None:
    from onnx import helper as h

    nodes = [h.make_node("Mystery", ["x"], ["z"], domain="o"), h.make_node("Neg", ["x"], ["y"])]
    check(build(nodes, {"x": (F32, [2])}, ["y"], domains=["o"]), {"x": np.ones(2, np.float32)},
          expected=[-np.ones(2, np.float32)])  # fmt: skip


def test_the_domain_is_part_of_the_operators_name() -> None:
    from onnx import helper as h

    node = h.make_node("Softmax", ["x"], ["y"], domain="com.microsoft")
    model = build([node], {"x": (F32, [1, 2, 4])}, ["y"], opset=23, domains=["com.microsoft"])
    with pytest.raises(UnsupportedError, match=r"com\.microsoft::Softmax"):
        import_onnx(model)


def test_values_compiled_in_are_checked_even_where_only_a_branch_asked_for_them() -> None:
    """Axes are asked for in the branch that this run does not take, then used after it."""
    from onnx import helper as h

    def side(op: str, name: str) -> Any:
        inputs = ["x", "axes"] if op == "ReduceSum" else ["first"]
        node = h.make_node(op, inputs, [name])
        return h.make_graph([node], name, [], [h.make_tensor_value_info(name, F32, None)])

    nodes = [
        h.make_node("Relu", ["x"], ["first"]),
        h.make_node("If", ["c"], ["z"], then_branch=side("ReduceSum", "t"),
                    else_branch=side("Identity", "e")),
        h.make_node("ReduceMin", ["x", "axes"], ["y"]),
    ]  # fmt: skip
    model = build(
        nodes, {"c": (BOOL, []), "x": (F32, [2, 3]), "axes": (I64, [1])}, ["z", "y"], opset=18
    )
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    given = {"c": np.array(False), "x": x, "axes": np.array([0])}
    imported = import_onnx(model, given)
    assert imported.specialised == ("axes",)
    np.testing.assert_array_equal(execute(imported, given)[1], x.min(0, keepdims=True))
    with pytest.raises(Exception, match="match_cast"):
        execute(imported, given | {"axes": np.array([1])})


def test_sparse_weights_are_made_dense() -> None:
    from onnx import helper as h

    values = h.make_tensor("w", F32, [2], [2.5, -1.0])
    nodes = [h.make_node("Mul", ["x", "w"], ["y"])]
    for indices in ([1, 5], [[0, 1], [1, 2]]):
        shape = list(np.shape(indices))
        index = h.make_tensor("i", I64, shape, np.ravel(indices))
        sparse = h.make_sparse_tensor(values, index, [2, 3])
        constant = h.make_node("Constant", [], ["w"], sparse_value=sparse)
        x = np.ones((2, 3), np.float32)
        wanted = np.array([[0, 2.5, 0], [0, 0, -1]], np.float32)
        model = build([constant, *nodes], {"x": (F32, [2, 3])}, ["y"])
        check(model, {"x": x}, expected=[wanted])
        model = build(nodes, {"x": (F32, [2, 3])}, ["y"], weights={"w": np.zeros(())})
        del model.graph.initializer[:]
        model.graph.sparse_initializer.append(sparse)
        check(model, {"x": x}, expected=[wanted])
    model.graph.sparse_initializer[0].dims[1] = 2
    with pytest.raises(ImportModelError, match="outside of"):
        import_onnx(model)


def test_data_dependent_lengths() -> None:
    from onnx import helper as h

    nodes = [
        h.make_node("NonZero", ["x"], ["n"]),
        h.make_node("Transpose", ["n"], ["t"]),
        h.make_node("GatherND", ["x", "t"], ["g"]),
        h.make_node("Shape", ["g"], ["s"]),
        h.make_node("ConstantOfShape", ["s"], ["zeros"]),
        h.make_node("Add", ["g", "zeros"], ["y"]),
    ]
    model = build(nodes, {"x": (F32, [2, 3])}, ["y", "s"])
    for values in ([[1, 0, 2], [0, 3, 0]], [[0, 0, 0], [0, 0, 5]]):
        check(model, {"x": np.array(values, np.float32)})


def test_values_needed_at_import_are_compiled_in_and_guarded() -> None:
    from onnx import helper as h

    node = h.make_node("ReduceSum", ["x", "axes"], ["y"])
    model = build([node], {"x": (F32, [2, 3]), "axes": (I64, [1])}, ["y"], opset=13)
    x, axes = np.ones((2, 3), np.float32), np.array([1], np.int64)
    check(model, {"x": x, "axes": axes})
    imported = import_onnx(model, {"x": x, "axes": axes})
    assert imported.specialised == ("axes",)
    from tests.frontends.onnx.harness import execute

    with pytest.raises((RuntimeError, RunError)):
        execute(imported, {"x": x, "axes": np.array([0], np.int64)})


def test_equal_dimensions_are_checked_at_run_time() -> None:
    from onnx import helper as h

    nodes = [
        h.make_node("NonZero", ["a"], ["p"]),
        h.make_node("NonZero", ["b"], ["q"]),
        h.make_node("Add", ["p", "q"], ["y"]),
    ]
    model = build(nodes, {"a": (F32, [4]), "b": (F32, [4])}, ["y"])
    a = np.array([1, 0, 1, 0], np.float32)
    check(model, {"a": a, "b": a})
    with pytest.raises((RuntimeError, RunError)):
        run_model(model, {"a": a, "b": np.ones(4, np.float32)})


def test_recursive_functions_are_refused() -> None:
    model, inputs = function_call()
    node = model.functions[0].node[0]
    node.op_type, node.domain = "Leaky", "local"
    with pytest.raises(ImportModelError, match="calls itself"):
        import_onnx(model, inputs)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda g: g.node[1].input.__setitem__(0, "nowhere"), "DANGLING"),
        (lambda g: g.node[0].input.__setitem__(0, "y"), "CYCLE"),
        (lambda g: g.node[1].output.__setitem__(0, "a"), "DUPLICATE"),
        (lambda g: g.initializer.append(g.initializer[0]), "DUPLICATE"),
        (lambda g: g.node[0].input.append("x"), "ARITY"),
    ],
)
def test_broken_rules_are_named(change: Any, rule: str) -> None:
    model, inputs = ALL[0]()
    change(model.graph)
    with pytest.raises(ImportModelError) as caught:
        import_onnx(model, inputs)
    assert caught.value.code == f"UIF-IMPORT-{rule}"
