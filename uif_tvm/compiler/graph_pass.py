"""The contract of a graph pass, and the driver that runs passes and checks what they promise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NoReturn

from uif_tvm.errors import CompileError, EnvironmentFault, UifError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import tvm

    from uif_tvm.compiler.context import CompileContext


class GraphPass:
    """One rewrite over a Relax module. Subclasses set the class attributes and ``apply``.

    Attributes:
        name: unique, kebab-case; what users give to ``disable_passes``.
        requires: facts that must hold before (see ``FACTS``).
        ensures: facts that hold afterwards; the driver checks those it can.
        optional: False for passes without which nothing can be compiled.
    """

    name: ClassVar[str]
    requires: ClassVar[frozenset[str]] = frozenset()
    ensures: ClassVar[frozenset[str]] = frozenset()
    optional: ClassVar[bool] = True

    def apply(self, mod: tvm.IRModule, ctx: CompileContext) -> tvm.IRModule:
        """Return the rewritten module; never change ``mod`` in place."""
        raise NotImplementedError


def _no_module(result: object) -> str | None:
    """What is wrong with a pass's result; the next pass would be blamed for it."""
    import tvm

    if not isinstance(result, tvm.IRModule):
        return f"it returned {type(result).__name__} instead of a module"
    if not any(var.name_hint == "main" for var in result.functions):
        return "the module that it returned has no function main"
    return None


def _only_kernels(mod: tvm.IRModule) -> str | None:
    from uif_tvm.relax_util import high_level_ops

    # A reshape is a kernel or a view; which of both is settled after fusion.
    left = high_level_ops(mod).keys() - {"relax.reshape"}
    return f"operators without a kernel remain: {', '.join(sorted(left))}" if left else None


#: Fact -> how to check it (``None``: it is only tracked). A checker returns what is wrong.
FACTS: dict[str, Callable[[tvm.IRModule], str | None] | None] = {
    "indices-safe": None,
    "kernels-only": _only_kernels,
    "fused": None,
    "weights-lifted": None,
}


class PassDriver:
    """Runs passes in order, checks needs and promises, and dumps the IR where asked to."""

    def __init__(self, ctx: CompileContext, facts: Iterable[str] = ()) -> None:
        """``facts``: what holds already, for a module that other passes have been over."""
        self._ctx = ctx
        self._facts: set[str] = set(facts)
        self._phase = ""

    def run(self, passes: Iterable[GraphPass], mod: tvm.IRModule, phase: str = "") -> tvm.IRModule:
        """Apply each enabled pass of ``phase`` to ``mod``.

        Raises:
            CompileError: a pass failed or broke its promise; names the passes run before it and
                the folder with a reproducer.
        """
        self._phase = phase
        for graph_pass in passes:
            if graph_pass.optional and graph_pass.name in self._ctx.disabled_passes:
                self._ctx.report.notes.append(f"pass {graph_pass.name} disabled on request")
                continue
            mod = self._run_one(graph_pass, mod)
        return mod

    def _run_one(self, graph_pass: GraphPass, mod: tvm.IRModule) -> tvm.IRModule:
        before, held = mod, set(self._facts)

        def fail(what: str, cause: Exception | None = None) -> NoReturn:
            raise self._failure(graph_pass, what, before, held) from cause

        unknown = (graph_pass.requires | graph_pass.ensures) - FACTS.keys()
        if unknown:
            known = ", ".join(sorted(FACTS))
            fail(f"it names unknown facts {', '.join(sorted(unknown))}; known: {known}")
        missing = graph_pass.requires - self._facts
        if missing:
            fail(f"it requires {', '.join(sorted(missing))}, which no pass before ensured")
        for fact in graph_pass.requires:
            # A pass in between may have broken what an earlier one had ensured.
            wrong = self._wrong(fact, mod)
            if wrong:
                fail(f"it requires {fact}, but {wrong}")
        try:
            with self._ctx.report.timed(f"pass {graph_pass.name}"):
                mod = graph_pass.apply(mod, self._ctx)
        except UifError:
            raise
        except Exception as error:
            # TVM raises bare built-ins; the user needs to know which pass they came from.
            fail(f"{type(error).__name__}: {error}", error)
        lacks = _no_module(mod)
        if lacks:
            fail(lacks)
        for fact in graph_pass.ensures:
            wrong = self._wrong(fact, mod)
            if wrong:
                fail(f"it promised {fact}, but {wrong}")
            self._facts.add(fact)
        self._ctx.report.passes.append(graph_pass.name)
        self._dump(graph_pass, mod)
        return mod

    @staticmethod
    def _wrong(fact: str, mod: tvm.IRModule) -> str | None:
        check = FACTS[fact]
        return check(mod) if check else None

    def _failure(
        self, graph_pass: GraphPass, what: str, before: tvm.IRModule, held: set[str]
    ) -> CompileError:
        from uif_tvm.compiler.reproducer import write_reproducer

        ran = ", ".join(self._ctx.report.passes) or "none"
        remedy = (
            f"export with disable_passes=[{graph_pass.name!r}] to go on, and report this"
            if graph_pass.optional
            else "this pass cannot be disabled; report this"
        )
        try:
            folder = write_reproducer(self._phase, graph_pass, before, held, self._ctx)
            where = f"a reproducer is in {folder}"
        except Exception as error:  # the failure of the pass is what the user must read
            where = f"no reproducer could be written: {type(error).__name__}: {error}"
        return CompileError(
            f"pass {graph_pass.name} failed: {what}\n  passes run before: {ran}\n  {where}",
            code="UIF-COMPILE-PASS",
            op=graph_pass.name,
            target=self._ctx.target.id,
            hint=f"{remedy} with the reproducer",
        )

    def _dump(self, graph_pass: GraphPass, mod: tvm.IRModule) -> None:
        if self._ctx.save_temps is None:
            return
        # One folder per target: several may be compiled in one export.
        folder = Path(self._ctx.save_temps) / self._ctx.target.id
        path = folder / f"{len(self._ctx.report.passes):02d}-{graph_pass.name}.py"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(mod.script(show_meta=False), encoding="utf-8")
        except OSError as error:
            raise EnvironmentFault(
                f"cannot write the IR dump {path}: {error.strerror or error}",
                stage="compile",
                code="UIF-ENV-TEMPS",
                hint="choose a writable folder with save_temps=, or leave it out",
            ) from error
