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
from tests.fuzz.graphs.judge import Expected, departs, differs, expected

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
        for extent, (have, wanted) in enumerate(zip(results, expectations, strict=True)):
            base = unoptimised[extent] if unoptimised else None
            for index, expectation in enumerate(wanted):
                _compare(graph, level, have[index], base and base[index], expectation, extent)


def _compare(
    graph: Graph, level: int, have: Array, base: Array | None, want: Expected, extent: int
) -> None:
    where = f"output {want.name}" + (f" (extents {extent})" if graph.open_axes else "")
    if level == 0 or base is None:
        wrong = "" if graph.special else departs(have, want)
        if wrong:
            raise Fault("reference" if level == 0 else "mismatch", level, f"{where}: {wrong}")
        return
    wrong = differs(have, base, want.change, level)
    if wrong:
        raise Fault("mismatch", level, f"{where}: {wrong}")


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
