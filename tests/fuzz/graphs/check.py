"""``make fuzz-graphs``: random graphs, which every level must compute like level 0.

    python -m tests.fuzz.graphs.check [--count N] [--seed N] [--jobs N]
    python -m tests.fuzz.graphs.check --replay build/fuzz/graphs/0-17

Each graph is compiled at levels 0 to 3 and run twice; level 0 is also compared with an evaluation
node by node in ONNX Runtime. Workers are replaced when they crash or hang. A finding is bisected
to the passes without which it does not appear and made smaller, then saved under
build/fuzz/graphs as a model, its inputs and what happened. Writes build/reports/fuzz-graphs.json;
exit code 0 when nothing was found.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from rich.console import Console

from tests.fuzz.graphs.attempt import Fault, attempt, run
from tests.fuzz.graphs.generate import Graph, generate
from tests.fuzz.graphs.minimise import guilty, minimised

TIMEOUT = 300.0
MEMORY = 8 << 30
#: Graphs that one worker tries before a fresh one takes over, so that no leak adds up.
BATCH = 60
_FORK = multiprocessing.get_context("fork")


def graph_of(seed: str) -> Graph:
    """The graph of a seed such as ``0-17``."""
    return generate(random.Random(seed))


def examine(seed: str, cache: str, tell: Any, explain: bool) -> dict[str, Any]:
    """What becomes of one graph; its fault bisected and minimised where ``explain``."""
    graph = graph_of(seed)
    row: dict[str, Any] = {"id": seed, "nodes": len(graph.proto.graph.node), "kind": "right"}
    try:
        attempt(graph, cache=cache, tell=tell)
    except Fault as fault:
        row |= {"kind": fault.kind, "level": fault.level, "message": fault.message}
        row |= {"passes": [], "graph": text(graph.proto)}
        if explain:
            row |= explained(graph, fault, cache)
    return row


def explained(graph: Graph, fault: Fault, cache: str) -> dict[str, Any]:
    """The passes behind a fault, and the smallest graph that shows it."""
    levels = sorted({0, fault.level})

    def check(candidate: Graph, disabled: Sequence[str]) -> str | None:
        try:
            attempt(candidate, levels=levels, disable_passes=disabled, cache=cache)
        except Fault as found:
            return found.kind if found.level == fault.level else None
        except Exception:
            return None
        return None

    small = minimised(graph, fault.kind, check)
    passes = guilty(small, fault.level, fault.kind, check) if fault.level else []
    return {"passes": passes, "graph": text(small.proto), "small": small}


def text(proto: onnx.ModelProto) -> str:
    """A model in ONNX's text form, without the values of its weights."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    del copy.graph.initializer[:]
    weights = [f"{w.name}: {list(w.dims)}" + _few(w) for w in proto.graph.initializer]
    return f"{onnx.printer.to_text(copy.graph)}\nweights: {'; '.join(weights)}"


def _few(weight: onnx.TensorProto) -> str:
    array = onnx.numpy_helper.to_array(weight)
    return f" = {array.tolist()}" if array.size <= 8 else ""


def save(folder: Path, proto: onnx.ModelProto, feeds: Sequence[dict[str, Any]], row: Any) -> None:
    """A finding as files that ``--replay`` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(proto, str(folder / "model.onnx"))
    for number, feed in enumerate(feeds):
        tensors = {name: onnx.numpy_helper.from_array(array) for name, array in feed.items()}
        for name, tensor in tensors.items():
            (folder / f"{number}-{name}.pb").write_bytes(tensor.SerializeToString())
    (folder / "finding.json").write_text(json.dumps(row, indent=2) + "\n")


def replay(folder: Path) -> int:
    """Run a saved finding at every level and print the outputs that differ from level 0."""
    proto = onnx.load(str(folder / "model.onnx"))
    feeds: dict[int, dict[str, Any]] = {}
    for file in sorted(folder.glob("*.pb")):
        number, name = file.stem.split("-", 1)
        tensor = onnx.TensorProto.FromString(file.read_bytes())
        feeds.setdefault(int(number), {})[name] = onnx.numpy_helper.to_array(tensor)
    opened = any(d.dim_param for i in proto.graph.input for d in i.type.tensor_type.shape.dim)
    console, base = Console(highlight=False), None
    console.print(text(proto), markup=False)
    for level in range(4):
        try:
            results = run(proto, list(feeds.values()), level, opened)
        except Fault as fault:
            console.print(str(fault), markup=False)
            continue
        base = base or results
        for extent, (have, want) in enumerate(zip(results, base, strict=True)):
            for value, left, right in zip(proto.graph.output, have, want, strict=True):
                with np.errstate(invalid="ignore"):
                    apart = np.abs(left.astype(np.float64) - right.astype(np.float64))
                most = np.nanmax(apart) if apart.size else 0.0
                console.print(
                    f"level {level}, feed {extent}, {value.name}: {most:.3g} from level 0"
                )
    return 0


def _work(seeds: list[str], cache: str, explain: bool, findings: Path, pipe: Any) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for seed in seeds:
        pipe.send(("start", seed))
        try:
            row = examine(seed, cache, lambda level: pipe.send(("level", level)), explain)
        except Exception as error:  # the harness itself: never to be taken for a right graph
            row = {"id": seed, "kind": "harness", "message": f"{type(error).__name__}: {error}"}
        small = row.pop("small", None)
        if row["kind"] != "right":
            shown = small or graph_of(seed)
            save(findings / seed, shown.proto, shown.feeds, row)
        pipe.send(("row", row))


class Worker:
    """A process that tries graphs, and what it is at."""

    def __init__(self, seeds: list[str], cache: str, explain: bool, findings: Path) -> None:
        self.rest = list(seeds)
        self.pipe, theirs = _FORK.Pipe(duplex=False)
        arguments = (list(seeds), cache, explain, findings, theirs)
        self.process = _FORK.Process(target=_work, args=arguments, daemon=True)
        self.process.start()
        theirs.close()
        self.level = 0
        self.heard = time.monotonic()

    def lost(self, kind: str, message: str) -> dict[str, Any]:
        """The row of the graph that this worker did not get over."""
        seed = self.rest.pop(0)
        return {"id": seed, "kind": kind, "level": self.level, "message": message}

    def stop(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def outcomes(
    seeds: Sequence[str], jobs: int, cache: str, explain: bool, findings: Path
) -> Iterator[dict[str, Any]]:
    """A row for every seed; crashed and hung workers are replaced."""
    batches = [list(seeds[at : at + BATCH]) for at in range(0, len(seeds), BATCH)]
    workers: list[Worker] = []
    try:
        while batches or workers:
            while batches and len(workers) < jobs:
                workers.append(Worker(batches.pop(0), cache, explain, findings))
            wait([worker.pipe for worker in workers], timeout=1.0)
            for worker in list(workers):
                row = _heard(worker)
                if row is not None:
                    yield row
                if not worker.process.is_alive() and not worker.pipe.closed and _drained(worker):
                    worker.stop()
                if worker.pipe.closed:
                    workers.remove(worker)
                    if worker.rest:
                        batches.insert(0, worker.rest)
    finally:
        for worker in workers:
            worker.stop()


def _drained(worker: Worker) -> bool:
    return not worker.rest or not worker.pipe.poll()


def _heard(worker: Worker) -> dict[str, Any] | None:
    """The next finished row of a worker; stops it where it crashed or hangs."""
    while worker.pipe.poll():
        try:
            kind, body = worker.pipe.recv()
        except EOFError:
            worker.process.join(10)
            code = worker.process.exitcode
            lost = worker.lost("crash", f"exit code {code}") if worker.rest else None
            worker.stop()
            return lost
        worker.heard = time.monotonic()
        if kind == "level":
            worker.level = body
        elif kind == "row":
            worker.rest.pop(0)
            row: dict[str, Any] = body
            return row
    if time.monotonic() - worker.heard > TIMEOUT:
        lost = worker.lost("hang", f"not done in {TIMEOUT:g} s") if worker.rest else None
        worker.stop()
        return lost
    return None


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Counts: all graphs, those with wrong results, those that failed in another way."""
    kinds = Counter(row["kind"] for row in rows)
    wrong = ("mismatch", "reference", "unstable", "memory")
    return {
        "graphs": len(rows),
        "mismatches": sum(kinds[kind] for kind in wrong),
        "crashes": len(rows) - kinds["right"] - sum(kinds[kind] for kind in wrong),
        "by_kind": dict(kinds),
        "nodes": sum(row.get("nodes", 0) for row in rows),
    }


def main() -> int:
    """See the module text."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first graph")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="neither bisect nor minimise")
    parser.add_argument("--findings", type=Path, default=Path("build/fuzz/graphs"))
    parser.add_argument("--report", type=Path, default=Path("build/reports/fuzz-graphs.json"))
    parser.add_argument("--replay", type=Path, help="folder of a finding")
    args = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "TVM_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    if args.replay:
        return replay(args.replay)
    _preload()
    console = Console(highlight=False, soft_wrap=True)
    seeds = [f"{args.seed}-{number}" for number in range(args.first, args.first + args.count)]
    rows: list[dict[str, Any]] = []
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="uif-fuzz-cache-") as cache:
        for row in outcomes(seeds, args.jobs, cache, not args.quick, args.findings):
            rows.append(row)
            if row["kind"] != "right":
                first = (row["message"].splitlines() or [""])[-1][:200]
                console.print(f"[red]{row['kind']}[/] {row['id']} -O{row.get('level')}", end=" ")
                console.print(f"{','.join(row.get('passes', []))}: {first}", markup=False)
            elif len(rows) % 100 == 0:
                console.print(f"{len(rows)} graphs, {time.monotonic() - start:.0f} s")
    summary = summarise(rows)
    args.report.parent.mkdir(parents=True, exist_ok=True)
    found = [row for row in rows if row["kind"] != "right"]
    body = {"seed": args.seed, "summary": summary, "rows": found}
    args.report.write_text(json.dumps(body, indent=2) + "\n")
    seconds = time.monotonic() - start
    console.print(f"{summary} in {seconds:.0f} s; findings: {args.findings}; {args.report}")
    return 1 if found else 0


def _preload() -> None:
    """Import what workers need, so that they, being forks, start with it."""
    import uif_tvm.compiler.lower
    from uif_tvm.frontends.onnx import import_onnx
    from uif_tvm.target.registry import get_target

    assert uif_tvm.compiler.lower
    assert import_onnx
    get_target("cpu")


if __name__ == "__main__":
    sys.exit(main())
