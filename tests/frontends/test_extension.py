"""Operators of model authors and vendors: the call, the entry point, and what goes wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

import uif_tvm
from uif_tvm import ops
from uif_tvm.errors import ImportModelError, UnsupportedError, UsageError
from uif_tvm.frontends.extension import CustomOp, OnnxOp, register_op, unregister_op
from uif_tvm.ops import infer
from uif_tvm.ops.spec import Array, Attribute, Operand, OpSpec

X = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)


def reference(x: Array, shift: Array | None, factor: float) -> Array:
    """factor * x^2 + shift."""
    return (factor * x * x + (0 if shift is None else shift)).astype(x.dtype)


def decompose(b: Any, operands: Any, attrs: Any) -> Any:
    """The same in standard operators."""
    x, shift = (*operands, None)[:2]
    y = b.op("multiply", b.op("multiply", x, x), b.const(attrs["factor"], b.dtype(x)))
    return y if shift is None else b.op("add", y, shift)


def kernel(x: Any, shift: Any, factor: float) -> Any:
    """The same as a tensor expression."""
    from tvm import te, tirx

    def at(*i: Any) -> Any:
        y = x(*i) * x(*i) * tirx.const(factor, str(x.dtype))
        return y if shift is None else y + shift(*i)

    return te.compute(x.shape, at, name="acme_square")


SPEC = OpSpec(
    "acme_square",
    "test",
    reference,
    infer=infer.same,
    operands=(Operand("x"), Operand("shift", optional=True)),
    attributes=(Attribute("factor", 2.0),),
)


@pytest.fixture
def register():
    """``register_op`` whose effects end with the test."""
    made: list[str] = []

    def call(*args: Any, **kwargs: Any) -> CustomOp:
        op = register_op(*args, **kwargs)
        made.append(op.name)
        return op

    yield call
    for name in set(made):
        unregister_op(name)


def node_model(op_type: str = "Square", inputs: int = 1, version: int = 1, **attrs: Any) -> Any:
    """One node of the domain ``acme``."""
    import onnx
    from onnx import TensorProto, helper

    names = [f"x{i}" for i in range(inputs)]
    graph = helper.make_graph(
        [helper.make_node(op_type, names, ["y"], domain="acme", **attrs)],
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, 4]) for name in names],
        [onnx.ValueInfoProto(name="y")],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("acme", version)]
    )


def deploy(model: Any, inputs: list[Any], folder: Path, **options: Any) -> tuple[Any, list[Any]]:
    """Export, load, run."""
    path = folder / "m.uif"
    example = inputs[0] if len(inputs) == 1 else tuple(inputs)
    uif_tvm.export(model, example, output_path=path, **options)
    engine = uif_tvm.load(path)
    return engine, engine.run(*inputs)


def where(engine: Any) -> dict[str, str]:
    return {row["op"]: row["where"] for row in engine.placement()}


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("inputs", [1, 2])
def test_a_kernel_is_native(register, tmp_path, level, inputs):
    register(SPEC, kernel=kernel, fusion="elementwise", onnx="acme::Square")
    values = [X, X + 1][:inputs]
    engine, (y,) = deploy(
        node_model(inputs=inputs, factor=3.0), values, tmp_path, optimize_level=level
    )
    assert np.allclose(y, reference(X, values[1] if inputs == 2 else None, 3.0))
    assert where(engine) == {"acme_square": "native"}


def test_without_kernel_it_is_composed(register, tmp_path):
    register(replace(SPEC, decompose=decompose), onnx="acme::Square")
    engine, (y,) = deploy(node_model(), [X], tmp_path, fallback_mode="compose")
    assert np.allclose(y, reference(X, None, 2.0))
    assert where(engine)["acme_square"] == "composed"


@pytest.mark.filterwarnings("ignore::uif_tvm.errors.HostFallbackWarning")
def test_without_decomposition_it_runs_on_the_host(register, tmp_path):
    register(SPEC, onnx="acme::Square")
    engine, (y,) = deploy(node_model(), [X], tmp_path)
    assert np.allclose(y, reference(X, None, 2.0))
    assert where(engine) == {"acme_square": "host"}
    assert engine.get_stats()["host_fallbacks"] == 1
    with pytest.raises(UnsupportedError, match="acme_square"):
        deploy(node_model(), [X], tmp_path, fallback_mode="error")


def test_convert_takes_a_source_operator_apart(register, tmp_path):
    def convert(b: Any, operands: Any, attrs: Any) -> Any:
        total = b.op("add", *operands)
        return total, b.op("multiply", total, b.const(attrs["k"], b.dtype(total)))

    register(onnx=OnnxOp("acme", "Both"), convert=convert)
    model = node_model("Both", inputs=2, k=4.0)
    model.graph.node[0].output.append("z")
    model.graph.output.add(name="z")
    _, (y, z) = deploy(model, [X, X + 1], tmp_path)
    assert np.allclose(y, 2 * X + 1)
    assert np.allclose(z, 4 * (2 * X + 1))


def test_constants_are_folded_by_the_reference(register, tmp_path):
    from onnx import numpy_helper

    register(SPEC, onnx="acme::Square")
    model = node_model(inputs=2)
    held = model.graph.input.pop()
    model.graph.initializer.append(numpy_helper.from_array(X, held.name))
    model.graph.initializer.append(numpy_helper.from_array(X, "x0"))
    del model.graph.input[:]
    path = tmp_path / "m.uif"
    uif_tvm.export(model, None, output_path=path, fallback_mode="error")
    (y,) = uif_tvm.load(path).run()
    assert np.allclose(y, reference(X, X, 2.0))


def test_versions_choose_the_converter(register, tmp_path):
    def times(k: float) -> Any:
        return lambda b, operands, attrs: b.op(
            "multiply", operands[0], b.const(k, b.dtype(operands[0]))
        )

    register(onnx=OnnxOp("acme", "Square", until=1), convert=times(10))
    unregister_op("acme::Square")
    register(onnx=(OnnxOp("acme", "Square", 1, 1), OnnxOp("acme", "Old")), convert=times(10))
    register(onnx=(OnnxOp("acme", "New"), OnnxOp("acme", "Square", 2)), convert=times(20))
    for version, factor in ((1, 10), (2, 20)):
        _, (y,) = deploy(node_model(version=version), [X], tmp_path)
        assert np.allclose(y, factor * X)


@pytest.mark.parametrize("kind", ["CompositeExplicitAutograd", "CompositeImplicitAutograd"])
def test_torch_operators(register, tmp_path, kind):
    """Also those that PyTorch could take apart by itself: they have a kernel."""
    import torch

    library = torch.library.Library("uif_test_lib", "FRAGMENT")
    library.define("square(Tensor x, Tensor? shift, *, float scale=2.0) -> Tensor")
    library.impl(
        "square",
        lambda x, shift, scale=2.0: scale * x * x + (0 if shift is None else shift),
        kind,
    )
    register(
        SPEC,
        kernel=kernel,
        torch="uif_test_lib::square",
        renamed={"scale": "factor"},
    )

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            once = torch.ops.uif_test_lib.square(x, None, scale=0.5)
            return torch.ops.uif_test_lib.square(once, x)

    engine, (y,) = deploy(Model(), [torch.from_numpy(X)], tmp_path)
    assert np.allclose(y, reference(reference(X, None, 0.5), X, 2.0), rtol=1e-5)
    assert where(engine)["acme_square"] == "native"


def test_targets_see_it_by_its_name(register, tmp_path, monkeypatch):
    from uif_tvm.target import registry
    from uif_tvm.target.spec import Refusal

    asked: list[tuple[str, dict[str, Any]]] = []
    cpu = registry.get_target("cpu")

    def capability(op: str, attrs: Any, dtypes: Any) -> Any:
        asked.append((op, dict(attrs)))
        return Refusal("acme-none", "no such unit") if op == "acme_square" else None

    monkeypatch.setattr(registry, "get_target", lambda name: replace(cpu, capability=capability))
    register(replace(SPEC, decompose=decompose), kernel=kernel, onnx="acme::Square")
    engine, (y,) = deploy(node_model(factor=1.5), [X], tmp_path)
    assert np.allclose(y, reference(X, None, 1.5))
    assert where(engine)["acme_square"] == "composed"
    assert ("acme_square", {"factor": 1.5}) in [
        (op, {key: attrs[key] for key in ("factor",) if key in attrs}) for op, attrs in asked
    ]


@pytest.mark.parametrize(
    ("attrs", "said"),
    [({"power": 2}, "no attribute 'power'"), ({"factor": "big"}, "attribute 'factor' is 'big'")],
)
def test_misuse_names_the_node(register, tmp_path, attrs, said):
    register(SPEC, kernel=kernel, onnx="acme::Square")
    with pytest.raises(uif_tvm.UifError, match=said) as caught:
        deploy(node_model(**attrs), [X], tmp_path)
    assert "Traceback" not in str(caught.value)


def test_a_failing_kernel_is_named(register, tmp_path):
    register(SPEC, kernel=lambda x, shift, factor: x.nothing, onnx="acme::Square")
    with pytest.raises(uif_tvm.UifError, match="the kernel of custom operator 'acme_square'"):
        deploy(node_model(), [X], tmp_path)


def test_a_failing_converter_is_named(register, tmp_path):
    register(onnx="acme::Square", convert=lambda b, operands, attrs: operands[7])
    with pytest.raises(ImportModelError, match="custom operator 'acme::Square': IndexError") as got:
        deploy(node_model(), [X], tmp_path)
    assert got.value.op == "y"


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"onnx": "acme::Square"},
        {"onnx": "Square", "convert": decompose},
        {"torch": "acme.square", "convert": decompose},
        {"convert": decompose},
        {"spec": "acme_square"},
        {"spec": SPEC, "fusion": "sideways"},
        {"spec": replace(SPEC, relax="relax.add")},
        {"kernel": kernel, "convert": decompose, "onnx": "acme::Square"},
    ],
)
def test_registrations_that_cannot_be_meant(arguments):
    with pytest.raises(UsageError) as caught:
        register_op(arguments.pop("spec", None), **arguments)
    assert caught.value.code == "UIF-USAGE-OP"


def test_names_are_taken_once(register):
    register(SPEC, onnx="acme::Square")
    with pytest.raises(UsageError, match="registered already"):
        register_op(SPEC)
    with pytest.raises(UsageError, match="registered already"):
        register_op(onnx=OnnxOp("acme", "Square", 3), convert=decompose)
    with pytest.raises(UsageError, match="registered already"):
        register_op(torch="aten::relu", convert=decompose)
    with pytest.raises(UsageError, match="two operators"):
        register_op(replace(SPEC, name="softmax"))
    assert ops.find("acme_square") is SPEC
    changed = replace(SPEC, version=2)
    register(changed, onnx="acme::Square", replace=True)
    assert ops.find("acme_square") is changed


def test_nothing_is_left_of_an_unregistered_operator(tmp_path):
    register_op(SPEC, kernel=kernel, onnx="acme::Square", torch="acme::square")
    unregister_op("acme_square")
    with pytest.raises(UsageError):
        unregister_op("acme_square")
    with pytest.raises(UnsupportedError, match="acme::Square") as caught:
        deploy(node_model(), [X], tmp_path)
    assert "register_op" in str(caught.value.hint)
    register_op(SPEC, kernel=kernel, onnx="acme::Square", torch="acme::square")
    unregister_op("acme_square")


# --- entry points -----------------------------------------------------------------------------

PLUGIN = """
    import numpy as np
    from uif_tvm.frontends.extension import CustomOp
    from uif_tvm.ops import infer
    from uif_tvm.ops.spec import OpSpec

    SPEC = OpSpec("plug_twice", "test", lambda x: x + x, infer=infer.same)

    def create():
        return [CustomOp(SPEC, onnx="plug::Twice"),
                CustomOp(onnx="plug::Half", convert=lambda b, operands, attrs: b.op(
                    "multiply", operands[0], b.const(0.5, b.dtype(operands[0]))))]

    def broken():
        raise RuntimeError("the plug-in's licence has run out")

    def half_done():
        return [CustomOp(onnx="plug::Third", convert=print), "what is this"]
"""

USE = """
    import json, sys
    import numpy as np, onnx
    from onnx import TensorProto, helper
    import uif
    out = {}
    x = np.arange(3, dtype=np.float32)
    for op in sys.argv[1:]:
        graph = helper.make_graph([helper.make_node(op, ["x"], ["y"], domain="plug")], "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])],
            [onnx.ValueInfoProto(name="y")])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        try:
            uif.export(model, x, output_path="m.uif")
            out[op] = uif.load("m.uif").run(x)[0].tolist()
        except uif.UifError as error:
            out[op] = str(error)
    print(json.dumps(out))
"""


@pytest.fixture
def installed(tmp_path):
    """An environment in which a distribution with three entry points is installed."""
    site = tmp_path / "site"
    info = site / "plug_ops-1.2.dist-info"
    info.mkdir(parents=True)
    (site / "plug_ops.py").write_text(dedent(PLUGIN))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plug-ops\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(
        "[uif.ops]\nplug = plug_ops:create\nexpired = plug_ops:broken\n"
        "half = plug_ops:half_done\nlost = no_such_module:create\n"
    )
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), os.getcwd()])}


def run(arguments: list[str], env: dict[str, str], folder: Path) -> Any:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *arguments],
        env=env, cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_entry_points(installed, tmp_path):
    """They are found when a model needs them; broken ones are told and disturb nothing."""
    (tmp_path / "use.py").write_text(dedent(USE))
    text = run(["use.py", "Twice", "Half", "Third"], installed, tmp_path)
    found = json.loads(text.splitlines()[-1])
    assert found["Twice"] == [0.0, 2.0, 4.0]
    assert found["Half"] == [0.0, 0.5, 1.0]
    for said in ("plug::Third", "licence has run out", "plug_ops:broken", "plug-ops 1.2",
                 "no_such_module", "not a CustomOp"):  # fmt: skip
        assert said in found["Third"], said


def test_entry_points_are_listed(installed, tmp_path):
    uif = ["-c", "import uif_command; uif_command.main()"]
    body = json.loads(run([*uif, "env", "--json"], installed, tmp_path))
    rows = {row["name"]: row for row in body["operator_plugins"]}
    assert rows["plug"]["ops"] == ["plug_twice", "plug::Half"]
    assert {name: row["state"] for name, row in rows.items()} == {
        "plug": "ok",
        "expired": "broken",
        "half": "broken",
        "lost": "broken",
    }
    body = json.loads(run([*uif, "ops", "list", "--json"], installed, tmp_path))
    assert "plug_twice" in [row["name"] for row in body["ops"]]
    assert len(body["plugins"]) == 4
    text = run([*uif, "ops", "list", "--family", "test"], installed, tmp_path)
    assert "broken: expired" in text
