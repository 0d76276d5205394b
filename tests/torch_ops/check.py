"""``make torch-ops``: PyTorch's operator database through export, load and run.

    python -m tests.torch_ops.check [--samples N] [--dtypes float32,int64,bool] [--ops REGEX]
        [--shard I/N] [--jobs N] [--report build/reports/torch-ops.json]

The first samples of every operator (``torch.testing._internal.common_methods_invocations.op_db``)
are compared with eager PyTorch in worker processes. The report's top level counts the operators
that PyTorch takes apart into its core set alone (see :func:`sample.is_core`); ``whole`` counts the
whole database. Exit code 0 when no answer is wrong, nothing crashed, and the samples that are
refused are those that ``known_failures.json`` lists with reasons; 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import sys
import time
import warnings
from collections import Counter
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.torch_ops.sample import Verdict, check, is_core, op_label, operator_database, samples

HERE = Path(__file__).parent
#: Longest time for one sample, in seconds: export, compile and run.
TIMEOUT_S = 180
#: Longest time for a worker to import everything, in seconds.
START_S = 600

Task = tuple[int, str, int, int]  # operator, dtype, number of samples, first sample
Row = dict[str, Any]


def worker(pipe: Connection) -> None:
    """Answer tasks until told to stop: one message before and one after each sample."""
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    database = operator_database()
    pipe.send(("ready",))
    while (task := pipe.recv()) is not None:
        number, dtype, limit, skip = task
        op = database[number]
        core: bool | None = None
        try:
            for index, sample in samples(op, getattr(torch, dtype), limit):
                core = is_core(op, sample) if core is None else core
                if index < skip:
                    continue
                pipe.send(("start", index))
                try:
                    verdict = check(op, sample)
                except Exception as error:
                    verdict = Verdict("failed", f"{type(error).__name__}: {error}"[-300:])
                pipe.send(("result", index, core, verdict))
        except Exception as error:
            verdict = Verdict("skipped", f"no samples: {type(error).__name__}")
            pipe.send(("result", 0, bool(core), verdict))
        pipe.send(("done",))


class Slot:
    """One worker process and what it is doing."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=worker, args=(other,), daemon=True)
        self.process.start()
        other.close()
        self.task: Task | None = None
        self.sample = -1
        self.ready = False
        self.deadline = time.monotonic() + START_S

    def give(self, task: Task) -> None:
        self.task, self.sample = task, -1
        self.deadline = time.monotonic() + TIMEOUT_S
        self.pipe.send(task)

    @property
    def busy(self) -> bool:
        return self.task is not None or not self.ready

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


class Sweep:
    """Works through tasks; a worker that dies costs the sample it was at."""

    def __init__(self, tasks: list[Task], names: list[str], jobs: int) -> None:
        self.todo = list(reversed(tasks))
        self.names = names
        self.rows: list[Row] = []
        self.slots = [Slot() for _ in range(jobs)]
        self.console = Console(stderr=True, highlight=False)

    def run(self) -> list[Row]:
        while self.todo or any(slot.busy for slot in self.slots):
            for pipe in wait([slot.pipe for slot in self.slots], timeout=1.0):
                slot = next(s for s in self.slots if s.pipe is pipe)
                try:
                    self._hear(slot, slot.pipe.recv())
                except (EOFError, ConnectionResetError):
                    self._revive(slot, "process died")
            for slot in self.slots:
                if slot.busy and time.monotonic() > slot.deadline:
                    self._revive(slot, f"no answer in {TIMEOUT_S} s")
                elif not slot.busy and self.todo:
                    slot.give(self.todo.pop())
        for slot in self.slots:
            slot.stop()
        return sorted(self.rows, key=lambda row: (row["op"], row["dtype"], row["sample"]))

    def _hear(self, slot: Slot, message: tuple[Any, ...]) -> None:
        if message[0] == "start":
            slot.sample, slot.deadline = message[1], time.monotonic() + TIMEOUT_S
        elif message[0] == "result":
            self._note(slot, *message[1:])
        else:
            slot.ready, slot.task = True, None

    def _note(self, slot: Slot, index: int, core: bool | None, verdict: Verdict) -> None:
        number, dtype, *_ = slot.task or (0, "")
        row = {"op": self.names[number], "dtype": dtype, "sample": index, "core": core}
        row |= vars(verdict)
        self.rows.append(row)
        if verdict.status not in ("passed", "skipped"):
            self.console.print(json.dumps(row), markup=False, soft_wrap=True)

    def _revive(self, slot: Slot, message: str) -> None:
        if slot.task is not None:
            self._note(slot, max(slot.sample, 0), None, Verdict("crashed", message))
            number, dtype, limit, _ = slot.task
            if 0 <= slot.sample < limit - 1:
                self.todo.append((number, dtype, limit, slot.sample + 1))
        slot.stop()
        slot.start()


def summarise(rows: list[Row]) -> dict[str, Any]:
    """Counts of samples; ``passed`` and ``total`` are what to watch, skipped ones do not count."""
    counts = Counter(row["status"] for row in rows)
    ways = Counter(row["way"] for row in rows if row["status"] == "passed")
    return {
        "passed": counts["passed"],
        "total": sum(counts.values()) - counts["skipped"],
        "native_or_composed": ways["native"] + ways["composed"],
        **{way: ways[way] for way in ("native", "composed", "host")},
        **{kind: counts[kind] for kind in ("wrong", "refused", "failed", "crashed", "skipped")},
    }


def settled(rows: list[Row]) -> list[Row]:
    """Rows with each operator's core membership by one vote: every dtype's, where it is known."""
    votes: dict[str, bool] = {}
    for row in rows:
        if row["core"] is not None and row["status"] != "skipped":
            votes[row["op"]] = votes.get(row["op"], True) and row["core"]
    return [row | {"core": votes.get(row["op"], False)} for row in rows]


def surprises(rows: list[Row], known: dict[str, dict[str, str]]) -> list[str]:
    """Where results depart from the list of known failures, one line each.

    Args:
        known: ``operators``: ``operator:dtype`` -> why samples of it are refused; ``reasons``:
            pattern of a refusal's message -> why all such refusals are right.
    """
    listed = known["operators"]
    reasons = [re.compile(pattern) for pattern in known["reasons"]]
    refused = [row for row in rows if row["status"] in ("refused", "failed")]
    failing = {_key(r) for r in refused if not any(p.search(r["message"]) for p in reasons)}
    found = [f"{key} fails and is not listed" for key in sorted(failing - listed.keys())]
    cured = (listed.keys() & set(map(_key, rows))) - failing
    return found + [f"{key} is listed and passes: take it off the list" for key in sorted(cured)]


def _key(row: Row) -> str:
    return f"{row['op']}:{row['dtype']}"


def main() -> int:
    """See the module text."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--dtypes", default="float32,int64,bool")
    parser.add_argument("--ops", default="")
    parser.add_argument("--shard", default="0/1", metavar="I/N")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--report", type=Path, default=Path("build/reports/torch-ops.json"))
    options = parser.parse_args()
    import torch

    database = operator_database()
    names = [op_label(op) for op in database]
    share, shares = map(int, options.shard.split("/"))
    tasks = [
        (number, dtype, options.samples, 0)
        for dtype in options.dtypes.split(",")
        for number, op in enumerate(database)
        if number % shares == share
        and re.search(options.ops, names[number])
        and getattr(torch, dtype) in op.supported_dtypes("cpu")
    ]
    rows = settled(Sweep(tasks, names, options.jobs).run())
    core, whole = summarise([row for row in rows if row["core"]]), summarise(rows)
    known = json.loads((HERE / "known_failures.json").read_text())
    unexpected = surprises(rows, known)
    report = {
        "passed": core["passed"],
        "total": core["total"],
        "summary": core | {"shard": options.shard, "whole": whole, "unexpected": unexpected},
        "known_failures": known,
        "rows": rows,
    }
    options.report.parent.mkdir(parents=True, exist_ok=True)
    options.report.write_text(json.dumps(report, indent=1) + "\n")
    console = Console(highlight=False)
    for line in unexpected:
        console.print(line, markup=False)
    console.print(f"core: {core}\nwhole: {whole}\nreport: {options.report}", markup=False)
    bad = whole["wrong"] or whole["crashed"] or unexpected
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
