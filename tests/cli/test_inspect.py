"""``uif inspect``, for compiled files and for ONNX models."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from uif_tvm.cli.inspect import memory_text
from uif_tvm.cli.inspect_sections import (
    TOP,
    matching,
    peak_step,
    print_decisions,
    print_memory,
    print_placement,
)
from uif_tvm.cli.report_html import page
from uif_tvm.cli.report_svg import fusion, timeline, with_ends

from .conftest import WILD_NAME, invoke

SIDES = ("x", "y", "width", "height")


def row(name, first, end, size, offset, kind="activation"):
    return {
        "name": name,
        "source": "",
        "kind": kind,
        "first": first,
        "end": end,
        "size": size,
        "offset": offset,
    }


def test_memory_that_depends_on_open_dimensions_is_unknown():
    assert memory_text({"weights": 2048, "activations": 1024}) == (
        "weights 2 KiB, activations 1 KiB"
    )
    assert "activations unknown" in memory_text({"weights": 2048})


def test_onnx(linear, open_linear):
    body = json.loads(invoke("inspect", linear, "--json").stdout)
    assert body["op_histogram"] == {"MatMul": 1, "Add": 1, "Relu": 1, "Neg": 1}
    assert body["weight_bytes"] == 4 * (12 + 3)
    assert body["opsets"] == {"ai.onnx": 17}
    assert body["signature"]["inputs"] == [{"name": "x", "shape": [2, 4], "dtype": "float32"}]
    text = invoke("inspect", open_linear)
    assert text.exit_code == 0
    assert "x: float32[batch, 4]" in text.stdout
    assert "MatMul" in text.stdout


def test_uif(compiled):
    result = invoke("inspect", compiled, "--json")
    assert result.exit_code == 0, result.output
    body = json.loads(result.stdout)
    assert [row["id"] for row in body["targets"]] == ["cpu"]
    assert body["targets"][0]["runs_here"] is True
    assert body["reports"]["cpu"]["kernels"]
    assert [spec["name"] for spec in body["signature"]["outputs"]] == ["y", WILD_NAME]
    text = invoke("inspect", compiled, "--all")
    assert text.exit_code == 0, text.output
    for word in ("inputs", "kernels", "memory", "runs here", "decisions", "x: float32[2, 4]"):
        assert word in text.stdout


def test_refusals(compiled, tmp_path):
    (tmp_path / "junk.onnx").write_bytes(b"\x00junk")
    (tmp_path / "junk.uif").write_bytes(b"\x00junk")
    (tmp_path / "m.pt2").touch()
    assert invoke("inspect", tmp_path / "junk.onnx").exit_code == 2
    assert invoke("inspect", tmp_path / "junk.uif").exit_code == 1
    assert invoke("inspect", tmp_path / "missing.onnx").exit_code == 2
    assert invoke("inspect", tmp_path / "missing.uif").exit_code == 4
    pt2 = invoke("inspect", tmp_path / "m.pt2")
    assert pt2.exit_code == 2
    assert "uif export" in pt2.stderr
    other = invoke("inspect", compiled, "--target", "other")
    assert other.exit_code == 2
    assert "cpu" in other.stderr


@pytest.mark.parametrize("position", [0, 10, 100, -1, -30])
def test_flipped_bits_are_noticed(compiled, tmp_path, position):
    data = bytearray(compiled.read_bytes())
    data[position] ^= 0x10
    (tmp_path / "m.uif").write_bytes(data)
    assert invoke("inspect", tmp_path / "m.uif").exit_code == 1


def test_weights_in_constants_and_branches_are_counted(tmp_path):
    """``Constant`` nodes and the weights of ``If`` bodies are weights too; bodies' ops are ops."""
    value = helper.make_tensor_value_info
    tensor = numpy_helper.from_array(np.zeros((3, 4), np.float32), "t")
    inner = numpy_helper.from_array(np.zeros(5, np.float32), "u")
    outs = [value("z", TensorProto.FLOAT, [5])]
    body = helper.make_graph([helper.make_node("Neg", ["u"], ["z"])], "body", [], outs, [inner])
    nodes = [
        helper.make_node("Constant", [], ["c"], value=tensor),
        helper.make_node("If", ["flag"], ["y"], then_branch=body, else_branch=body),
    ]
    flag, y = value("flag", TensorProto.BOOL, []), value("y", TensorProto.FLOAT, [5])
    graph = helper.make_graph(nodes, "g", [flag], [y])
    onnx.save(helper.make_model(graph, ir_version=8), tmp_path / "m.onnx")
    shown = json.loads(invoke("inspect", tmp_path / "m.onnx", "--json").stdout)
    assert shown["weight_bytes"] == 4 * (12 + 5 + 5)
    assert shown["op_histogram"] == {"Neg": 2, "Constant": 1, "If": 1}


PLAN = {
    "tiers": [
        {
            "tier": "dram",
            "arena_bytes": 4096,
            "bound_bytes": 3072,
            "method": "best-fit by size",
            "buffers": [
                row("lv1", 0, 2, 1024, 0),
                row("lv2", 1, 3, 2048, 1024),
                row("<w>", 1, 2, 1024, 3072, "workspace"),
            ],
        }
    ],
    "steps": ["conv", "add", "relu"],
    "aliases": [{"name": "lv3", "of": "lv1", "why": "a view"}],
}
REPORT = {
    "optimize_level": 2,
    "kernels": [],
    "decisions": [
        {"pass_name": "fuse", "subject": "conv1", "fired": True, "reason": "one kernel",
         "gain_us": 12345.6, "bytes_saved": 2048.0, "launches_saved": 1.0, "basis": "roofline"},
        {"pass_name": "fuse", "subject": "pool [x]", "fired": False, "reason": "two consumers",
         "gain_us": None},
    ],
    "placement": [
        {"op": "conv", "where": "native", "count": 2, "reason": "", "estimated_us": 30.0},
        {"op": "odd", "where": "host", "count": 1, "reason": "no kernel", "estimated_us": 10.0},
    ],
    "memory_plan": PLAN,
    "graph": {
        "before": [
            {"name": "x", "op": "input", "inputs": [], "type": "float32[2]"},
            {"name": "a & b", "op": "exp", "inputs": ["x"], "type": "float32[2]"},
            {"name": "dead", "op": "sin", "inputs": ["x"], "type": "float32[2]"},
            {"name": "c", "op": "add", "inputs": ["a & b", "x"], "type": "float32[2]"},
        ],
        "after": [
            {"name": "x", "op": "input", "inputs": [], "type": "float32[2]"},
            {"name": "c", "op": "fused", "inputs": ["x"], "type": "float32[2]",
             "sources": ["a & b", "c"]},
        ],
    },
    "notes": [],
}  # fmt: skip


class TestSections:
    def test_decisions(self, capsys):
        print_decisions(REPORT["decisions"], False, None)
        text = capsys.readouterr().out
        assert re.search(r"fuse +1 +1 +12,346 +2 KiB +1 *\n", text)
        assert text.index("one kernel") < text.index("two consumers")

    @pytest.mark.parametrize(
        ("pattern", "left"),
        [("conv1", 1), ("FUSE", 2), ("two *", 1), ("pool [[]x]", 1), ("nothing", 0), (None, 2)],
    )
    def test_decisions_that_match(self, pattern, left):
        assert len(matching(REPORT["decisions"], pattern)) == left

    def test_no_decision_matches(self, capsys):
        print_decisions([], False, "zzz")
        assert "no decision's pass, subject or reason fits 'zzz'" in capsys.readouterr().out

    def test_top_of_many_and_all(self, capsys):
        rows = [dict(REPORT["decisions"][1], subject=f"s{i}") for i in range(TOP + 3)]
        print_decisions(rows, False, None)
        assert "and 3 more; show them with --all" in capsys.readouterr().out
        print_decisions(rows, True, None)
        assert "more" not in capsys.readouterr().out

    def test_memory(self, capsys):
        print_memory(PLAN, {"weights": 10}, False)
        text = capsys.readouterr().out
        assert "4 KiB for 3 buffers" in text
        assert "arena / bound 1.333" in text
        assert "4 KiB alive at step 1 of 3, add" in text
        assert text.index("lv2") < text.index("<w>")
        assert "1 value in another's memory" in text

    def test_peak_is_the_first_step_with_the_most_bytes(self):
        assert peak_step(PLAN["tiers"][0]["buffers"]) == (1, 4096)
        assert peak_step([]) == (0, 0)

    def test_no_plan(self, capsys):
        print_memory({"note": "open axes"}, {}, False)
        text = capsys.readouterr().out
        assert "note: open axes" in text
        assert "no memory plan on record" in text

    def test_placement(self, capsys):
        print_placement(REPORT["placement"])
        text = capsys.readouterr().out
        assert "75.0%" in text
        assert text.index("conv") < text.index("odd")
        assert "no kernel" in text


class TestHtml:
    def test_page_is_whole_and_escaped(self):
        text = page("a <b>", {"cpu": REPORT})
        assert "a &lt;b&gt;" in text
        assert "<b>:" not in text
        pictures = re.findall(r"<svg.*?</svg>", text, re.S)
        assert len(pictures) == 2
        for picture in pictures:
            ElementTree.fromstring(picture)

    def test_timeline_places_boxes_by_step_and_offset(self):
        tree = ElementTree.fromstring(timeline(with_ends(PLAN["tiers"][0]), PLAN["steps"]))
        boxes = {
            box.find("{*}title").text.split()[0]: {k: float(box.get(k)) for k in SIDES}
            for box in tree.iterfind("{*}rect")
        }
        assert set(boxes) == {"lv1", "lv2", "<w>"}
        assert boxes["lv2"]["x"] == boxes["<w>"]["x"] > boxes["lv1"]["x"]
        # Offsets grow upwards: lv2 starts where lv1 ends, and is twice as high.
        assert boxes["lv2"]["y"] + boxes["lv2"]["height"] == pytest.approx(boxes["lv1"]["y"])
        assert boxes["lv2"]["height"] == pytest.approx(2 * boxes["lv1"]["height"], abs=0.02)

    def test_graph_shows_what_became_what(self):
        tree = ElementTree.fromstring(fusion(REPORT["graph"]["before"], REPORT["graph"]["after"]))
        nodes = tree.findall("{*}g")
        kinds = [node.get("class") for node in nodes]
        assert kinds.count("node kernel") == 2
        gone = [node.find("{*}title").text for node in nodes if "gone" in node.get("class")]
        assert [text.split("\n")[0] for text in gone] == ["sin"]

    def test_written_from_the_command_line(self, compiled, tmp_path):
        target = tmp_path / "r.html"
        result = invoke("inspect", compiled, "--html", target)
        assert result.exit_code == 0, result.output
        assert f"wrote {target}" in result.stderr
        assert target.read_text().startswith("<!doctype html>")

    def test_other_files_are_not_replaced(self, compiled, tmp_path):
        target = tmp_path / "model.bin"
        target.write_text("precious")
        result = invoke("inspect", compiled, "--html", target)
        assert result.exit_code == 2
        assert target.read_text() == "precious"


def test_sections_of_a_compiled_file(compiled):
    body = json.loads(invoke("inspect", compiled, "--placement", "--json").stdout)
    assert set(body["reports"]["cpu"]) == {"placement"}
    body = json.loads(invoke("inspect", compiled, "--match", "no such thing", "--json").stdout)
    assert body["reports"]["cpu"] == {"decisions": []}
    text = invoke("inspect", compiled, "--decisions", "--memory", "--placement").stdout
    assert "placement, most estimated time first" in text
    assert "weights" in text


def test_sections_of_a_model_are_refused(linear):
    result = invoke("inspect", linear, "--memory")
    assert result.exit_code == 2
    assert "uif export" in result.stderr
