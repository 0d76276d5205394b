"""The search for the smallest model: phases, candidates, and the values they start from."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uif_tvm.artifact.files import replacing
from uif_tvm.errors import ImportModelError, UsageError
from uif_tvm.selection.arrays import Array, load_arrays, save_arrays
from uif_tvm.selection.isolation import Pool
from uif_tvm.selection.reduction import rewrite
from uif_tvm.selection.reduction.candidate import (
    Candidate,
    Part,
    Source,
    build,
    unsettled,
    whole,
)
from uif_tvm.selection.reduction.checks import Check
from uif_tvm.selection.reduction.ddmin import ddmin

Progress = Callable[[str, int, int], None]

_EVALUATE = "uif_tvm.selection.reduction.values:capture_values"
#: Times as long as one check may evaluating a model take.
_CAPTURE_FACTOR = 10
#: Above this many nodes, cut edges are tried as constants too.
_FEW_NODES = 3


@dataclass(frozen=True)
class Step:
    """One phase: what was tried, how many nodes it left, and the checks and seconds it took."""

    name: str
    nodes: int
    checks: int
    seconds: float


@dataclass
class ReduceResult:
    """What a reduction made.

    Args:
        path, inputs: the smallest model, and an ``.npz`` with the values of its inputs.
        nodes_before, nodes: nodes of the model given (functions expanded), and of that one.
        operators: of the smallest model, in order.
        detail: what the check says about it.
        complete: False when the budget ended it early.
    """

    path: Path
    inputs: Path
    nodes_before: int
    nodes: int
    operators: list[str]
    detail: str
    checks: int = 0
    seconds: float = 0.0
    complete: bool = True
    steps: list[Step] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "output": str(self.path),
            "inputs": str(self.inputs),
            "nodes_before": self.nodes_before,
            "nodes": self.nodes,
            "operators": self.operators,
            "detail": self.detail,
            "checks": self.checks,
            "seconds": round(self.seconds, 3),
            "complete": self.complete,
            "steps": [vars(step) for step in self.steps],
        }


class OutOfTime(Exception):
    """The budget is spent."""


class Search:
    """State of one reduction: the smallest candidate so far, and the values of its run."""

    result: ReduceResult
    source: Source

    def __init__(
        self,
        pool: Pool,
        scratch: Path,
        output: Path,
        check: Check,
        limit: float,
        deadline: float | None,
        progress: Progress | None,
    ) -> None:
        self._pool = pool
        self._scratch = scratch
        self._output = output
        self._check = check
        self._limit = limit
        self._deadline = deadline
        self._tell = progress or (lambda phase, done, total: None)
        self._answers: dict[bytes, bool] = {}
        self._asked = 0
        self._phase = ""

    # --- the plan ----------------------------------------------------------------------------

    def open(self, model: Any, inputs: Mapping[str, Any] | None) -> None:
        """Evaluate the model, and make sure that it shows the fault."""
        self._phase = "evaluating the model"
        self._tell(self._phase, 0, 0)
        path = self._as_file(model)
        feeds = None
        if inputs:
            feeds = self._scratch / "given.npz"
            save_arrays(feeds, dict(inputs))
        self.source = self._evaluated(path, feeds)
        first = build(self.source, whole(self.source))
        if first is None:
            raise ImportModelError(
                "the model has no nodes that its outputs depend on", code="UIF-REDUCE-EMPTY"
            )
        nodes = len(self.source.proto.graph.node)
        inputs_path = self._output.with_suffix(".inputs.npz")
        self.result = ReduceResult(self._output, inputs_path, nodes, nodes, [], "")
        if not self._there(first):
            raise UsageError(
                f"the model as it is does not show the fault: {self.result.detail}",
                code="UIF-REDUCE-RIGHT",
                hint="run the check by hand on the model: exit code 0 must mean that the fault "
                "is there; give the inputs that show it with --input",
            )

    def run(self) -> None:
        """All phases, until none makes it smaller."""
        self._step("constants computed", self._settle)
        self._step("outputs", self._fewer_outputs)
        self._step("nodes", self._fewer_nodes)
        while self._step("bodies in place of If and Loop", self._open_bodies):
            self._step("nodes", self._fewer_nodes)
        if len(self.source.proto.graph.node) > _FEW_NODES:
            self._step("nodes, cut edges as constants", lambda: self._fewer_nodes(constants=True))
        self._step("outputs", self._fewer_outputs)
        self._step("dimensions", lambda: self._rewrite(rewrite.smaller))
        self._step("attributes and operands", lambda: self._rewrite(rewrite.fewer_details))

    def _step(self, name: str, phase: Callable[[], bool]) -> bool:
        self._phase = name
        start, asked = time.monotonic(), self._asked
        try:
            return phase()
        finally:
            step = Step(name, self.result.nodes, self._asked - asked, time.monotonic() - start)
            self.result.steps.append(step)

    def _settle(self) -> bool:
        part = unsettled(self.source)
        if len(part.nodes) == len(self.source.proto.graph.node) or not self._try(part):
            return False
        self._adopt(part)
        return True

    def _fewer_outputs(self) -> bool:
        part = whole(self.source)
        if part.outputs is None or len(part.outputs) < 2:
            return False
        before = len(part.outputs)

        def fails(names: list[str]) -> bool:
            return self._try(Part(part.nodes, tuple(names)))

        kept = ddmin(part.outputs, fails)
        if len(kept) < before:
            self._adopt(Part(part.nodes, tuple(kept)))
        return len(kept) < before

    def _fewer_nodes(self, constants: bool = False) -> bool:
        nodes = list(self.source.proto.graph.node)
        if len(nodes) < 2:
            return False

        def fails(some: list[int]) -> bool:
            return self._try(Part(tuple(nodes[i] for i in some), constants=constants))

        kept = ddmin(range(len(nodes)), fails)
        if len(kept) < len(nodes):
            self._adopt(Part(tuple(nodes[i] for i in kept), constants=constants))
        return len(kept) < len(nodes)

    def _open_bodies(self) -> bool:
        values = {**self.source.values, **self.source.weights}
        return self._first_that_fails(rewrite.open_bodies(self.source.proto, self._feeds(), values))

    def _rewrite(self, propose: Callable[[Any, Mapping[str, Array]], Iterator[Any]]) -> bool:
        """Apply proposals as long as one of them keeps the fault."""
        changed = False
        while self._first_that_fails(propose(self.source.proto, self._feeds())):
            changed = True
        return changed

    def _first_that_fails(self, proposals: Iterator[rewrite.Proposal]) -> bool:
        for _, proto, feeds in proposals:
            source = self._proposed(proto, feeds)
            if source is None:
                continue
            candidate = build(source, whole(source))
            if candidate is not None and self._there(candidate):
                self.source = source
                return True
        return False

    # --- candidates --------------------------------------------------------------------------

    def _try(self, part: Part) -> bool:
        candidate = build(self.source, part)
        return candidate is not None and self._there(candidate)

    def _adopt(self, part: Part) -> None:
        """Make a part that shows the fault the source of what follows."""
        candidate = build(self.source, part)
        if candidate is None:  # not so: it was built when it was checked
            return
        names = {name for node in candidate.proto.graph.node for name in node.output}
        known = {*names, *candidate.feeds}
        self.source = Source(
            candidate.proto,
            {name: value for name, value in self.source.values.items() if name in known},
            _weights(candidate.proto),
            self.source.fixed,
            self.source.guessed,
            self.source.lists,
        )

    def _there(self, candidate: Candidate) -> bool:
        """Whether the fault is there; what shows it is written out if it is the smallest."""
        data = candidate.proto.SerializeToString(deterministic=True)
        key = hashlib.blake2b(data, digest_size=16)
        for name, array in candidate.feeds.items():
            key.update(name.encode())
            key.update(array.tobytes())
        if key.digest() not in self._answers:
            late = self._deadline is not None and time.monotonic() > self._deadline
            if late and self.result.operators:  # the model itself is asked about in any case
                raise OutOfTime
            self._answers[key.digest()] = self._ask(candidate, data)
        return self._answers[key.digest()]

    def _ask(self, candidate: Candidate, data: bytes) -> bool:
        with tempfile.TemporaryDirectory(dir=self._scratch) as name:
            folder = Path(name)
            (folder / "model.onnx").write_bytes(data)
            save_arrays(folder / "inputs.npz", candidate.feeds)
            if candidate.expected:
                save_arrays(folder / "expected.npz", candidate.expected)
            answer = self._check(folder)
            self._asked += 1
            self.result.checks = self._asked
            if answer.there:
                self._write(data, folder / "inputs.npz")
                self.result.nodes = len(candidate.proto.graph.node)
                self.result.operators = [_op(node) for node in candidate.proto.graph.node]
            if answer.there or not self.result.operators:
                self.result.detail = answer.detail
        self._tell(self._phase, self.result.nodes, self.result.nodes_before)
        return answer.there

    def _write(self, data: bytes, inputs: Path) -> None:
        with replacing(self.result.path) as file:
            file.write(data)
        with replacing(self.result.inputs) as file:
            file.write(inputs.read_bytes())

    # --- evaluation --------------------------------------------------------------------------

    def _feeds(self) -> dict[str, Array]:
        declared = [value.name for value in self.source.proto.graph.input]
        return {name: self.source.values[name] for name in declared}

    def _as_file(self, model: Any) -> Path:
        if isinstance(model, str | os.PathLike):
            return Path(model)
        path = self._scratch / "given.onnx"
        path.write_bytes(model.SerializeToString())
        return path

    def _proposed(self, proto: Any, feeds: Mapping[str, Array]) -> Source | None:
        """A rewritten model with its own values; ``None`` if it does not run."""
        with tempfile.TemporaryDirectory(dir=self._scratch) as name:
            path = Path(name, "proposed.onnx")
            path.write_bytes(proto.SerializeToString())
            save_arrays(Path(name, "feeds.npz"), feeds)
            try:
                source = self._evaluated(path, Path(name, "feeds.npz"))
            except ImportModelError:
                return None
        computed = all(value.name in source.values for value in source.proto.graph.output)
        before = all(v.name in self.source.values for v in self.source.proto.graph.output)
        return source if computed or not before else None

    def _evaluated(self, path: Path, feeds: Path | None) -> Source:
        """Run a model node by node in a worker; again without ONNX Runtime if that dies."""
        import onnx

        folder = self._scratch / "values"
        arguments = {"model": str(path), "inputs": None if feeds is None else str(feeds)}
        seconds = self._limit * _CAPTURE_FACTOR
        outcome = self._pool.run(_EVALUATE, seconds, folder=str(folder), **arguments)
        if outcome.how in ("crash", "timeout"):
            outcome = self._pool.run(
                _EVALUATE, seconds, folder=str(folder), runtime=False, **arguments
            )
        if outcome.how != "done":
            error = outcome.value.get("error", {})
            raise ImportModelError(
                error.get("message") or f"the model cannot be evaluated: {outcome.detail}",
                code=error.get("code", "UIF-REDUCE-EVALUATE"),
                hint=error.get("hint") or "does it run in ONNX Runtime with these inputs?",
            )
        proto = onnx.load(folder / "model.onnx")
        values = load_arrays(folder / "values.npz") | load_arrays(folder / "inputs.npz")
        return Source(
            proto,
            values,
            _weights(proto),
            frozenset(outcome.value["fixed"]),
            frozenset(outcome.value["guessed"]),
            frozenset(outcome.value["lists"]),
        )


def _weights(proto: Any) -> dict[str, Array]:
    from uif_tvm.frontends.onnx.tensors import to_numpy
    from uif_tvm.selection.coverage.capture_onnx import read_tensor

    return {item.name: read_tensor(item, None, to_numpy) for item in proto.graph.initializer}


def _op(node: Any) -> str:
    return f"{node.domain}::{node.op_type}" if node.domain else str(node.op_type)
