"""Which kernels become one, which do not, and what the report says about every edge."""

from __future__ import annotations

from typing import Any

import pytest
from tvm import relax
from uif_tvm.relay_passes import fuse_kernels, fusion_trial, legalize, pack_matmul

from tests.models import constant, context, module, weights
from uif_tvm.target.spec import Refusal

X = ("x", (4, 8), "float32")


def emit(expr: Any, name: str) -> Any:
    return relax.BlockBuilder.current().emit(expr, name)


def fused(body: Any, *inputs: Any, **options: Any) -> tuple[list[list[str]], dict[str, Any]]:
    """Source names of each kernel of more than one part, and decisions by subject."""
    made = context(**options)
    mod = legalize.PASS.apply(module(inputs or (X,), body), context())
    mod = fuse_kernels.PASS.apply(mod, made)
    groups = [list(map(str, names)) for names in mod.attrs[fuse_kernels.SOURCES_ATTR].values()]
    return groups, {d.subject: d for d in made.report.decisions}


def test_chains_of_any_shape_become_one_kernel() -> None:
    def body(x: Any) -> Any:
        a = emit(relax.op.exp(x), "a")
        b, c = emit(relax.op.negative(a), "b"), emit(relax.op.sqrt(a), "c")
        return [emit(relax.op.add(b, c), "d")]

    groups, decisions = fused(body)
    assert groups == [["a", "b", "c", "d"]]
    # b and c are neither written nor read, 128 bytes each way. a is read twice and costly: it
    # stays in a buffer of the kernel, which saves its launch alone.
    only = decisions["a, b, c, d"]
    assert (only.fired, only.launches_saved) == (True, 3)
    assert only.bytes_saved == 4 * 128
    assert only.basis == "roofline"


def test_a_result_of_the_model_is_written_anyway() -> None:
    def body(x: Any) -> Any:
        a = emit(relax.op.exp(x), "a")
        return [a, emit(relax.op.negative(a), "b")]

    groups, decisions = fused(body)
    assert groups == []
    assert "the model's results" in decisions["a -> b"].reason


def test_a_value_that_several_kernels_read_is_written_anyway() -> None:
    def body(x: Any) -> Any:
        a = emit(relax.op.exp(x), "a")
        return [emit(relax.op.negative(a), "b"), emit(relax.op.sqrt(a), "c")]

    groups, decisions = fused(body)
    assert groups == []
    for edge in ("a -> b", "a -> c"):
        assert decisions[edge].reason == "2 kernels read its result, so it is written anyway: b, c"


def test_what_a_product_reads_is_not_computed_as_often_as_it_is_read() -> None:
    def body(x: Any) -> Any:
        a = emit(relax.op.exp(x), "a")
        return [emit(relax.op.matmul(a, constant(weights(8, 32))), "b")]

    groups, decisions = fused(body)
    assert groups == []
    assert not decisions["a -> b"].fired
    assert "reads each element" in decisions["a -> b"].reason


def test_recomputing_a_broadcast_operand_has_a_price() -> None:
    """Four additions a element, repeated 100,000 times, cost more than a launch."""

    def body(x: Any, y: Any) -> Any:
        a = emit(relax.op.multiply(x, x), "a")
        b = emit(relax.op.add(relax.op.multiply(a, x), x), "b")
        return [emit(relax.op.add(b, y), "c")]

    inputs = (("x", (64, 1), "float32"), ("y", (64, 100_000), "float32"))
    groups, decisions = fused(body, *inputs)
    (decision,) = [d for d in decisions.values() if "does not pay" in d.reason]
    assert "would be computed 1e+05 times" in decision.reason
    assert decision.gain_us < 0
    assert all("c" not in group for group in groups)


@pytest.mark.parametrize(
    ("pattern", "alone"),
    [
        ("softmax", "b"), ("relax.nn.softmax", "b"), ("nn.softmax", "b"), ("*softmax", "b"),
        ("b", "b"), ("exp", "a"), ("relax.exp", "a"), ("tir_ex?", "a"),
    ],
)  # fmt: skip
def test_patterns_name_operators_kernels_and_values(pattern: str, alone: str) -> None:
    def body(x: Any) -> Any:
        a = emit(relax.op.exp(x), "a")
        b = emit(relax.op.nn.softmax(a), "b")
        return [emit(relax.op.negative(b), "c")]

    from uif_tvm.relay_passes.fusion_names import operator_names

    groups, _ = fused(body)
    assert groups == [["a", "b", "c"]]
    names = operator_names(module((X,), body))
    groups, decisions = fused(body, disabled_fusion=(pattern,), operators=names)
    assert all(alone not in group for group in groups)
    reasons = [d.reason for d in decisions.values() if not d.fired]
    assert any(f"disabled on request: {pattern!r}" in reason for reason in reasons)


def softmax_of_primitives(x: Any) -> Any:
    high = emit(relax.op.max(x, axis=-1, keepdims=True), "high")
    power = emit(relax.op.exp(emit(relax.op.subtract(x, high), "low")), "power")
    total = emit(relax.op.sum(power, axis=-1, keepdims=True), "total")
    return [emit(relax.op.divide(power, total), "result")]


def norm_of_primitives(x: Any) -> Any:
    mean = emit(relax.op.mean(x, axis=-1, keepdims=True), "mean")
    centred = emit(relax.op.subtract(x, mean), "centred")
    squares = emit(relax.op.multiply(centred, centred), "squares")
    spread = emit(relax.op.mean(squares, axis=-1, keepdims=True), "spread")
    root = emit(relax.op.sqrt(emit(relax.op.add(spread, constant(1e-5, "float32")), "e")), "root")
    return [emit(relax.op.divide(centred, root), "result")]


@pytest.mark.parametrize("body", [softmax_of_primitives, norm_of_primitives])
@pytest.mark.parametrize("depth", [7, 64, 130])
def test_rows_of_primitive_operators_become_one_kernel(body: Any, depth: int) -> None:
    groups, _ = fused(body, ("x", (2, 5, depth), "float32"))
    assert len(groups) == 1
    assert groups[0][-1] == "result"


def test_rows_of_other_axes_stay_apart() -> None:
    def body(x: Any) -> Any:
        a = emit(relax.op.nn.softmax(x, axis=-1), "a")
        b = emit(relax.op.sum(a, axis=0), "b")
        return [emit(relax.op.negative(b), "c")]

    _, decisions = fused(body)
    assert not decisions["a -> b"].fired
    assert decisions["a -> b"].reason.startswith("sum")


def test_a_group_that_the_schedules_refuse_is_cut_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule takes the product with one follower, and no more."""
    kernel_of = fusion_trial._answer

    def answer(rule: Any, func: Any, target: Any) -> Any:
        parts = sum("sqrt" in str(line) for line in str(func.body).splitlines())
        return Refusal("epilogue", "no roots") if parts else kernel_of(rule, func, target)

    monkeypatch.setattr(fusion_trial, "_answer", answer)

    def body(x: Any) -> Any:
        a = emit(relax.op.matmul(x, constant(weights(8, 32))), "a")
        return [emit(relax.op.sqrt(emit(relax.op.negative(a), "b")), "c")]

    made = context()
    mod = pack_matmul.PASS.apply(module((X,), body), made)
    mod = fuse_kernels.PASS.apply(legalize.PASS.apply(mod, made), made)
    assert [list(map(str, n)) for n in mod.attrs[fuse_kernels.SOURCES_ATTR].values()] == [
        ["a", "b"]
    ]
    said = {d.subject: d.reason for d in made.report.decisions if d.pass_name == "fuse-kernels"}
    assert "epilogue: no roots" in said["b -> c"]


def test_reshapes_at_the_rim_stay_views() -> None:
    def body(x: Any) -> Any:
        a = emit(relax.op.reshape(x, (2, 16)), "a")
        b = emit(relax.op.permute_dims(a), "b")
        return [emit(relax.op.negative(b), "c")]

    groups, decisions = fused(body)
    assert groups == [["b", "c"]]
    assert "a view" in decisions["a -> b"].reason


def test_a_reshape_between_two_kernels_is_index_arithmetic() -> None:
    def body(x: Any) -> Any:
        a = emit(relax.op.reshape(emit(relax.op.exp(x), "e"), (2, 16)), "a")
        return [emit(relax.op.permute_dims(a), "b")]

    assert fused(body)[0] == [["e", "a", "b"]]


def test_only_the_gathered_rows_of_a_table_are_computed() -> None:
    def body(table: Any, rows: Any) -> Any:
        a = emit(relax.op.multiply(table, constant(2.0, "float32")), "a")
        b = emit(relax.op.take(a, rows, axis=0), "b")
        return [emit(relax.op.nn.softmax(b), "c")]

    inputs = (("table", (1000, 32), "float32"), ("rows", (4,), "int64"))
    groups, decisions = fused(body, *inputs)
    assert groups == [["a", "b"]]
    assert "gathers from" in decisions["b -> c"].reason
    # 4 of 1,000 rows are computed: 996 x 32 products are saved.
    assert decisions["a, b"].flops_saved == pytest.approx(996 * 32)


def test_measured_times_outweigh_the_estimate() -> None:
    def body(x: Any) -> Any:
        return [emit(relax.op.negative(emit(relax.op.exp(x), "a")), "b")]

    def times(func: Any) -> float:
        return 9.0 if len(func.body.block.alloc_buffers) else 2.0

    groups, decisions = fused(body, kernel_times=times)
    assert groups == []
    assert decisions["a, b"].reason == "measured: one kernel takes 9 us, the 2 apart 4 us"
    assert (decisions["a, b"].gain_us, decisions["a, b"].basis) == (-5, "measured")


def test_every_edge_is_answered() -> None:
    def body(x: Any) -> Any:
        a = emit(relax.op.exp(x), "a")
        b = emit(relax.op.matmul(a, constant(weights(8, 8))), "b")
        c = emit(relax.op.add(b, a), "c")
        d = emit(relax.op.permute_dims(c), "d")
        return [emit(relax.op.sum(d, axis=0), "e"), c]

    groups, decisions = fused(body)
    edges = {("a", "b"), ("a", "c"), ("b", "c"), ("c", "d"), ("d", "e")}
    inside = {edge for edge in edges for group in groups if set(edge) <= set(group)}
    told = {tuple(subject.split(" -> ")) for subject, d in decisions.items() if not d.fired}
    assert inside | told >= edges
    assert not inside & told


def test_formulas_that_would_grow_without_end_are_cut() -> None:
    """Each step reads its operand three times, so the whole chain would have 3^12 terms."""

    def body(x: Any) -> Any:
        for step in range(12):
            squared = emit(relax.op.multiply(x, x), f"s{step}")
            x = emit(relax.op.multiply(squared, x), f"c{step}")
        return [x]

    groups, decisions = fused(body)
    assert 2 <= len(groups) <= 5
    assert all(len(group) > 2 for group in groups)
    declined = [d.reason for d in decisions.values() if not d.fired]
    assert any("operations, 3000 at most" in reason for reason in declined)
