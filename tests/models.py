"""Tiny models in Relax, and the way from one to an engine without a frontend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax

from uif_tvm import api
from uif_tvm.artifact import TargetPayload, write_artifact
from uif_tvm.compiler.context import CompileContext
from uif_tvm.compiler.report import ReportBuilder
from uif_tvm.frontends.imported import ImportedModel
from uif_tvm.runtime.engine import Engine
from uif_tvm.signature import Signature, TensorSpec
from uif_tvm.target.registry import get_target
from uif_tvm.target.spec import TargetSpec

#: Name, shape (a text is a symbolic extent) and dtype.
Row = tuple[str, Sequence[int | str], str]


def module(inputs: Sequence[Row], body: Callable[..., Sequence[Any]]) -> tvm.IRModule:
    """``main`` over ``inputs``; ``body`` maps their variables to expressions, one per output.

    Each expression is emitted, so ``body`` may nest calls freely.
    """
    symbols: dict[str, Any] = {}
    variables = []
    for name, shape, dtype in inputs:
        extents = [
            symbols.setdefault(d, tvm.tirx.Var(d, "int64")) if isinstance(d, str) else d
            for d in shape
        ]
        variables.append(relax.Var(name, relax.TensorType(extents, dtype)))
    builder = relax.BlockBuilder()
    with builder.function("main", variables):
        with builder.dataflow():
            results = [builder.emit(builder.normalize(expr)) for expr in body(*variables)]
            output = builder.emit_output(relax.Tuple(results))
        builder.emit_func_output(output)
    return builder.get()


def imported(inputs: Sequence[Row], body: Callable[..., Sequence[Any]]) -> ImportedModel:
    """A model as a frontend would return it; outputs are called ``y0``, ``y1`` ..."""
    mod = module(inputs, body)
    outputs = []
    for index, field in enumerate(mod["main"].ret_ty.fields):
        shape = tuple(
            int(d.value) if isinstance(d, tvm.tirx.IntImm) else str(d) for d in field.shape.values
        )
        outputs.append(TensorSpec(f"y{index}", shape, str(field.dtype.dtype)))
    specs = tuple(TensorSpec(name, tuple(shape), dtype) for name, shape, dtype in inputs)
    return ImportedModel(mod, Signature(specs, tuple(outputs)), "test")


def constant(array: Any, dtype: str | None = None) -> Any:
    """A Relax constant of exactly ``array``."""
    return relax.const(tvm.runtime.tensor(np.asarray(array, dtype)))


def context(target: str | TargetSpec = "cpu", level: int = 2, **options: Any) -> CompileContext:
    """A context with an empty report and the tests' kernel cache."""
    spec = get_target(target) if isinstance(target, str) else target
    options.setdefault("cache_dir", api.default_cache_dir())
    return CompileContext(target=spec, level=level, report=ReportBuilder(), **options)


def compiled(
    model: ImportedModel, target: str | TargetSpec = "cpu", level: int = 2, **options: Any
) -> TargetPayload:
    """One target's section of the file."""
    made = context(target, level, **options)
    return api._compile(model, made, lambda phase, done, total: None)


def save(path: Path, model: ImportedModel, *payloads: TargetPayload) -> Path:
    """Write a ``.uif`` file."""
    write_artifact(path, model="test", signature=model.signature, targets=payloads)
    return path


def engine(
    folder: Path,
    model: ImportedModel,
    target: str | TargetSpec = "cpu",
    level: int = 2,
    threads: int | None = None,
    **options: Any,
) -> Engine:
    """Compile, write to ``folder`` and load."""
    payload = compiled(model, target, level, **options)
    return api.load(save(folder / "m.uif", model, payload), threads=threads)


def fake_target(**changes: Any) -> TargetSpec:
    """This host's target under another name, with fields replaced."""
    return replace(get_target("cpu"), **({"id": "fake"} | changes))


def weights(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Seeded normal float32 values."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def linear() -> ImportedModel:
    """``y0 = relu(x @ w)`` for x float32[4, 64] and ``weights(64, 32)``."""
    matrix = constant(weights(64, 32))
    return imported(
        [("x", (4, 64), "float32")], lambda x: [relax.op.nn.relu(relax.op.matmul(x, matrix))]
    )
