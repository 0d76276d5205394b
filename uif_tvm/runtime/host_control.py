"""Loop and Scan for ONNX's reference evaluator, as the specification has them.

The evaluator's own (onnx 1.23) join scan outputs by ``vstack`` instead of stacking them, never
run a Loop without a condition, and know Scan neither along other axes nor backwards nor before
version 9. These take their place: pass :func:`corrected_ops` as ``new_ops``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

_trial = threading.local()


class TooLongError(Exception):
    """A loop on example data does not end within the limit."""


@contextmanager
def limited(steps: int) -> Iterator[None]:
    """Let loops evaluated by this thread end in :class:`TooLongError` after ``steps`` rounds."""
    _trial.steps = steps
    try:
        yield
    finally:
        _trial.steps = None


def _check_limit(step: int) -> None:
    limit = getattr(_trial, "steps", None)
    if limit is not None and step > limit:
        raise TooLongError(f"more than {limit} rounds")


@cache
def corrected_ops() -> tuple[type, ...]:
    """Implementations for ``ReferenceEvaluator(..., new_ops=...)``."""
    from onnx.reference.op_run import OpRun
    from onnx.reference.ops.op_loop import Loop as BaseLoop

    class Loop(BaseLoop):  # type: ignore[misc]
        """The body again and again while the condition holds and the count is not reached."""

        op_domain = ""

        def _run(  # type: ignore[override]
            self, limit: Any, going: Any, *state: Any, context: Any = None, **options: Any
        ) -> tuple[Any, ...]:
            names = self.body.input_names
            values, step = list(state), 0
            going = going is None or bool(np.asarray(going).reshape(-1)[0])
            count = None if limit is None else int(np.asarray(limit).reshape(-1)[0])
            kept: list[list[Any]] = [[] for _ in range(len(self.body.output_names) - 1 - self.N)]
            while going and (count is None or step < count):
                _check_limit(step)
                own = [np.array(step, np.int64), np.array(True), *values]
                given = {**(context or {}), **dict(zip(names, own, strict=True))}
                results = self._run_body(given, **_passed(options))
                going = bool(np.asarray(results[0]).reshape(-1)[0])
                values = list(results[1 : 1 + self.N])
                for items, item in zip(kept, results[1 + self.N :], strict=True):
                    items.append(item)
                step += 1
            outputs = self.body.output_types_[1 + self.N :] if step == 0 else []
            stacked = (
                [_nothing(kind) for kind in outputs] if step == 0 else [np.stack(k) for k in kept]
            )
            return tuple(self._check_and_fix_outputs((*values, *stacked)))

    class Scan(OpRun):  # type: ignore[misc]
        """The body over slices of the scanned inputs."""

        op_domain = ""

        def need_context(self) -> bool:
            """Bodies read values of the graph around them."""
            return True

        def _run(self, *inputs: Any, context: Any = None, **options: Any) -> tuple[Any, ...]:
            if self.run_params["opsets"][""] < 9:
                results = _scan_batches(self, inputs, context, options)
            else:
                results = _scan(self, list(inputs), context, options)
            return tuple(self._check_and_fix_outputs(tuple(results)))

    class Optional(OpRun):  # type: ignore[misc]
        """The value itself, or nothing; the evaluator's own puts it into a list."""

        op_domain = ""

        def _run(self, x: Any = None, type: Any = None) -> tuple[Any, ...]:
            return (x,)

    return Loop, Scan, Optional


def _passed(options: dict[str, Any]) -> dict[str, Any]:
    """What a body is run with, besides its inputs."""
    return {name: options.get(name) for name in ("attributes", "bindings")}


def _nothing(kind: Any) -> Any:
    """The stack of no items of a type."""
    from onnx import helper

    tensor = kind.tensor_type
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type) if tensor.elem_type else np.float32
    return np.zeros([0, *[dim.dim_value for dim in tensor.shape.dim]], dtype)


def _list(op: Any, name: str, count: int) -> list[int]:
    return list(getattr(op, name, None) or [0] * count)


def _scan(op: Any, inputs: list[Any], context: Any, options: dict[str, Any]) -> list[Any]:
    """Scan since version 9."""
    scanned, names = int(op.num_scan_inputs), op.body.input_names
    carried = len(inputs) - scanned
    state, sources = inputs[:carried], inputs[carried:]
    axes = _list(op, "scan_input_axes", scanned)
    backwards = _list(op, "scan_input_directions", scanned)
    sources = [np.moveaxis(source, axis, 0) for source, axis in zip(sources, axes, strict=True)]
    kept: list[list[Any]] = [[] for _ in range(len(op.body.output_names) - carried)]
    length = len(sources[0])
    for step in range(length):
        items = [
            s[length - 1 - step if b else step] for s, b in zip(sources, backwards, strict=True)
        ]
        given = {**(context or {}), **dict(zip(names, [*state, *items], strict=True))}
        results = op._run_body(given, **_passed(options))
        state = list(results[:carried])
        for found, item in zip(kept, results[carried:], strict=True):
            found.append(item)
    outputs = []
    to_axes = _list(op, "scan_output_axes", len(kept))
    flipped = _list(op, "scan_output_directions", len(kept))
    for place, (items, axis, flip) in enumerate(zip(kept, to_axes, flipped, strict=True)):
        if not items:
            outputs.append(_nothing(op.body.output_types_[carried + place]))
        else:
            outputs.append(np.stack(items[::-1] if flip else items, axis))
    return [*state, *outputs]


def _scan_batches(op: Any, inputs: Any, context: Any, options: dict[str, Any]) -> list[Any]:
    """Scan of version 8: a batch axis first, then the scanned one; lengths per batch item."""
    lengths, scanned = inputs[0], int(op.num_scan_inputs)
    values = list(inputs[1:])
    carried, names = len(values) - scanned, op.body.input_names
    backwards = _list(op, "directions", scanned)
    batch, longest = values[carried].shape[:2]
    states: list[list[Any]] = [[] for _ in range(carried)]
    joined: list[list[Any]] = [[] for _ in range(len(op.body.output_names) - carried)]
    for b in range(batch):
        count = longest if lengths is None else int(lengths[b])
        state = [value[b] for value in values[:carried]]
        kept: list[list[Any]] = [[] for _ in joined]
        for step in range(count):
            items = [
                value[b][count - 1 - step if back else step]
                for value, back in zip(values[carried:], backwards, strict=True)
            ]
            given = {**(context or {}), **dict(zip(names, [*state, *items], strict=True))}
            results = op._run_body(given, **_passed(options))
            state = list(results[:carried])
            for found, item in zip(kept, results[carried:], strict=True):
                found.append(item)
        for found, item in zip(states, state, strict=True):
            found.append(item)
        for found, items in zip(joined, kept, strict=True):
            stack = np.stack(items)
            rest = [(0, longest - count)] + [(0, 0)] * (stack.ndim - 1)
            found.append(np.pad(stack, rest))
    return [np.stack(items) for items in [*states, *joined]]
