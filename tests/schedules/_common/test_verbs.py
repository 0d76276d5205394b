"""Verbs that rules share: finding blocks, inlining epilogues, cutting loops, peeling tails."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import te, tirx, topi
from uif_tvm.schedules._common.access import body_of, same_index, stride
from uif_tvm.schedules._common.blocks import (
    child_blocks,
    family_of,
    find_anchor,
    inline_epilogue,
    open_schedule,
    static_extents,
)
from uif_tvm.schedules._common.parallel import fuse_until, vector_factor
from uif_tvm.schedules._common.tails import peel_tails

from tests.schedules.harness import placeholder, run
from uif_tvm.target.schedule import FAMILY_ATTR
from uif_tvm.target.spec import Refusal


def chain() -> tirx.PrimFunc:
    """A marked row sum, then two element-wise stages."""
    x = placeholder(6, 10)
    k = te.reduce_axis((0, 10), name="k")
    total = te.compute((6,), lambda i: te.sum(x[i, k], axis=k), name="total",
                       attrs={FAMILY_ATTR: "sums"})  # fmt: skip
    half = te.compute((6,), lambda i: total[i] * 0.5, name="half")
    out = te.compute((6,), lambda i: half[i] + 1.0, name="out")
    return te.create_prim_func([x, out])


def test_blocks_are_found_and_classified() -> None:
    sch = open_schedule(chain())
    facts = child_blocks(sch)
    assert [(f.name, f.spatial, f.reduction, f.family) for f in facts] == [
        ("total", False, True, "sums"),
        ("half", True, False, None),
        ("out", True, False, None),
    ]
    assert family_of(chain()) == "sums"
    assert find_anchor(sch, "sums").name == "total"
    assert isinstance(find_anchor(sch, "others"), Refusal)


def test_epilogues_fold_into_the_result() -> None:
    sch = open_schedule(chain())
    result = inline_epilogue(sch, find_anchor(sch, "sums").rv)
    assert [f.name for f in child_blocks(sch)] == ["total", "out"]
    assert static_extents(sch, sch.get_loops(result)) == [6]
    x = np.ones((6, 10), "float32")
    np.testing.assert_array_equal(run(sch.mod["main"], [x], (6,), "float32"), np.full(6, 6.0))


@given(extent=st.integers(1, 500), lanes=st.sampled_from([4, 8, 16]))
def test_vector_factor_divides(extent: int, lanes: int) -> None:
    factor = vector_factor(extent, lanes)
    assert extent % factor == 0
    assert factor == 1 or 4 <= factor <= lanes


@given(extents=st.lists(st.integers(1, 9), min_size=1, max_size=4), wanted=st.integers(1, 50))
def test_fuse_until_takes_no_more_loops_than_needed(extents: list[int], wanted: int) -> None:
    count = fuse_until(extents, wanted)
    assert 1 <= count <= len(extents)
    assert np.prod(extents[: count - 1]) < wanted or count == 1


@pytest.mark.parametrize("extent", [16, 20, 37])
def test_peeling_keeps_results_and_whole_vectors(extent: int) -> None:
    x = placeholder(3, extent)
    sch = tvm.s_tir.Schedule(te.create_prim_func([x, topi.nn.relu(x)]))
    row, column = sch.get_loops(sch.get_child_blocks(sch.get_sblock("root"))[0])
    vector, lane = sch.split(column, [None, 16])
    sch.vectorize(lane)
    peeled = peel_tails(sch.mod["main"])
    text = peeled.script()
    assert ("if " in text) == (extent % 16 != 0)
    assert "vectorized" in text
    value = np.random.default_rng(0).standard_normal((3, extent)).astype("float32")
    result = run(peeled, [value], value.shape, "float32")
    np.testing.assert_array_equal(result, np.maximum(value, 0))
    assert row is not None
    assert vector is not None


def test_strides_and_costs() -> None:
    a, w = placeholder(1, 4, 9, 9), placeholder(8, 4, 3, 3, name="w")
    sch = open_schedule(te.create_prim_func([a, w, topi.nn.conv2d(a, w, 2, 0, 1)]))
    (conv,) = [f for f in child_blocks(sch) if f.reduction]
    block = sch.get(conv.rv)
    body = body_of(block)
    data = next(
        load for load in body.loads if load.buffer.shape[1] == 4 and load.buffer.shape[2] > 3
    )
    column = block.iter_vars[3].var
    assert stride(body.store, column) == 1
    assert stride(data, column) == 2
    assert stride(data, block.iter_vars[1].var) == 0
    assert not body.branching
    assert not same_index(list(body.loads))


def test_a_plain_function_cannot_be_opened() -> None:
    @tvm.script.tirx.prim_func
    def plain(a: tvm.script.tirx.Buffer((4,), "float32")):
        a[0] = tvm.script.tirx.float32(1)

    assert isinstance(open_schedule(plain), Refusal)
