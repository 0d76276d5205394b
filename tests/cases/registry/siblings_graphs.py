"""Names, scopes, optional inputs, control flow and functions: siblings of known faults."""

from __future__ import annotations

import numpy as np
from caselib import Registry, f32, i64, node, randn, ref, seq

R = Registry("graphs")
A = np.array


def graph(name, nodes, inputs, outputs, inits=None):
    """A subgraph; inputs and outputs are (name, element type, shape)."""
    from onnx import helper, numpy_helper

    return helper.make_graph(
        nodes, name,
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
        [numpy_helper.from_array(value, key) for key, value in (inits or {}).items()],
    )  # fmt: skip


# --- inputs and outputs -----------------------------------------------------------------------
R.graph(
    "g-output-is-input",
    "a graph output that is an input",
    [node("Neg", ["x"], ["y"])],
    {"x": A([1, -2], f32)},
    ("x", "y"),
    expected=[A([1, -2], f32), A([-1, 2], f32)],
)
R.graph(
    "g-output-is-identity",
    "outputs through Identity, twice",
    [node("Identity", ["x"], ["a"]), node("Identity", ["a"], ["b"])],
    {"x": randn(3)},
    ("a", "b"),
)
R.graph(
    "g-output-is-initializer",
    "a weight as an output",
    [node("Add", ["x", "w"], ["y"]), node("Identity", ["w"], ["v"])],
    {"x": randn(3)},
    ("y", "v"),
    {"w": A([1, 2, 3], f32)},
)
R.graph(
    "g-unused-input",
    "an input that nothing reads",
    [node("Neg", ["x"], ["y"])],
    {"x": randn(3), "unused": randn(2, 2)},
)
R.graph(
    "g-unused-initializer",
    "a weight that nothing reads",
    [node("Neg", ["x"], ["y"])],
    {"x": randn(3)},
    inits={"unused": randn(4)},
)
R.graph(
    "g-same-operand-twice",
    "both operands the same",
    [node("Mul", ["x", "x"], ["y"])],
    {"x": randn(3)},
)
R.graph(
    "g-duplicate-node-names",
    "nodes of one name",
    [node("Neg", ["x"], ["a"], name="n"), node("Abs", ["a"], ["y"], name="n")],
    {"x": randn(3)},
    expected=ref,
)
R.graph(
    "g-clashing-names",
    "names that clash with IR words and with each other after cleaning",
    [
        node("Add", ["main", "for"], ["a.b"]),
        node("Mul", ["a.b", "lv"], ["a_b"]),
        node("Sub", ["a_b", "R"], ["y"]),
    ],
    {"main": randn(3), "for": randn(3, seed=1), "lv": randn(3, seed=2), "R": randn(3, seed=3)},
)
R.graph(
    "g-unicode-names",
    "names beyond ASCII",
    [node("Add", ["größe", "入力"], ["結果/1:0"])],
    {"größe": randn(2), "入力": randn(2)},
    ("結果/1:0",),
)
R.graph(
    "g-numeric-names",
    "names that are numbers",
    [node("Add", ["0", "1"], ["2"])],
    {"0": randn(2), "1": randn(2, seed=1)},
    ("2",),
)
R.graph(
    "g-dead-branch",
    "a node whose result nobody reads",
    [node("Log", ["x"], ["dead"]), node("Neg", ["x"], ["y"])],
    {"x": A([-1, 2], f32)},
)
R.graph(
    "g-all-constant",
    "a model that depends on no input",
    [node("Add", ["a", "b"], ["y"])],
    {},
    inits={"a": A([1, 2], f32), "b": A(3, f32)},
)
R.graph(
    "g-scalar-model",
    "scalars in and out",
    [node("Add", ["x", "y0"], ["y"])],
    {"x": A(1.5, f32), "y0": A(2.5, f32)},
)
R.graph(
    "g-dropout-mask",
    "Dropout's mask at inference is all true",
    [node("Dropout", ["x"], ["y", "m"])],
    {"x": randn(2, 3)},
    ("y", "m"),
    opset=13,
)
R.graph(
    "g-dropout-ratio-input",
    "Dropout with ratio and training_mode inputs",
    [node("Dropout", ["x", "r", "t"], ["y"])],
    {"x": randn(3)},
    inits={"r": A(0.9, f32), "t": A(False)},
    opset=13,
)
R.graph(
    "g-optional-empty-names",
    "optional inputs left out by empty names",
    [node("Clip", ["x", "", ""], ["y"])],
    {"x": randn(3)},
)
R.graph(
    "g-ints-to-float-chain",
    "Shape, Cast, Sqrt, Div: the attention scale",
    [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "i"], ["n"]),
        node("Cast", ["n"], ["f"], to=1),
        node("Sqrt", ["f"], ["r"]),
        node("Div", ["x", "r"], ["y"]),
    ],
    {"x": randn(2, 9)},
    inits={"i": A(-1, i64)},
)
R.graph(
    "g-constant-kinds",
    "Constant by value_int, value_ints and value_floats",
    [
        node("Constant", [], ["a"], value_int=3),
        node("Constant", [], ["b"], value_ints=[0]),
        node("Constant", [], ["c"], value_floats=[0.5, 1.5]),
        node("Cast", ["a"], ["f"], to=1),
        node("Mul", ["c", "f"], ["d"]),
        node("Add", ["x", "d"], ["e"]),
        node("Unsqueeze", ["e", "b"], ["y"]),
    ],
    {"x": randn(2)},
)

# --- control flow -----------------------------------------------------------------------------
R.graph(
    "g-if-shadowed-names",
    "branches that name their values alike, and an outer one too",
    lambda: [
        node("Neg", ["x"], ["v"]),
        node(
            "If",
            ["c"],
            ["y"],
            then_branch=graph("t", [node("Abs", ["v"], ["w"])], [], [("w", 1, [3])]),
            else_branch=graph("e", [node("Exp", ["x"], ["w"])], [], [("w", 1, [3])]),
        ),
    ],
    {"x": randn(3), "c": A(True)},
    ("y", "v"),
)
R.graph(
    "g-if-nested",
    "an If in an If, reading the outermost scope",
    lambda: [
        node(
            "If",
            ["c"],
            ["y"],
            then_branch=graph(
                "t",
                [
                    node(
                        "If",
                        ["d"],
                        ["i"],
                        then_branch=graph(
                            "tt", [node("Add", ["x", "k"], ["o1"])], [], [("o1", 1, [3])]
                        ),
                        else_branch=graph(
                            "te", [node("Sub", ["x", "k"], ["o2"])], [], [("o2", 1, [3])]
                        ),
                    )
                ],
                [],
                [("i", 1, [3])],
            ),
            else_branch=graph("e", [node("Mul", ["x", "k"], ["o3"])], [], [("o3", 1, [3])]),
        ),
    ],
    {"x": randn(3), "c": A(True), "d": A(False)},
    inits={"k": A(10, f32)},
)
R.graph(
    "g-if-initializer-branch",
    "a branch that returns its own weight",
    lambda: [
        node(
            "If",
            ["c"],
            ["y"],
            then_branch=graph("t", [], [], [("w", 1, [2])], {"w": A([5, 6], f32)}),
            else_branch=graph("e", [node("Neg", ["x"], ["z"])], [], [("z", 1, [2])]),
        )
    ],
    {"c": A(True), "x": randn(2)},
)
R.graph(
    "g-loop-scan-outputs",
    "Loop with a carried value and a scan output",
    lambda: [
        node(
            "Loop",
            ["n", "", "x"],
            ["last", "all"],
            body=graph(
                "b",
                [
                    node("Add", ["s", "x"], ["t"]),
                    node("Identity", ["c"], ["k"]),
                    node("Mul", ["t", "two"], ["o"]),
                ],
                [("i", 7, []), ("c", 9, []), ("s", 1, [2])],
                [("k", 9, []), ("t", 1, [2]), ("o", 1, [2])],
            ),
        )
    ],
    {"x": A([1, 2], f32)},
    ("last", "all"),
    {"n": A(3, i64), "two": A(2, f32)},
)
R.graph(
    "g-loop-zero-trips",
    "Loop that never runs returns its start",
    lambda: [
        node(
            "Loop",
            ["n", "c", "x"],
            ["y"],
            body=graph(
                "b",
                [node("Neg", ["s"], ["t"]), node("Identity", ["c1"], ["k"])],
                [("i", 7, []), ("c1", 9, []), ("s", 1, [2])],
                [("k", 9, []), ("t", 1, [2])],
            ),
        )
    ],
    {"x": A([1, 2], f32)},
    inits={"n": A(0, i64), "c": A(True)},
)
R.graph(
    "g-loop-condition-stops",
    "Loop that stops by its condition",
    lambda: [
        node(
            "Loop",
            ["n", "c", "x"],
            ["y"],
            body=graph(
                "b",
                [
                    node("Mul", ["s", "two"], ["t"]),
                    node("ReduceSum", ["t"], ["r"], keepdims=0),
                    node("Less", ["r", "limit"], ["k"]),
                ],
                [("i", 7, []), ("c1", 9, []), ("s", 1, [2])],
                [("k", 9, []), ("t", 1, [2])],
            ),
        )
    ],
    {"x": A([1, 2], f32)},
    inits={"n": A(50, i64), "c": A(True), "two": A(2, f32), "limit": A(100, f32)},
)
R.graph(
    "g-scan-running-sum",
    "Scan: running sums",
    lambda: [
        node(
            "Scan",
            ["s", "x"],
            ["last", "all"],
            num_scan_inputs=1,
            body=graph(
                "b",
                [node("Add", ["a", "v"], ["t"]), node("Identity", ["t"], ["o"])],
                [("a", 1, [2]), ("v", 1, [2])],
                [("t", 1, [2]), ("o", 1, [2])],
            ),
        )
    ],
    {"s": np.zeros(2, f32), "x": seq(3, 2)},
    ("last", "all"),
)
R.graph(
    "g-sequence-concat",
    "a sequence built, indexed and joined",
    [
        node("SequenceConstruct", ["a", "b", "a"], ["s"]),
        node("SequenceAt", ["s", "i"], ["v"]),
        node("ConcatFromSequence", ["s"], ["y"], axis=0),
    ],
    {"a": seq(1, 2), "b": seq(2, 2)},
    ("v", "y"),
    {"i": A(-2, i64)},
)
R.graph(
    "g-split-to-sequence",
    "SplitToSequence without keepdims",
    [
        node("SplitToSequence", ["x"], ["s"], axis=1, keepdims=0),
        node("SequenceAt", ["s", "i"], ["y"]),
    ],
    {"x": seq(2, 3)},
    inits={"i": A(2, i64)},
)


def _functions():
    from onnx import helper

    opsets = [helper.make_opsetid("", 17)]
    scaled = helper.make_function(
        "local", "Scaled", ["x"], ["y"],
        [helper.make_node("Constant", [], ["k"]), helper.make_node("Mul", ["x", "k"], ["y"])],
        opsets, ["factor"])  # fmt: skip
    scaled.node[0].attribute.add(name="value_float", ref_attr_name="factor", type=1)
    twice = helper.make_function(
        "local", "Twice", ["x"], ["y"],
        [helper.make_node("Scaled", ["x"], ["k"], domain="local", factor=3.0),
         helper.make_node("Scaled", ["k"], ["y"], domain="local", factor=-1.0)],
        [*opsets, helper.make_opsetid("local", 1)])  # fmt: skip
    return [scaled, twice]


R.graph(
    "g-local-functions",
    "functions that call functions, with attribute references",
    lambda: [node("Twice", ["x"], ["k"], domain="local"), node("Add", ["k", "x"], ["y"])],
    {"x": randn(3)},
    functions=_functions,
)
