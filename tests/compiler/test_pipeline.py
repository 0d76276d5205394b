"""Levels and phases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.compiler.test_graph_pass import make
from tests.models import context, fake_target
from uif_tvm.compiler.graph_pass import FACTS
from uif_tvm.compiler.pipeline import passes_for, phases
from uif_tvm.errors import TargetError


def names(level, target="cpu"):
    made = context(target, level)
    return [item.name for phase in phases() for item in passes_for(phase, made)]


def test_each_level_has_all_of_the_one_below():
    for level in range(3):
        assert set(names(level)) <= set(names(level + 1))


def test_level_zero_has_only_what_is_needed():
    needed = {item.name for phase in phases() for _, item in phase.passes if not item.optional}
    assert set(names(0)) == needed


@pytest.mark.parametrize("level", range(4))
def test_needs_are_ensured_by_earlier_passes(level):
    known = set()
    for phase in phases():
        for item in passes_for(phase, context(level=level)):
            assert item.requires <= known, item.name
            known |= item.ensures
    assert known <= set(FACTS)


def test_names_are_kebab_case_and_belong_to_one_pass():
    seen = {}
    for phase in phases():
        for _, item in phase.passes:
            assert item.name == item.name.lower().replace("_", "-")
            assert seen.setdefault(item.name, item) is item


def test_passes_of_the_target_end_their_phase():
    extra = [make("acme-one"), make("acme-two", optional=False)]
    target = fake_target(phase_overrides={"layout": lambda ctx: extra})
    order = names(2, target)
    assert order.index("acme-one") < order.index("acme-two") < order.index("legalize")
    # Level 0 is the yardstick: of a target's passes, only what it cannot do without.
    assert [name for name in names(0, target) if name.startswith("acme")] == ["acme-two"]


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        (lambda ctx: None, "TypeError"),
        (lambda ctx: [object()], "made object instead of passes"),
        (lambda ctx: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_broken_passes_of_a_target_are_the_targets_fault(factory, said):
    target = fake_target(phase_overrides={"layout": factory})
    (layout,) = [phase for phase in phases() if phase.name == "layout"]
    with pytest.raises(TargetError, match=said) as caught:
        passes_for(layout, replace(context(), target=target))
    assert caught.value.code == "UIF-TARGET-BROKEN"
