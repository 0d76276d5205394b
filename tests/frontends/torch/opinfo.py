"""PyTorch's operator database through the frontend: right, wrong, refused or crashed.

    python tests/frontends/torch/opinfo.py [--samples N] [--dtypes float32,int64,bool]
        [--ops REGEX] [--jobs N] [--output build/reports/torch-ops.json]

Every sample input of every operator (``torch.testing._internal.common_methods_invocations.op_db``)
is exported, imported, compiled and run in a worker process, and compared with eager PyTorch.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import sys
import time
import types
import warnings
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

#: Longest time for one sample, in seconds: export, compile and run.
TIMEOUT_S = 120
#: Samples with more elements than this say no more than smaller ones.
MAX_ELEMENTS = 1 << 18
TOLERANCE = {"float32": (1e-4, 1e-5), "float64": (1e-6, 1e-8)}


#: Operators whose positions are arbitrary among equal values -> which argument is the axis.
TIES = {"kthvalue": 1, "topk": 1, "median": 0, "nanmedian": 0}


def _same_elements(name: str, sample: Any, have: Any, want: Any) -> bool:
    """Whether two results of positions pick equal elements."""
    import numpy as np

    data = sample.input.numpy()
    place = TIES[name]
    axis = sample.args[place] if len(sample.args) > place else sample.kwargs.get("dim", -1)
    if have.ndim < data.ndim:
        have, want = np.expand_dims(have, axis), np.expand_dims(want, axis)
    picked = [np.take_along_axis(data, index, axis) for index in (have, want)]
    return bool(np.array_equal(picked[0], picked[1], equal_nan=data.dtype.kind == "f"))


def operator_database() -> list[Any]:
    """PyTorch's list of operators with sample inputs."""
    try:
        import expecttest  # noqa: F401
    except ImportError:  # a test-only package that the database imports but does not need
        import unittest

        stub = types.ModuleType("expecttest")
        stub.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        stub.assert_expected_inline = None  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stub
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def samples(op: Any, dtype: Any, limit: int) -> Iterator[tuple[int, Any]]:
    """The first sample inputs of an operator for one dtype."""
    import torch

    torch.manual_seed(0)
    for index, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=False)):
        if index >= limit:
            return
        yield index, sample


def check(op: Any, sample: Any) -> tuple[str, str]:
    """(verdict, message) for one sample."""
    import numpy as np
    import torch
    from running import run
    from torch.utils import _pytree as pytree

    from uif_tvm.errors import UifError
    from uif_tvm.frontends.torch import import_torch
    from uif_tvm.frontends.torch.dtypes import tensor_to_numpy

    if "empty" in op.name:
        return "skipped", "uninitialised memory"
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    tensors = [leaves[i].detach().clone() for i in where]
    if sum(t.numel() for t in tensors) > MAX_ELEMENTS:
        return "skipped", "large"

    class Call(torch.nn.Module):
        def forward(self, *values: Any) -> Any:
            filled = list(leaves)
            for i, value in zip(where, values, strict=True):
                filled[i] = value
            first, args, kwargs = pytree.tree_unflatten(filled, spec)
            if op.name in ("sort", "argsort"):  # ties may come in any order unless asked
                kwargs = {**kwargs, "stable": True}
            return op(first, *args, **kwargs)

    try:
        with torch.no_grad():
            eager = pytree.tree_leaves(Call()(*(t.clone() for t in tensors)))
    except Exception as error:
        return "skipped", f"eager PyTorch fails: {type(error).__name__}"
    expected = [leaf for leaf in eager if isinstance(leaf, torch.Tensor)]
    if not expected:
        return "skipped", "no tensor result"
    try:
        imported = import_torch(Call(), tuple(tensors))
    except UifError as error:
        return "refused", str(error).replace("\n", " ")[:300]
    names = [spec.name for spec in imported.signature.inputs]
    values = [tensor_to_numpy(tensors[int(name.rsplit("_", 1)[-1])]) for name in names]
    results = run(imported.mod, values)
    if len(results) != len(eager):
        return "wrong", f"{len(results)} results, expected {len(eager)}"
    for want, have in zip(expected, results, strict=False):
        reference = tensor_to_numpy(want)
        if reference.dtype != have.dtype or reference.shape != have.shape:
            return "wrong", f"{have.dtype}{have.shape}, want {reference.dtype}{reference.shape}"
        rtol, atol = TOLERANCE.get(str(reference.dtype), (0, 0))
        close = np.isclose(have, reference, rtol, atol, equal_nan=True)
        if not close.all() and reference.dtype == "int64" and op.name in TIES:
            close = np.asarray(_same_elements(op.name, sample, have, reference))
        if not close.all():
            at = tuple(int(i) for i in np.argwhere(~np.broadcast_to(close, have.shape))[0])
            return "wrong", f"at {at}: {have[at]!r}, want {reference[at]!r}"
    return "passed", ""


def worker(pipe: Connection) -> None:
    """Answer (operator number, dtype name, sample limit) requests until told to stop."""
    sys.path.insert(0, str(Path(__file__).parent))
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    database = operator_database()
    pipe.send(("ready", 0, "", ""))
    while (request := pipe.recv()) is not None:
        number, dtype, limit, skip = request
        op = database[number]
        try:
            for index, sample in samples(op, getattr(torch, dtype), limit):
                if index < skip:
                    continue
                pipe.send(("start", index, "", ""))
                try:
                    verdict, message = check(op, sample)
                except Exception as error:
                    verdict, message = "failed", f"{type(error).__name__}: {error}"[-300:]
                pipe.send(("result", index, verdict, message))
        except Exception as error:
            pipe.send(("result", 0, "skipped", f"no samples: {type(error).__name__}"))
        pipe.send(("done", 0, "", ""))


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
        self.task: tuple[int, str, int, int] | None = None
        self.sample = -1
        self.deadline = time.monotonic() + 180
        self.ready = False

    def give(self, task: tuple[int, str, int, int]) -> None:
        self.task, self.sample = task, -1
        self.deadline = time.monotonic() + TIMEOUT_S
        self.pipe.send(task)

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _log(row: dict[str, Any]) -> None:
    """One line a finding, so that a long run can be watched."""
    if row["verdict"] not in ("passed", "skipped"):
        sys.stderr.write(json.dumps(row) + "\n")
        sys.stderr.flush()


def measure(
    tasks: list[tuple[int, str, int, int]], names: list[str], jobs: int
) -> list[dict[str, Any]]:
    """Work through the tasks; a worker that dies costs the sample it was at."""
    rows: list[dict[str, Any]] = []
    todo = list(reversed(tasks))
    slots = [Slot() for _ in range(jobs)]

    def note(slot: Slot, index: int, verdict: str, message: str) -> None:
        number, dtype, *_ = slot.task or (0, "")
        row = {
            "op": names[number],
            "dtype": dtype,
            "sample": index,
            "verdict": verdict,
            "message": message,
        }
        rows.append(row)
        _log(row)

    while todo or any(slot.task or not slot.ready for slot in slots):
        for pipe in wait([slot.pipe for slot in slots], timeout=1.0):
            slot = next(s for s in slots if s.pipe is pipe)
            try:
                kind, index, verdict, message = slot.pipe.recv()
            except EOFError:
                _revive(slot, todo, note, "process died")
                continue
            if kind == "start":
                slot.sample, slot.deadline = index, time.monotonic() + TIMEOUT_S
            elif kind == "result":
                note(slot, index, verdict, message)
            else:
                slot.ready, slot.task = True, None
                if todo:
                    slot.give(todo.pop())
        for slot in slots:
            if (slot.task or not slot.ready) and time.monotonic() > slot.deadline:
                _revive(slot, todo, note, f"no answer in {TIMEOUT_S} s")
            elif slot.ready and slot.task is None and todo:
                slot.give(todo.pop())
    for slot in slots:
        slot.stop()
    return rows


def _revive(slot: Slot, todo: list[Any], note: Any, message: str) -> None:
    if slot.task is not None:
        note(slot, max(slot.sample, 0), "crashed", message)
        number, dtype, limit, _ = slot.task
        if slot.sample + 1 < limit and slot.sample >= 0:
            todo.append((number, dtype, limit, slot.sample + 1))
    slot.stop()
    slot.start()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--dtypes", default="float32,int64,bool")
    parser.add_argument("--ops", default="")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("build/reports/torch-ops.json"))
    options = parser.parse_args()
    import torch

    database = operator_database()
    names = [f"{op.name}.{op.variant_test_name}".rstrip(".") for op in database]
    tasks = [
        (number, dtype, options.samples, 0)
        for dtype in options.dtypes.split(",")
        for number, op in enumerate(database)
        if re.search(options.ops, names[number])
        and getattr(torch, dtype) in op.supported_dtypes("cpu")
    ]
    rows = measure(tasks, names, options.jobs)
    counts = Counter(row["verdict"] for row in rows)
    total = sum(counts.values()) - counts["skipped"]
    summary = {"passed": counts["passed"], "total": total} | {
        verdict: counts[verdict] for verdict in ("wrong", "refused", "failed", "crashed", "skipped")
    }
    rows.sort(key=lambda row: (row["op"], row["dtype"], row["sample"]))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({"summary": summary, "rows": rows}, indent=1))
    sys.stdout.write(json.dumps(summary) + "\n")
    return 1 if counts["wrong"] or counts["crashed"] else 0


if __name__ == "__main__":
    sys.exit(main())
