"""Verification at export: the optimised model against the unoptimised one, on the same inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from uif_tvm.compiler.report import ReportBuilder
from uif_tvm.errors import CompileError
from uif_tvm.runtime.strings import TEXT
from uif_tvm.runtime.tensors import Array, aligned_empty, numpy_dtype
from uif_tvm.signature import named_leaves, pack, tensors

if TYPE_CHECKING:
    from uif_tvm.artifact import TargetPayload
    from uif_tvm.compiler.context import CompileContext
    from uif_tvm.frontends.imported import ImportedModel
    from uif_tvm.signature import TensorSpec

#: Relative tolerance per dtype, and absolute tolerance as a share of the largest reference value.
RTOL = {"float64": 1e-6, "float32": 1e-3, "float16": 2e-2, "bfloat16": 5e-2}
ATOL_SHARE = {"float64": 1e-7, "float32": 1e-4, "float16": 1e-2, "bfloat16": 2e-2}


def verify_levels(
    imported: ImportedModel,
    context: CompileContext,
    built: TargetPayload,
    inputs: list[Array] | None,
    baseline: Callable[[ImportedModel, CompileContext], TargetPayload],
) -> str:
    """Run ``built`` and a level-0 build of the same model and compare every output.

    Args:
        inputs: what to run both on; seeded random values of the signature where ``None``.
        baseline: compiles the model under a context.

    Returns:
        A sentence for the report.

    Raises:
        CompileError: an output departs by more than the tolerance of its dtype.
    """
    plain = replace(context, level=0, report=ReportBuilder(), verify=False, save_temps=None)
    # At level 0 itself nothing is left to compare with; running it twice shows that it runs.
    arrays = inputs if inputs is not None else synthesise(tensors(imported.signature.inputs))
    want = _run(imported, baseline(imported, plain), arrays)
    have = _run(imported, built, arrays)
    outputs = imported.signature.outputs
    pairs = zip(named_leaves(outputs, have), named_leaves(outputs, want), strict=True)
    for (name, left), (_, right) in pairs:
        wrong = departure(left, right)
        if wrong:
            raise CompileError(
                f"output {name!r} at level {context.level} departs from level 0: {wrong}",
                code="UIF-COMPILE-VERIFY",
                target=context.target.id,
                hint="export with a lower optimize_level; disable_passes= finds the pass",
            )
    origin = "random inputs" if inputs is None else "the example inputs"
    return f"verified against level 0: {len(have)} outputs agree on {origin}"


def departure(have: Array, want: Array) -> str | None:
    """How ``have`` departs from ``want`` beyond its dtype's tolerance; ``None`` if it does not."""
    if have.shape != want.shape or have.dtype != want.dtype:
        return f"{have.dtype}{list(have.shape)} instead of {want.dtype}{list(want.shape)}"
    if want.dtype.name not in RTOL:
        differ = int(np.count_nonzero(have != want))
        return f"{differ} of {want.size} values differ" if differ else None
    left, right = have.astype(np.float64), want.astype(np.float64)
    finite = np.abs(right[np.isfinite(right)])
    share = ATOL_SHARE[want.dtype.name]
    atol = share * float(finite.max()) if finite.size else 0.0
    close = np.isclose(left, right, rtol=RTOL[want.dtype.name], atol=atol, equal_nan=True)
    if close.all():
        return None
    with np.errstate(invalid="ignore"):
        apart = np.abs(left - right)[~close]
    finite = apart[np.isfinite(apart)]
    worst = f"{finite.max():.3g}" if finite.size else "infinite"
    return f"{int((~close).sum())} of {want.size} values, largest difference {worst}"


def synthesise(specs: Iterable[TensorSpec], seed: int = 0) -> list[Array]:
    """Seeded random arrays for ``specs``: normal floats, zeros for everything else, texts empty.

    Integer inputs are mostly indices, and zero is the only one that is valid for every tensor.
    Symbolic extents are the smallest that their ranges allow.
    """
    rng = np.random.default_rng(seed)
    arrays = []
    for spec in specs:
        least = {dim.name: dim.minimum for dim in spec.ranges}
        shape = tuple(n if isinstance(n, int) else least.get(n, 1) for n in spec.shape)
        if spec.dtype == TEXT:
            arrays.append(np.full(shape, "", object))
            continue
        array = aligned_empty(shape, numpy_dtype(spec.dtype))
        array[...] = rng.standard_normal(shape) if "float" in spec.dtype else 0
        arrays.append(array)
    return arrays


def _run(imported: ImportedModel, payload: TargetPayload, arrays: list[Array]) -> list[Any]:
    from uif_tvm.artifact import open_artifact, write_artifact
    from uif_tvm.runtime.engine import Engine

    with TemporaryDirectory(prefix="uif-verify-") as folder:
        path = f"{folder}/m.uif"
        write_artifact(path, model="verify", signature=imported.signature, targets=[payload])
        return Engine(open_artifact(path), payload.target, None).run(
            *pack(imported.signature.inputs, iter(arrays))
        )
