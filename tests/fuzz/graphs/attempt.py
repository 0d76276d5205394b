"""One graph through every level, and what became of it."""

from __future__ import annotations

import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx

from tests.fuzz.graphs.evaluate import Array
from tests.fuzz.graphs.generate import Graph
from tests.fuzz.graphs.judge import CERTAIN_RUNS, Expected, departs, differs, expected

LEVELS = (0, 1, 2, 3)
#: Called with the level that is about to be tried.
Tell = Callable[[int], None]


class Fault(Exception):
    """A graph that went wrong.

    Args:
        kind: ``mismatch``, ``reference`` (level 0 departs from the independent evaluation),
            ``refused`` (a valid graph was not taken), ``error`` (what no user should see),
            ``unstable`` (two runs differ), ``memory`` (results share memory).
        level: at which level.
        message: what was seen.
    """

    def __init__(self, kind: str, level: int, message: str) -> None:
        super().__init__(f"{kind} at level {level}: {message}")
        self.kind, self.level, self.message = kind, level, message


def attempt(
    graph: Graph,
    *,
    levels: Sequence[int] = LEVELS,
    disable_passes: Sequence[str] = (),
    cache: str | None = None,
    tell: Tell = lambda level: None,
) -> None:
    """Run ``graph`` at all levels and compare; raises :class:`Fault` for the first finding."""
    expectations = [expected(graph, feed) for feed in graph.feeds]
    unoptimised: list[list[Array]] = []
    for level in levels:
        tell(level)
        results = run(graph.proto, graph.feeds, level, graph.open_axes, disable_passes, cache)
        if level == 0:
            unoptimised = results
        for extent, have in enumerate(results):
            base = unoptimised[extent] if unoptimised else None
            wrong = _faults(graph, level, have, base, expectations[extent])
            if wrong:  # for good, or by an unlucky draw of the noise?
                sure = expected(graph, graph.feeds[extent], CERTAIN_RUNS)
                wrong = _faults(graph, level, have, base, sure)
            if wrong:
                kind = "mismatch" if level and base else "reference"
                where = f"extents {extent}: " if graph.open_axes else ""
                raise Fault(kind, level, where + wrong)


def _faults(
    graph: Graph, level: int, have: list[Array], base: list[Array] | None, wanted: list[Expected]
) -> str:
    """What is wrong with the first output that is, by level 0 or else by the evaluation."""
    for index, want in enumerate(wanted):
        if level and base is not None:
            wrong = differs(have[index], base[index], want.change, level)
        else:
            wrong = "" if graph.special else departs(have[index], want)
        if wrong:
            return f"output {want.name}: {wrong}"
    return ""


def run(
    proto: onnx.ModelProto,
    feeds: Sequence[dict[str, Array]],
    level: int,
    open_axes: bool = False,
    disable_passes: Sequence[str] = (),
    cache: str | None = None,
) -> list[list[Array]]:
    """Results of a model for each feed, from an engine that is also held to its contracts.

    Raises:
        Fault: it is refused, fails, gives two results for one input, or shares their memory.
    """
    import uif_tvm
    from uif_tvm.errors import UifError

    with tempfile.TemporaryDirectory(prefix="uif-fuzz-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = f"{folder}/m.uif"
        try:
            uif_tvm.export(
                proto,
                feeds[0],
                path,
                level,
                cache_dir=cache,
                dynamic_shapes="auto" if open_axes else None,
                disable_passes=list(disable_passes),
            )
            engine = uif_tvm.load(path, threads=1)
            return [_twice(engine, feed, level) for feed in feeds]
        except Fault:
            raise
        except UifError as error:
            kind = "refused" if error.exit_code != 70 else "error"
            raise Fault(kind, level, str(error)) from error
        except Exception as error:
            told = "\n".join(traceback.format_exc().splitlines()[-8:])
            raise Fault("error", level, told) from error


def _twice(engine: Any, feed: dict[str, Array], level: int) -> list[Array]:
    """Results for ``feed``, which must be the same again, and nobody else's memory."""
    kept = {name: array.copy() for name, array in feed.items()}
    first = [np.asarray(result) for result in engine.run(feed)]
    saved = [array.copy() for array in first]
    for index, array in enumerate(first):
        others = [*first[:index], *feed.values()]
        if any(np.shares_memory(array, other) for other in others):
            raise Fault("memory", level, f"output {index} shares memory with another tensor")
        if array.flags.writeable and array.size:
            array.view(np.uint8 if array.ndim else array.dtype)[...] = 0
    second = [np.asarray(result) for result in engine.run(feed)]
    for index, (one, two) in enumerate(zip(saved, second, strict=True)):
        if one.tobytes() != two.tobytes():
            raise Fault("unstable", level, f"output {index} differs in a second run")
    if any(kept[name].tobytes() != feed[name].tobytes() for name in feed):
        raise Fault("memory", level, "an input was written to")
    return saved
