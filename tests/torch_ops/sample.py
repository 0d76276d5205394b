"""One sample of PyTorch's operator database: export, load, run, compare with eager PyTorch."""

from __future__ import annotations

import sys
import tempfile
import types
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

import uif_tvm
from uif_tvm.errors import HostFallbackWarning, UifError
from uif_tvm.frontends.torch.quiet import quietly

#: Samples with more elements than this say no more than smaller ones.
MAX_ELEMENTS = 1 << 18
#: dtype -> (relative, absolute) tolerance; complex numbers as their parts; others must be equal.
TOLERANCE = {
    "float32": (1e-4, 1e-5),
    "complex64": (1e-4, 1e-5),
    "float64": (1e-6, 1e-8),
    "complex128": (1e-6, 1e-8),
}
#: Operators whose positions are arbitrary among equal values -> which argument is the axis.
TIES = {"kthvalue": 1, "topk": 1, "median": 0, "nanmedian": 0}


@dataclass(frozen=True)
class Verdict:
    """What came of one sample.

    Args:
        status: ``passed``, ``wrong``, ``refused`` (typed error) or ``skipped``.
        message: what is wrong, or why it was refused or skipped.
        way: ``native``, ``composed`` or ``host``, the last one that any operator needed.
    """

    status: str
    message: str = ""
    way: str = ""


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


def op_label(op: Any) -> str:
    """The operator's name with its variant."""
    return f"{op.name}.{op.variant_test_name}".rstrip(".")


def samples(op: Any, dtype: torch.dtype, limit: int) -> Iterator[tuple[int, Any]]:
    """The first sample inputs of an operator for one dtype."""
    torch.manual_seed(0)
    for index, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=False)):
        if index >= limit:
            return
        yield index, sample


class Case:
    """A sample as a module of its tensors, with what eager PyTorch makes of it.

    Raises:
        LookupError: there is nothing to compare with; the message says why.
    """

    def __init__(self, op: Any, sample: Any) -> None:
        if "empty" in op.name:
            raise LookupError("uninitialised memory")
        leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self.tensors = tuple(leaves[i].detach().clone() for i in where)
        if sum(t.numel() for t in self.tensors) > MAX_ELEMENTS:
            raise LookupError("large")

        class Call(torch.nn.Module):
            def forward(self, *values: torch.Tensor) -> Any:
                filled = list(leaves)
                for i, value in zip(where, values, strict=True):
                    filled[i] = value
                first, args, kwargs = pytree.tree_unflatten(filled, spec)
                if op.name in ("sort", "argsort"):  # ties may come in any order unless asked
                    kwargs = {**kwargs, "stable": True}
                return op(first, *args, **kwargs)

        self.module = Call()
        self.expected = self._eager(seed=0)
        if not self.expected:
            raise LookupError("no tensor result")
        again = self._eager(seed=1)
        if not all(map(_identical, self.expected, again)):
            raise LookupError("random results")

    def _eager(self, seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        try:
            with torch.no_grad():
                result = self.module(*(t.clone() for t in self.tensors))
        except Exception as error:
            raise LookupError(f"eager PyTorch fails: {type(error).__name__}") from error
        return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def _identical(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype == torch.complex32:  # neither PyTorch nor NumPy compares them
        return True
    return a.shape == b.shape and np.array_equal(
        _plain(a), _plain(b), equal_nan=a.dtype.is_floating_point
    )


def is_core(op: Any, sample: Any) -> bool:
    """Whether PyTorch takes the operator apart into operators of its core set alone.

    The rule: every overload in ``torch.export.export(...).run_decompositions()`` has the tag
    ``torch.Tag.core``; sizes and tuple elements are no operators.
    """
    try:
        case = Case(op, sample)
        with quietly():
            program = torch.export.export(case.module, case.tensors).run_decompositions()
    except Exception:
        return False
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    overloads = [target for target in targets if isinstance(target, torch._ops.OpOverload)]
    return bool(overloads) and all(torch.Tag.core in target.tags for target in overloads)


def check(op: Any, sample: Any) -> Verdict:
    """Export, load, run, compare."""
    try:
        case = Case(op, sample)
    except LookupError as error:
        return Verdict("skipped", str(error))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", HostFallbackWarning)
        path = Path(folder, "sample.uif")
        try:
            report = uif_tvm.export(case.module, case.tensors, path).report
            engine = uif_tvm.load(path, threads=1)
            places = [int(spec.name.rsplit("_", 1)[-1]) for spec in engine.inputs]
            results = engine.run(*(_plain(case.tensors[place]) for place in places))
        except UifError as error:
            return Verdict("refused", f"{error.code}: {error.message}"[:300].replace("\n", " "))
    ways = {row["where"] for row in report["placement"]}
    way = next((way for way in ("host", "composed") if way in ways), "native")
    fault = _fault(op.name, sample, results, [_plain(leaf) for leaf in case.expected])
    return Verdict("wrong", fault, way) if fault else Verdict("passed", "", way)


def _plain(tensor: torch.Tensor) -> Any:
    array = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return array.numpy()


def _fault(name: str, sample: Any, results: list[Any], expected: list[Any]) -> str:
    if len(results) != len(expected):
        return f"{len(results)} results, expected {len(expected)}"
    for have, want in zip(results, expected, strict=True):
        if want.dtype != have.dtype or want.shape != have.shape:
            return f"{have.dtype}{have.shape}, want {want.dtype}{want.shape}"
        rtol, atol = TOLERANCE.get(str(want.dtype), (0, 0))
        close = np.isclose(have, want, rtol, atol, equal_nan=True)
        if not close.all() and want.dtype == "int64" and name in TIES:
            close = np.asarray(_same_elements(TIES[name], sample, have, want))
        if not close.all():
            at = tuple(int(i) for i in np.argwhere(~np.broadcast_to(close, have.shape))[0])
            return f"at {at}: {have[at]!r}, want {want[at]!r}"
    return ""


def _same_elements(place: int, sample: Any, have: Any, want: Any) -> bool:
    """Whether two results of positions pick equal elements."""
    data = sample.input.numpy()
    axis = sample.args[place] if len(sample.args) > place else sample.kwargs.get("dim", -1)
    if have.ndim < data.ndim:
        have, want = np.expand_dims(have, axis), np.expand_dims(want, axis)
    picked = [np.take_along_axis(data, index, axis) for index in (have, want)]
    return bool(np.array_equal(picked[0], picked[1], equal_nan=data.dtype.kind == "f"))
