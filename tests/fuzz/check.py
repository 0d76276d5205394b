"""``make fuzz``: thousands of damaged models, each of which must be refused or run.

    python -m tests.fuzz.check [--count N] [--seed N] [--seeds "nodes cases corpus archives"]

Mutants are made from ONNX's node tests, from our cases, from small trained models, and from
``.pt2`` archives. They are tried in worker processes with limits on memory and time. What is
neither a typed refusal nor a model that runs is a finding: it is saved under build/fuzz with its
inputs, and listed in build/reports/fuzz.json. Exit code 0 when there is none.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from tests.fuzz import seeds
from tests.fuzz.attempt import ACCEPTED, attempt, fitting
from tests.fuzz.mutate import mutated
from tests.fuzz.mutate_archive import mutated_archive

TIMEOUT = 60.0
MEMORY = 4 << 30
#: Mutants that one worker tries before a fresh one takes over.
BATCH = 40
_SPAWN = multiprocessing.get_context("fork")
Seed = tuple[str, Any, dict[str, Any]]
#: Name, contents, inputs, level, suffix of the file.
Mutant = tuple[str, bytes, dict[str, Any], int, str]


def mutants(chosen: list[Seed], count: int, seed: int) -> Iterator[Mutant]:
    """Damaged models; the same for the same arguments."""
    for number in range(count):
        rng = random.Random(f"{seed}/{number}")
        name, model, inputs = rng.choice(chosen)
        if isinstance(model, bytes):
            data, feed, suffix = mutated_archive(model, rng), inputs, "pt2"
        else:
            data, suffix = mutated(model, rng), "onnx"
            feed = fitting(data, inputs) if rng.random() < 0.6 else inputs
        yield f"{name}-{seed}-{number}", data, feed, rng.choice((0, 2)), suffix


def _work(batch: list[Mutant], pipe: Any) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for _, *mutant in batch:
        pipe.send(attempt(*mutant))


def outcomes(batch: list[Mutant], timeout: float = TIMEOUT) -> Iterator[dict[str, str]]:
    """What becomes of each; the worker is replaced when it crashes or hangs."""
    rest = list(batch)
    while rest:
        ours, theirs = _SPAWN.Pipe(duplex=False)
        worker = _SPAWN.Process(target=_work, args=(rest, theirs), daemon=True)
        worker.start()
        theirs.close()
        try:
            while rest:
                if not ours.poll(timeout):
                    yield {"outcome": "timeout", "message": f"not done in {timeout:g} s"}
                    rest.pop(0)
                    break
                try:
                    row = ours.recv()
                except EOFError:
                    worker.join(10)
                    yield {"outcome": "crash", "message": f"exit code {worker.exitcode}"}
                    rest.pop(0)
                    break
                rest.pop(0)
                yield row
        finally:
            worker.kill()
            worker.join()
            ours.close()


def _preload(seed: Seed) -> None:
    """Import what workers need, so that they, being forks, start with it."""
    from uif_tvm.frontends.onnx import import_onnx
    from uif_tvm.target.registry import get_target

    get_target("cpu")
    if isinstance(seed[1], bytes):
        pass
    else:
        import_onnx(seed[1], seed[2])


def save(folder: Path, mutant: Mutant, row: dict[str, str]) -> None:
    """A finding as a model, its inputs and what happened."""
    name, data, inputs, level, suffix = mutant
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    (place / f"model.{suffix}").write_bytes(data)
    plain = {f"in{i}": array for i, array in enumerate(inputs.values())}
    np.savez(place / "inputs.npz", meta=json.dumps(list(inputs)), **plain)  # type: ignore[arg-type]
    (place / "finding.json").write_text(json.dumps(row | {"level": level}, indent=2) + "\n")


def main() -> int:
    """See the module text."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", default="nodes cases corpus archives")
    parser.add_argument("--findings", type=Path, default=Path("build/fuzz"))
    parser.add_argument("--report", type=Path, default=Path("build/reports/fuzz.json"))
    args = parser.parse_args()
    sources: dict[str, Callable[[], Iterator[Seed]]] = {
        "nodes": seeds.node_tests,
        "cases": seeds.cases,
        "corpus": seeds.corpus,
        "archives": seeds.archives,
    }
    chosen = [seed for name in args.seeds.split() for seed in sources[name]()]
    console = Console(highlight=False)
    console.print(f"{len(chosen)} whole models, {args.count} mutants, seed {args.seed}")
    for kind in {type(model): seed for seed in chosen for model in seed[1:2]}.values():
        _preload(kind)
    rows: list[dict[str, str]] = []
    start, batch = time.perf_counter(), list[Mutant]()
    made = mutants(chosen, args.count, args.seed)
    while batch := list(itertools.islice(made, BATCH)):
        for mutant, row in zip(batch, outcomes(batch), strict=True):
            rows.append({"id": mutant[0], **row})
            if row["outcome"] not in ACCEPTED:
                save(args.findings, mutant, row)
                last = (row["message"].splitlines() or [""])[-1]
                console.print(f"[red]{row['outcome']}[/] {mutant[0]}: ", end="")
                console.print(last[:200], markup=False)
    counts = Counter(row["outcome"] for row in rows)
    findings = [row for row in rows if row["outcome"] not in ACCEPTED]
    summary = {"mutants": len(rows), "findings": len(findings), "by_outcome": dict(counts)}
    args.report.parent.mkdir(parents=True, exist_ok=True)
    body = {"seed": args.seed, "summary": summary, "findings": findings}
    args.report.write_text(json.dumps(body, indent=2) + "\n")
    seconds = time.perf_counter() - start
    console.print(f"{len(findings)} findings in {seconds:.0f} s; {dict(counts)}; {args.report}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
