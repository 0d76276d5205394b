"""uif as an ONNX backend: the interface of ``onnx.backend.base``."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import uif_tvm.onnx_backend as backend
from uif_tvm.errors import InputError, TargetError, UsageError

FLOAT = TensorProto.FLOAT


def value(name, code=FLOAT, shape=None):
    return helper.make_tensor_value_info(name, code, shape)


def add(**initializers):
    """z = x + y over shapes of any kind; what is named becomes an initializer."""
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "y"], ["z.0"])],
        "g",
        [value("x", shape=["n"]), value("y", shape=["n"])],
        [value("z.0", shape=["n"])],
        [helper.make_tensor(name, FLOAT, [len(row)], row) for name, row in initializers.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def floats(*numbers):
    return np.array(numbers, np.float32)


def test_one_variant_per_kind_of_inputs():
    prepared = backend.prepare(add(), cache_dir=None)
    assert prepared.engines == ()
    for x, y in (((1, 2), (3, 4)), ((5, 6), (7, 8)), ((1, 2, 3), (4, 5, 6))):
        outputs = prepared.run([floats(*x), floats(*y)])
        np.testing.assert_array_equal(outputs[0], floats(*x) + floats(*y))
        np.testing.assert_array_equal(outputs["z.0"], outputs[0])
    assert len(prepared.engines) == 2


def test_inputs_by_name_in_order_or_alone():
    model = add()
    by_name = backend.run_model(model, {"y": floats(2), "x": floats(1)}, cache_dir=None)
    assert by_name[0].tolist() == [3]
    prepared = backend.prepare(add(y=[10.0]), cache_dir=None)
    # Some tools pass initializers that are listed among the inputs along; they are constants.
    for inputs in (floats(1), [floats(1)], [floats(1), floats(10)], {"x": [1.0]}):
        given = {"x": floats(1)} if isinstance(inputs, dict) else inputs
        assert prepared.run(given)[0].tolist() == [11]


def test_values_that_shapes_need_make_variants_of_their_own():
    graph = helper.make_graph(
        [helper.make_node("TopK", ["x", "k"], ["v", "i"])],
        "g",
        [value("x", shape=[3]), value("k", TensorProto.INT64, [1])],
        [value("v"), value("i", TensorProto.INT64)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    prepared = backend.prepare(model, cache_dir=None)
    x = floats(1, 3, 2)
    for k in (1, 2, 1, 3, 2):
        values, _ = prepared.run([x, np.array([k])])
        assert values.tolist() == [3, 2, 1][:k]


def test_old_variants_go(monkeypatch):
    monkeypatch.setattr(backend, "MAX_ENGINES", 2)
    prepared = backend.prepare(add(), cache_dir=None)
    for size in (1, 2, 3, 1):
        prepared.run([np.ones(size, np.float32)] * 2)
    sizes = [engine.inputs[0].shape for engine in prepared.engines]
    assert sizes == [(3,), (1,)]


@pytest.mark.parametrize(
    ("inputs", "code"),
    [
        ([floats(1)], "UIF-RUN-COUNT"),
        ({"x": floats(1)}, "UIF-RUN-NAMES"),
        ([floats(1, 2), floats(1, 2, 3)], None),
    ],
)
def test_inputs_that_do_not_fit(inputs, code):
    with pytest.raises(ValueError, match=r"\[UIF-") as caught:
        backend.run_model(add(), inputs, cache_dir=None)
    assert code is None or caught.value.code == code


class TestNodes:
    def test_a_node_by_itself(self):
        node = helper.make_node("Relu", ["x"], ["y"])
        (y,) = backend.run_node(node, [floats(-1, 2)], cache_dir=None)
        assert y.tolist() == [0, 2]

    def test_names_used_twice_and_left_out(self):
        node = helper.make_node("Clip", ["x", "", "x"], ["y"])
        (y,) = backend.run_node(node, {"x": floats(4).reshape(())}, cache_dir=None)
        assert y.shape == ()
        assert y == 4

    def test_the_operator_set_matters(self):
        """Before version 13 softmax took all axes from the given one on together."""
        node = helper.make_node("Softmax", ["x"], ["y"])
        x = np.zeros((1, 2, 2), np.float32)
        (old,) = backend.run_node(node, [x], opset_version=11, cache_dir=None)
        (new,) = backend.run_node(node, [x], opset_version=13, cache_dir=None)
        assert old.flat[0] == 0.25
        assert new.flat[0] == 0.5

    def test_sequences_and_texts(self):
        node = helper.make_node("SequenceLength", ["s"], ["n"])
        assert backend.run_node(node, [[floats(1), floats(2)]], cache_dir=None)[0] == 2
        node = helper.make_node("Identity", ["t"], ["y"])
        assert backend.run_node(node, [np.array(["a"])], cache_dir=None)[0].tolist() == ["a"]

    def test_what_tells_no_type(self):
        node = helper.make_node("SequenceLength", ["s"], ["n"])
        for bad in ([], None):
            with pytest.raises(InputError):
                backend.run_node(node, [bad])
        with pytest.raises(InputError, match="missing input 's'"):
            backend.run_node(node, [])


def test_devices():
    assert backend.supports_device("CPU")
    assert backend.supports_device("CPU:0")
    assert not backend.supports_device("TOASTER")
    assert backend.is_compatible(add())
    assert not backend.is_compatible(add(), "TOASTER")
    with pytest.raises(TargetError):
        backend.prepare(add(), "TOASTER")


def test_options():
    prepared = backend.prepare(add(), optimize_level=0, threads=1, cache_dir=None, rtol=1e-3)
    prepared.run([floats(1), floats(2)])
    assert prepared.engines[0].report["optimize_level"] == 0
    assert prepared.engines[0].threads == 1
    with pytest.raises(UsageError, match="no option 'level'"):
        backend.prepare(add(), level=0)
    with pytest.raises(UsageError, match="no option 'quietly'"):
        prepared.run([floats(1), floats(2)], quietly=True)
