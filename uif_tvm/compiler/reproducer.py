"""A failing pass in a folder of its own: the module it was given, and a script that runs it again.

<folder>/before.json     the module before the pass, in TVM's lossless form
<folder>/before.py       the same as TVMScript, for reading
<folder>/reproduce.py    loads the module and applies the pass under the same request
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import tvm

from uif_tvm.compiler.graph_pass import GraphPass, PassDriver
from uif_tvm.errors import UsageError

if TYPE_CHECKING:
    from uif_tvm.compiler.context import CompileContext

_SCRIPT = '''\
"""Applies the pass {name} once more to the module that it failed on."""

from pathlib import Path

from uif_tvm.compiler.reproducer import replay

replay(
    Path(__file__).parent,
    phase={phase!r},
    graph_pass={name!r},
    target={target!r},
    level={level},
    facts={facts},
    disabled_passes={disabled_passes},
    disabled_fusion={disabled_fusion},
)
print("the pass succeeded")
'''


def write_reproducer(
    phase: str, graph_pass: GraphPass, mod: tvm.IRModule, facts: set[str], ctx: CompileContext
) -> Path:
    """Write the folder, under ``ctx.save_temps`` or else in a new temporary one.

    Raises:
        OSError: the disk refuses; the caller's own error matters more.
    """
    if ctx.save_temps is None:
        folder = Path(tempfile.mkdtemp(prefix=f"uif-{graph_pass.name}-"))
    else:
        folder = Path(ctx.save_temps) / ctx.target.id / f"failed-{graph_pass.name}"
        folder.mkdir(parents=True, exist_ok=True)
    (folder / "before.json").write_text(tvm.ir.save_json(mod), encoding="utf-8")
    (folder / "before.py").write_text(mod.script(show_meta=False), encoding="utf-8")
    script = _SCRIPT.format(
        name=graph_pass.name,
        phase=phase,
        target=ctx.target.id,
        level=ctx.level,
        facts=sorted(facts),
        disabled_passes=sorted(ctx.disabled_passes),
        disabled_fusion=list(ctx.disabled_fusion),
    )
    (folder / "reproduce.py").write_text(script, encoding="utf-8")
    return folder


def replay(
    folder: Path,
    *,
    phase: str,
    graph_pass: str,
    target: str,
    level: int,
    facts: list[str],
    disabled_passes: list[str],
    disabled_fusion: list[str],
) -> tvm.IRModule:
    """Apply one pass to the module in ``folder``; what ``reproduce.py`` does.

    Raises:
        UsageError: the phase has no such pass any more.
        CompileError: the pass fails as it did.
    """
    from uif_tvm.compiler.context import CompileContext
    from uif_tvm.compiler.pipeline import passes_for, phases
    from uif_tvm.compiler.report import ReportBuilder
    from uif_tvm.target.registry import get_target

    ctx = CompileContext(
        target=get_target(target),
        level=level,
        report=ReportBuilder(),
        disabled_passes=frozenset(disabled_passes),
        disabled_fusion=tuple(disabled_fusion),
        save_temps=folder,
    )
    mod = tvm.ir.load_json((folder / "before.json").read_text(encoding="utf-8"))
    for step in phases():
        if step.name == phase:
            for candidate in passes_for(step, ctx):
                if candidate.name == graph_pass:
                    driver = PassDriver(ctx, facts=facts)
                    return driver.run([candidate], mod, phase=phase)
    raise UsageError(
        f"phase {phase} has no pass {graph_pass} at level {level} on target {target}",
        hint="the reproducer was written by another version of uif or of the target",
    )
