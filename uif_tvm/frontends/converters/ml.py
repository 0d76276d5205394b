"""The ai.onnx.ml domain: scalers, linear models and tree ensembles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from uif_tvm.frontends.converters.context import NodeContext, Unsupported
from uif_tvm.frontends.converters.forest_kernel import forest_kernel
from uif_tvm.frontends.converters.kernels import call_kernel, dim
from uif_tvm.frontends.converters.linear import emit_matmul
from uif_tvm.frontends.converters.registry import ML, converter
from uif_tvm.frontends.onnx.values import Array, Dim, Dynamic, shape_of
from uif_tvm.runtime.strings import TEXT

BRANCHES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
LEAF = "LEAF"


@converter("Scaler", domain=ML)
def scaler(ctx: NodeContext) -> relax.Expr:
    """(x - offset) * scale, as float32."""
    x = ctx.cast(ctx.expr(0), "float32")
    offset = ctx.const(ctx.attrs.get("offset", [0.0]), "float32")
    scale = ctx.const(ctx.attrs.get("scale", [1.0]), "float32")
    return ctx.emit(relax.op.multiply(ctx.emit(relax.op.subtract(x, offset)), scale))


def post_transform(ctx: NodeContext, scores: relax.Expr, mode: str) -> relax.Expr:
    """NONE, LOGISTIC, SOFTMAX, SOFTMAX_ZERO or PROBIT."""
    if mode == "NONE":
        return scores
    if mode == "LOGISTIC":
        return ctx.emit(relax.op.sigmoid(scores))
    if mode == "SOFTMAX":
        return ctx.emit(relax.op.nn.softmax(scores, -1))
    if mode == "SOFTMAX_ZERO":
        return _softmax_zero(ctx, scores)
    if mode == "PROBIT":
        return _probit(ctx, scores)
    raise ctx.invalid(f"post_transform {mode!r} does not exist")


def _softmax_zero(ctx: NodeContext, scores: relax.Expr) -> relax.Expr:
    """Softmax in which scores of 0 stay 0; a row of nothing else becomes 0.5."""
    dtype = str(scores.ty.dtype)
    top = ctx.emit(relax.op.max(scores, -1, True))
    power = ctx.emit(relax.op.exp(ctx.emit(relax.op.subtract(scores, top))))
    rest = ctx.emit(relax.op.exp(ctx.emit(relax.op.negative(top))))
    scaled = ctx.emit(relax.op.multiply(scores, rest))
    size = ctx.emit(relax.op.abs(scores))
    counts = ctx.emit(relax.op.greater(size, ctx.const(1e-7, dtype)))
    kept = ctx.emit(relax.op.where(counts, power, scaled))
    total = ctx.emit(relax.op.sum(kept, -1, True))
    nothing = ctx.emit(relax.op.equal(total, ctx.const(0, dtype)))
    safe = ctx.emit(relax.op.where(nothing, ctx.const(1, dtype), total))
    shares = ctx.emit(relax.op.divide(kept, safe))
    return ctx.emit(relax.op.where(nothing, ctx.const(0.5, dtype), shares))


def _probit(ctx: NodeContext, scores: relax.Expr) -> relax.Expr:
    """sqrt(2) erfinv(2 x - 1) in Winitzki's approximation, which the domain prescribes."""

    def compute(x: te.Tensor) -> te.Tensor:
        def c(number: float) -> Any:
            return tirx.const(number, str(x.dtype))

        def at(*i: Any) -> Any:
            place = c(2) * x(*i) - c(1)
            inner = (c(1) - place) * (c(1) + place)
            log = tirx.log(inner)
            half = c(2 / (np.pi * 0.147)) + c(0.5) * log
            root = tirx.sqrt(tirx.sqrt(half * half - c(1 / 0.147) * log) - half)
            return c(1.41421356) * tirx.Select(place < c(0), -root, root)

        return te.compute(x.shape, at, name="probit")

    return ctx.te(compute, scores, name="probit")


@converter("LinearRegressor", domain=ML)
def linear_regressor(ctx: NodeContext) -> relax.Expr:
    """x @ coefficients + intercepts."""
    targets = int(ctx.attrs.get("targets", 1))
    weights = np.asarray(ctx.attrs["coefficients"], np.float32).reshape(targets, -1)
    y = emit_matmul(ctx, ctx.cast(ctx.expr(0), "float32"), ctx.const(weights.T, "float32"))
    if "intercepts" in ctx.attrs:
        y = ctx.emit(relax.op.add(y, ctx.const(ctx.attrs["intercepts"], "float32")))
    return post_transform(ctx, y, ctx.attrs.get("post_transform", "NONE"))


@converter("LinearClassifier", domain=ML)
def linear_classifier(ctx: NodeContext) -> list[Any]:
    """Scores of a linear model, and the label of the best."""
    weights = np.asarray(ctx.attrs["coefficients"], np.float32)
    intercepts = np.asarray(ctx.attrs.get("intercepts", [0.0]), np.float32)
    classes = len(intercepts)
    x = ctx.cast(ctx.expr(0), "float32")
    scores = emit_matmul(ctx, x, ctx.const(weights.reshape(classes, -1).T, "float32"))
    scores = ctx.emit(relax.op.add(scores, ctx.const(intercepts, "float32")))
    return _classified(ctx, scores, _labels(ctx))


def _labels(ctx: NodeContext) -> Array:
    if ctx.attrs.get("classlabels_strings"):
        return np.asarray(ctx.attrs["classlabels_strings"], object)
    for name in ("classlabels_int64s", "classlabels_ints"):
        if ctx.attrs.get(name):
            return np.asarray(ctx.attrs[name], np.int64)
    raise ctx.invalid("no class labels are given")


def _classified(ctx: NodeContext, scores: relax.Expr, labels: Array) -> list[Any]:
    """Label of the best score per row, and the scores after the post transform."""
    mode = ctx.attrs.get("post_transform", "NONE")
    count = shape_of(scores)[-1]
    if isinstance(count, int) and count == 1 and len(labels) == 2:
        return _binary(ctx, scores, labels, mode)
    best = ctx.emit(relax.op.argmax(scores, -1))
    label = ctx.emit(relax.op.take(ctx.importer.constant(labels), best, 0, mode="clip"))
    return [_declared(label, labels), post_transform(ctx, scores, mode)]


def _declared(label: relax.Expr, labels: Array) -> Dynamic:
    return Dynamic(label, element=TEXT if labels.dtype == object else None)


def _binary(ctx: NodeContext, scores: relax.Expr, labels: Array, mode: str) -> list[Any]:
    """Two labels, one score: positive above 0, or above 0.5 where it is a probability."""
    second = ctx.emit(relax.op.sigmoid(scores)) if mode == "LOGISTIC" else scores
    threshold = ctx.const(0.5 if mode == "NONE" else 0.0, "float32")
    one = ctx.const(1.0, "float32")
    if mode not in ("NONE", "LOGISTIC"):
        raise Unsupported(f"post_transform {mode!r} of a single score")
    rows: list[Dim] = [shape_of(scores)[0]]
    positive = ctx.reshape(ctx.emit(relax.op.greater(scores, threshold)), rows)
    names = ctx.importer.constant(labels)
    chosen = ctx.cast(positive, "int64")
    label = _declared(ctx.emit(relax.op.take(names, chosen, 0, mode="clip")), labels)
    first = ctx.emit(relax.op.subtract(one, second))
    return [label, ctx.emit(relax.op.concat([first, second], 1))]


@dataclass(frozen=True)
class Forest:
    """All trees as flat arrays; children are row numbers, a leaf points at itself.

    Args:
        feature, threshold, mode, yes, no, missing_yes: per node.
        roots: row number of each tree's root.
        leaf_start, leaf_count: range of a leaf's entries in ``target`` and ``weight``.
        depth: the longest path.
    """

    feature: Array
    threshold: Array
    mode: Array
    yes: Array
    no: Array
    missing_yes: Array
    roots: Array
    leaf_start: Array
    leaf_count: Array
    target: Array
    weight: Array
    depth: int


def read_forest(ctx: NodeContext, prefix: str) -> Forest:
    """The node's tree attributes, checked.

    Raises:
        ImportModelError: children that do not exist, or trees with a cycle.
    """
    attrs = ctx.attrs
    trees, ids = attrs.get("nodes_treeids") or [], attrs.get("nodes_nodeids") or []
    count = len(ids)
    names = ("featureids", "modes", "truenodeids", "falsenodeids")
    if len(trees) != count or any(len(attrs.get(f"nodes_{n}") or []) != count for n in names):
        raise ctx.invalid("the tree attributes differ in length")
    values = _floats(ctx, "nodes_values", count)
    row = {key: number for number, key in enumerate(zip(trees, ids, strict=True))}
    if len(row) != count or not count:
        raise ctx.invalid("tree nodes are missing or repeated")
    modes = list(attrs["nodes_modes"])
    unknown = set(modes) - {*BRANCHES, LEAF}
    if unknown:
        raise ctx.invalid(f"node mode {sorted(unknown)[0]!r} does not exist")
    yes, no = np.arange(count), np.arange(count)
    for number, mode in enumerate(modes):
        if mode == LEAF:
            continue
        for side, name in ((yes, "truenodeids"), (no, "falsenodeids")):
            key = (trees[number], attrs[f"nodes_{name}"][number])
            if key not in row:
                raise ctx.invalid(f"tree {key[0]} has no node {key[1]}")
            side[number] = row[key]
    children = {int(c) for n, m in enumerate(modes) if m != LEAF for c in (yes[n], no[n])}
    roots = [row[key] for key in dict.fromkeys(zip(trees, ids, strict=True))
             if row[key] not in children]  # fmt: skip
    if len(roots) != len(set(trees)):
        raise ctx.invalid("each tree must have one root")
    depth = forest_depth(ctx, roots, yes, no, modes)
    missing = list(attrs.get("nodes_missing_value_tracks_true") or [0] * count)
    leaves = _leaves(ctx, prefix, row, count)
    codes = {mode: code for code, mode in enumerate((*BRANCHES, LEAF))}
    return Forest(
        np.asarray(attrs["nodes_featureids"], np.int64),
        values,
        np.asarray([codes[m] for m in modes], np.int32),
        yes.astype(np.int64),
        no.astype(np.int64),
        np.asarray(missing, np.int32),
        np.asarray(roots, np.int64),
        *leaves,
        depth,
    )


def _floats(ctx: NodeContext, name: str, count: int) -> Array:
    for key in (f"{name}_as_tensor", name):
        if key in ctx.attrs:
            values = np.asarray(ctx.attrs[key]).reshape(-1)
            values = values.astype(np.promote_types(values.dtype, np.float32) if "tensor" in key
                                   else np.float32)  # fmt: skip
            if len(values) != count:
                raise ctx.invalid(f"{name} has {len(values)} entries, expected {count}")
            return values
    return np.zeros(count, np.float32)


def forest_depth(
    ctx: NodeContext, roots: list[int], yes: Array, no: Array, modes: list[str]
) -> int:
    """Edges of the longest path from a root to a leaf.

    Raises:
        ImportModelError: a cycle.
    """
    level, depth = set(roots), 0
    while True:
        level = {int(c) for n in level if modes[n] != LEAF for c in (yes[n], no[n])}
        if not level:
            return depth
        depth += 1
        if depth > len(modes):
            raise ctx.invalid("a tree has a cycle")


def _leaves(
    ctx: NodeContext, prefix: str, row: dict[tuple[int, int], int], count: int
) -> tuple[Array, Array, Array, Array]:
    attrs = ctx.attrs
    kind = "class" if prefix == "class" else "target"
    trees, ids = attrs.get(f"{prefix}_treeids") or [], attrs.get(f"{prefix}_nodeids") or []
    numbers = attrs.get(f"{prefix}_ids") or []
    weights = _floats(ctx, f"{prefix}_weights", len(ids))
    if not len(trees) == len(ids) == len(numbers):
        raise ctx.invalid(f"the {kind} attributes differ in length")
    entries: list[list[tuple[int, float]]] = [[] for _ in range(count)]
    for key, number, weight in zip(zip(trees, ids, strict=True), numbers, weights, strict=True):
        if key not in row:
            raise ctx.invalid(f"tree {key[0]} has no node {key[1]}")
        entries[row[key]].append((int(number), float(weight)))
    counts = np.asarray([len(e) for e in entries], np.int64)
    flat = [pair for e in entries for pair in e] or [(0, 0.0)]
    return (
        np.cumsum(counts) - counts,
        counts,
        np.asarray([n for n, _ in flat], np.int64),
        np.asarray([w for _, w in flat], weights.dtype),
    )


def forest_scores(ctx: NodeContext, forest: Forest, outputs: int) -> relax.Expr:
    """Summed leaf weights, shape (rows, outputs); float64 for such features, else float32."""
    rows, features = ctx.shape(0)[0], ctx.static([ctx.shape(0)[-1]])[0]
    branching = forest.mode != len(BRANCHES)
    used = forest.feature[branching]
    if used.size and not (used.min() >= 0 and used.max() < features):
        raise ctx.invalid(f"a tree reads feature {used.max()} of {features}")
    if forest.target.size and not 0 <= forest.target.min() <= forest.target.max() < outputs:
        raise ctx.invalid(f"a leaf adds to output {forest.target.max()} of {outputs}")
    safe = np.where(branching, forest.feature, 0)
    dtype = "float64" if ctx.dtype(0) == "float64" else "float32"
    kernel = forest_kernel(dim(rows, "rows"), features, forest, outputs, dtype)
    tables = [
        safe, forest.threshold.astype(dtype), forest.mode, forest.yes, forest.no,
        forest.missing_yes, forest.roots, forest.leaf_start, forest.leaf_count, forest.target,
        forest.weight.astype(dtype),
    ]  # fmt: skip
    x = ctx.cast(ctx.expr(0), dtype)
    args = [x, *[ctx.importer.constant(table) for table in tables]]
    (scores,) = call_kernel(ctx, kernel, args, [[rows, outputs]], [dtype], "forest")
    base = ctx.attrs.get("base_values_as_tensor", ctx.attrs.get("base_values"))
    if base is not None and len(base):
        scores = ctx.emit(relax.op.add(scores, ctx.const(np.asarray(base), dtype)))
    return scores


@converter("TreeEnsembleRegressor", domain=ML)
def tree_regressor(ctx: NodeContext) -> relax.Expr:
    """Sum or average of the leaves reached."""
    mode = ctx.attrs.get("aggregate_function", "SUM")
    forest = read_forest(ctx, "target")
    if mode not in ("SUM", "AVERAGE"):
        raise Unsupported(f"aggregate_function {mode!r}")
    if mode == "AVERAGE":
        forest = Forest(**{**vars(forest), "weight": forest.weight / len(forest.roots)})
    scores = forest_scores(ctx, forest, int(ctx.attrs.get("n_targets", 1)))
    scores = ctx.cast(scores, "float32")
    return post_transform(ctx, scores, ctx.attrs.get("post_transform", "NONE"))


@converter("TreeEnsembleClassifier", domain=ML)
def tree_classifier(ctx: NodeContext) -> list[Any]:
    """Label of the class with the largest sum, and the sums."""
    labels = _labels(ctx)
    forest = read_forest(ctx, "class")
    single = len(labels) == 2 and len(set(forest.target.tolist())) == 1
    if single:
        forest = Forest(**{**vars(forest), "target": np.zeros_like(forest.target)})
    scores = ctx.cast(forest_scores(ctx, forest, 1 if single else len(labels)), "float32")
    return _classified(ctx, scores, labels)
