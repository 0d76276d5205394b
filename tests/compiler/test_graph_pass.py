"""The pass driver: needs and promises checked, failures placed, passes disabled, IR dumped."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax

from tests.models import context, module
from uif_tvm.compiler.graph_pass import GraphPass, PassDriver
from uif_tvm.errors import CompileError, EnvironmentFault, UsageError

MOD = module([("x", (2,), "float32")], lambda x: [relax.op.exp(x)])


class Same(GraphPass):
    """Changes nothing."""

    name = "same"

    def apply(self, mod, ctx):
        return mod


def make(name, *, requires=(), ensures=(), optional=True, raises=None):
    def apply(self, mod, ctx):
        if raises:
            raise raises
        return mod

    fields = {
        "name": name,
        "requires": frozenset(requires),
        "ensures": frozenset(ensures),
        "optional": optional,
        "apply": apply,
    }
    return type("Made", (GraphPass,), fields)()


def run(*passes, **options):
    made = context(**options)
    return PassDriver(made).run(passes, MOD), made.report


def failure(*passes, **options):
    with pytest.raises(CompileError) as caught:
        run(*passes, **options)
    assert caught.value.code == "UIF-COMPILE-PASS"
    assert caught.value.target == "cpu"
    return caught.value


def test_passes_run_in_order_and_are_reported_with_their_time():
    mod, report = run(make("first"), make("second"))
    assert mod is MOD
    assert report.passes == ["first", "second"]
    assert set(report.seconds) == {"pass first", "pass second"}


def test_need_that_nobody_ensured():
    error = failure(make("a"), make("b", requires={"indices-safe", "fused"}))
    assert error.op == "b"
    assert "requires fused, indices-safe, which no pass before ensured" in str(error)
    assert "passes run before: a" in str(error)


def test_need_that_an_earlier_pass_ensured_also_across_calls():
    driver = PassDriver(context())
    driver.run([make("a", ensures={"indices-safe"})], MOD)
    driver.run([make("b", requires={"indices-safe"})], MOD)


def test_broken_promise():
    error = failure(make("liar", ensures={"kernels-only"}))
    assert "promised kernels-only, but operators without a kernel remain: relax.exp" in str(error)
    assert "passes run before: none" in str(error)


def test_bare_error_names_the_pass_and_keeps_its_cause():
    error = failure(make("a"), make("b"), make("bad", raises=IndexError("off by one")))
    assert "pass bad failed: IndexError: off by one" in str(error)
    assert "passes run before: a, b" in str(error)
    assert "disable_passes=['bad']" in error.hint
    assert isinstance(error.__cause__, IndexError)


def test_remedy_for_a_pass_that_cannot_be_disabled():
    assert "cannot be disabled" in failure(make("bad", optional=False, raises=KeyError("x"))).hint


def test_typed_errors_pass_through():
    with pytest.raises(UsageError, match="mine"):
        run(make("bad", raises=UsageError("mine")))


def test_unknown_fact_is_the_authors_mistake():
    error = failure(make("odd", ensures={"kernels-onyl"}))
    assert "unknown facts kernels-onyl; known: fused, indices-safe" in str(error)


def test_disabled_passes_are_left_out_and_noted():
    _, report = run(make("a"), make("b"), disabled_passes=frozenset({"a"}))
    assert report.passes == ["b"]
    assert report.notes == ["pass a disabled on request"]


def test_needed_passes_run_even_when_disabled():
    _, report = run(make("a", optional=False), disabled_passes=frozenset({"a"}))
    assert report.passes == ["a"]


def test_dumps_after_each_pass(tmp_path):
    run(make("a"), make("b"), save_temps=tmp_path / "ir")
    dumps = sorted((tmp_path / "ir" / "cpu").iterdir())
    assert [path.name for path in dumps] == ["01-a.py", "02-b.py"]
    assert "R.exp(x)" in dumps[0].read_text()


def test_dumps_that_cannot_be_written(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(EnvironmentFault, match="cannot write the IR dump") as caught:
        run(make("a"), save_temps=tmp_path / "taken")
    assert caught.value.code == "UIF-ENV-TEMPS"


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (None, "returned NoneType instead of a module"),
        (tvm.IRModule({}), "has no function main"),
    ],
)
def test_result_that_is_no_module_is_the_passs_own_fault(result, said):
    odd = type("Odd", (GraphPass,), {"name": "odd", "apply": lambda self, mod, ctx: result})()
    error = failure(odd, make("next"))
    assert error.op == "odd"
    assert said in str(error)
