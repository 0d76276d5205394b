"""Names that mean nothing are refused before any work."""

from __future__ import annotations

import pytest

from tests.compiler.test_graph_pass import make
from tests.models import context, fake_target
from uif_tvm.compiler.request import check_request
from uif_tvm.errors import EnvironmentFault, TargetError, UsageError
from uif_tvm.target.spec import Requirement


def disable(*names, target="cpu", level=2):
    check_request(context(target, level, disabled_passes=frozenset(names)))


def test_known_passes_may_be_disabled_at_any_level():
    for level in range(4):
        disable("fuse-kernels", "fold-constant", "pack-matmul", level=level)
    disable()


@pytest.mark.parametrize(
    ("name", "hint"),
    [("fuse-kernel", "did you mean 'fuse-kernels'?"), ("zzz", "these can be disabled: ")],
)
def test_misspelt(name, hint):
    with pytest.raises(UsageError, match=f"no pass '{name}' to disable") as caught:
        disable(name)
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize("name", ["legalize", "lift-weights", "safe-indexing"])
def test_needed(name):
    with pytest.raises(UsageError, match=f"pass '{name}' cannot be disabled"):
        disable(name)


def test_passes_of_the_target_count():
    target = fake_target(phase_overrides={"layout": lambda ctx: [make("acme-layout")]})
    disable("acme-layout", target=target)
    with pytest.raises(UsageError):
        disable("acme-layout")


def test_verification_needs_a_machine_that_runs_the_code():
    target = fake_target(requirement=Requirement("riscv64", ("zve64d",)))
    check_request(context(target))
    with pytest.raises(EnvironmentFault, match="verify=True runs the model") as caught:
        check_request(context(target, verify=True))
    assert caught.value.code == "UIF-ENV-VERIFY"
    assert "riscv64" in str(caught.value)


def test_unknown_phase():
    with pytest.raises(TargetError, match="adds passes to unknown phases lay-out") as caught:
        disable(target=fake_target(phase_overrides={"lay-out": lambda ctx: []}))
    assert "layout" in caught.value.hint
