"""Every kind of value through the border of an ONNX model, by way of the public flow."""

from __future__ import annotations

import threading

import ml_dtypes
import numpy as np
import pytest
import torch
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper

import uif_tvm as uif
from uif_tvm.errors import ImportModelError, InputError, UnsupportedError
from uif_tvm.signature import OptionalSpec, SequenceSpec

STRING, FLOAT = TensorProto.STRING, TensorProto.FLOAT


def model(nodes, inputs, outputs, initializers=(), opset=21):
    """A model; ``inputs`` and ``outputs`` map names to ONNX types, or to ``None`` for unknown."""

    def declared(types):
        return [
            ValueInfoProto(name=name) if kind is None else helper.make_value_info(name, kind)
            for name, kind in types.items()
        ]

    graph = helper.make_graph(nodes, "g", declared(inputs), declared(outputs), list(initializers))
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    made.ir_version = 10
    return made


def tensor(code, shape=None):
    return helper.make_tensor_type_proto(code, shape)


def sequence(code, shape=None):
    return helper.make_sequence_type_proto(tensor(code, shape))


@pytest.fixture
def engine(tmp_path):
    """Export and load; the engine."""

    def build(made, example, **options):
        uif.export(made, example, tmp_path / "m.uif", cache_dir=None, **options)
        return uif.load(tmp_path / "m.uif")

    return build


class TestTexts:
    """String tensors: constants, inputs, what only moves them, what the host computes."""

    @pytest.fixture
    def joined(self, engine):
        """Texts put together, compared with constants, chosen among."""
        nodes = [
            helper.make_node("Concat", ["a", "b"], ["all"], axis=0),
            helper.make_node("Equal", ["all", "k"], ["same"]),
            helper.make_node("Where", ["same", "all", "k"], ["chosen"]),
        ]
        constant = numpy_helper.from_array(np.array(["x", "käse", ""], object), "k")
        made = model(
            nodes,
            {"a": tensor(STRING, [2]), "b": tensor(STRING, [1])},
            {"all": None, "same": None, "chosen": None},
            [constant],
        )
        return engine(made, {"a": np.array(["p", "q"]), "b": np.array(["r"])})

    def test_moved_and_compared_natively(self, joined):
        for a, b in ((["x", "y"], [""]), (["käse", "käse"], ["z"])):
            everything, same, chosen = joined.run(np.array(a, object), np.array(b, object))
            assert list(everything) == [*a, *b]
            assert everything.dtype == object
            assert list(same) == [t == k for t, k in zip([*a, *b], ["x", "käse", ""], strict=True)]
            assert list(chosen) == ["x", "käse", ""]
        assert joined.get_stats()["host_fallbacks"] == 0
        assert str(joined.inputs[0]) == "a: string[2]"

    @pytest.mark.parametrize("kind", [list, np.array, lambda t: np.array(t, object)])
    def test_any_container_of_texts(self, joined, kind):
        everything, _, _ = joined.run(kind(["x", "y"]), kind(["z"]))
        assert list(everything) == ["x", "y", "z"]
        everything, _, _ = joined.run([b"x", "ü".encode()], ["z"])
        assert list(everything) == ["x", "ü", "z"]

    def test_what_is_no_text(self, joined):
        for bad in ([1, 2], [None, "x"], [b"\xff", "x"], np.zeros(2)):
            with pytest.raises(InputError, match="holds no text") as caught:
                joined.run(bad, ["z"])
            assert caught.value.code == "UIF-RUN-DTYPE"
        with pytest.raises(InputError, match="shape"):
            joined.run(["x"], ["z"])

    def test_computed_on_the_host_by_many_threads(self, engine):
        made = model(
            [
                helper.make_node("StringConcat", ["a", "k"], ["long"]),
                helper.make_node("Gather", ["long", "i"], ["y"], axis=0),
            ],
            {"a": tensor(STRING, [2]), "i": tensor(TensorProto.INT64, [3])},
            {"y": None},
            [numpy_helper.from_array(np.array(["!"], object), "k")],
        )
        index = np.array([1, 0, 1])
        with pytest.warns(uif.errors.HostFallbackWarning, match="StringConcat"):
            loaded = engine(made, {"a": np.array(["p", "q"]), "i": index})
        wrong = []

        def work(number):
            for turn in range(20):
                texts = [f"{number}-{turn}", f"{turn}"]
                (y,) = loaded.run(texts, index)
                if list(y) != [f"{texts[1]}!", f"{texts[0]}!", f"{texts[1]}!"]:
                    wrong.append((texts, y))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


class TestSequences:
    """Structure is settled by the example; the flat tensors inside flow as always."""

    @pytest.fixture
    def inserted(self, engine):
        made = model(
            [
                helper.make_node("SequenceAt", ["s", "one"], ["y"]),
                helper.make_node("SequenceInsert", ["s", "x"], ["t"]),
            ],
            {"s": sequence(FLOAT), "x": tensor(FLOAT, [1])},
            {"y": None, "t": sequence(FLOAT)},
            [numpy_helper.from_array(np.array(1), "one")],
        )
        items = [np.ones((2,), np.float32), np.zeros((1, 3), np.float32)]
        return engine(made, {"s": items, "x": np.ones(1, np.float32)})

    def test_in_and_out(self, inserted):
        items = [np.array([1, 2], np.float32), np.array([[3, 4, 5]], np.float32)]
        y, t = inserted.run(items, np.array([9], np.float32))
        np.testing.assert_array_equal(y, items[1])
        assert [part.tolist() for part in t] == [[1, 2], [[3, 4, 5]], [9]]
        assert isinstance(inserted.inputs[0], SequenceSpec)
        t[0][0] = -1  # results are the caller's own
        assert items[0][0] == 1

    def test_other_structures_are_refused(self, inserted):
        x = np.array([9], np.float32)
        one = np.ones((2,), np.float32)
        for bad in ([one], [one, one, one], one, None):
            with pytest.raises(InputError) as caught:
                inserted.run(bad, x)
            assert caught.value.code == "UIF-RUN-STRUCTURE"
        with pytest.raises(InputError, match="a list of 1, expected a list of 2") as short:
            inserted.run([one], x)
        assert "of this length" in short.value.hint
        with pytest.raises(InputError, match="is no list") as bare:
            inserted.run(one, x)
        assert "pass a list" in bare.value.hint
        with pytest.raises(InputError, match="item 1 has shape") as caught:
            inserted.run([one, one], x)
        assert caught.value.code == "UIF-RUN-SHAPE"

    @pytest.mark.filterwarnings("ignore::uif_tvm.errors.HostFallbackWarning")
    def test_of_run_time_length(self, engine):
        """How the pieces are cut arrives with the data."""
        made = model(
            [helper.make_node("SplitToSequence", ["x", "sizes"], ["s"], axis=0)],
            {"x": tensor(FLOAT, [6]), "sizes": tensor(TensorProto.INT64, [2])},
            {"s": sequence(FLOAT)},
        )
        x = np.arange(6, dtype=np.float32)
        loaded = engine(made, {"x": x, "sizes": np.array([2, 4])})
        (s,) = loaded.run(x, np.array([2, 4]))
        assert [part.tolist() for part in s] == [[0, 1], [2, 3, 4, 5]]

    def test_examples_must_fit(self, engine):
        made = model(
            [helper.make_node("SequenceLength", ["s"], ["n"])],
            {"s": sequence(FLOAT, [None, 2])},
            {"n": None},
        )
        assert engine(made, {"s": []}).run([])[0] == 0
        wide = np.zeros((5, 2), np.float32)
        for bad in (wide, [np.zeros((5, 3), np.float32)], [wide.astype(np.float64)], None):
            with pytest.raises(ImportModelError) as caught:
                engine(made, {"s": bad} if bad is not None else None)
            assert caught.value.code == "UIF-IMPORT-INPUT"


class TestOptionals:
    """Present or not is settled by the example."""

    @pytest.fixture
    def made(self):
        kind = helper.make_optional_type_proto(tensor(FLOAT, [2]))
        return model(
            [
                helper.make_node("OptionalHasElement", ["o"], ["has"]),
                helper.make_node("Identity", ["o"], ["same"]),
            ],
            {"o": kind},
            {"has": None, "same": kind},
        )

    def test_present(self, engine, made):
        x = np.array([1, 2], np.float32)
        loaded = engine(made, {"o": x})
        has, same = loaded.run({"o": x})
        assert has
        np.testing.assert_array_equal(same, x)
        assert isinstance(loaded.outputs[1], OptionalSpec)
        with pytest.raises(InputError, match="absent, expected o: optional") as caught:
            loaded.run({"o": None})
        assert caught.value.code == "UIF-RUN-STRUCTURE"

    def test_absent(self, engine, made):
        loaded = engine(made, {"o": None})
        has, same = loaded.run({"o": None})
        assert not has
        assert same is None
        assert "optional(nothing)" in repr(loaded)
        with pytest.raises(InputError, match="given, expected o: optional"):
            loaded.run({"o": np.zeros(2, np.float32)})


class TestSmallTypes:
    """Types that NumPy lacks cross the border as they are declared."""

    @pytest.mark.parametrize(
        ("code", "dtype"),
        [
            (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
            (TensorProto.FLOAT8E4M3FN, ml_dtypes.float8_e4m3fn),
            (TensorProto.FLOAT8E5M2FNUZ, ml_dtypes.float8_e5m2fnuz),
            (TensorProto.INT4, ml_dtypes.int4),
            (TensorProto.UINT4, ml_dtypes.uint4),
        ],
    )
    def test_moved(self, engine, code, dtype):
        values = np.array([[0, 1, 2], [3, 4, 5]])
        held = numpy_helper.from_array(values[:, :1].astype(dtype), "k")
        made = model(
            [
                helper.make_node("Transpose", ["x"], ["y"]),
                helper.make_node("Squeeze", ["k", "axis"], ["z"]),
            ],
            {"x": tensor(code, [2, 3])},
            {"y": None, "z": None},
            [held, numpy_helper.from_array(np.array([1]), "axis")],
        )
        x = values.astype(dtype)
        y, z = engine(made, {"x": x}).run(x)
        assert y.dtype == z.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(y.astype(np.int32), values.T)
        np.testing.assert_array_equal(z.astype(np.int32), values[:, 0])

    def test_torch_tensors(self, engine):
        made = model(
            [helper.make_node("Transpose", ["x"], ["y"])],
            {"x": tensor(TensorProto.FLOAT8E5M2, [2, 3])},
            {"y": None},
        )
        x = torch.arange(6).reshape(2, 3).to(torch.float8_e5m2)
        example = x.view(torch.uint8).numpy().view(ml_dtypes.float8_e5m2)
        (y,) = engine(made, {"x": example}).run(x)
        np.testing.assert_array_equal(y.astype(np.float32), example.T.astype(np.float32))


def test_maps_are_refused():
    kind = helper.make_map_type_proto(TensorProto.INT64, tensor(FLOAT, []))
    made = model([helper.make_node("Identity", ["m"], ["y"])], {"m": kind}, {"y": kind})
    with pytest.raises((UnsupportedError, ImportModelError), match=r"'m'|map input"):
        uif.export(made, {"m": np.zeros(1)}, "never.uif")
