"""TreeEnsemble (ai.onnx.ml, version 5): trees whose nodes and leaves are numbered apart."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from uif_tvm.frontends.converters.context import NodeContext, Unsupported
from uif_tvm.frontends.converters.ml import (
    BRANCHES,
    LEAF,
    Forest,
    forest_depth,
    forest_scores,
    post_transform,
)
from uif_tvm.frontends.converters.registry import ML, converter

AVERAGE, SUM = 0, 1
MEMBER = 6
EQUAL = BRANCHES.index("BRANCH_EQ")
POST = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


@converter("TreeEnsemble", domain=ML, since=5)
def tree_ensemble(ctx: NodeContext) -> relax.Expr:
    """Sum or average of the leaves reached."""
    mode = int(ctx.attrs.get("aggregate_function", SUM))
    if mode not in (AVERAGE, SUM):
        raise Unsupported(f"aggregate_function {mode}")
    if ctx.dtype(0) not in ("float32", "float64"):
        raise Unsupported(f"trees over {ctx.dtype(0)}")
    forest = _forest(ctx)
    if mode == AVERAGE:
        forest = Forest(**{**vars(forest), "weight": forest.weight / len(forest.roots)})
    scores = forest_scores(ctx, forest, int(ctx.attrs.get("n_targets", 1)))
    return post_transform(ctx, scores, POST[int(ctx.attrs.get("post_transform", 0))])


def _forest(ctx: NodeContext) -> Forest:
    """Branch nodes first, then leaves; a test of membership becomes a chain of equalities.

    Raises:
        ImportModelError: attributes that contradict each other, or trees with a cycle.
    """
    nodes = _Nodes(ctx)
    count, leaves = nodes.count, len(nodes.leaf_targets)
    sets = _member_sets(ctx, nodes.modes)
    rows = [nodes.row(number) for number in range(count)]
    leaf_start = count + sum(max(len(s) - 1, 0) for s in sets.values())
    extra: list[list[Any]] = []
    for number, members in sets.items():
        rows[number][1:3] = [members[0], EQUAL]
        last = rows[number]
        for member in members[1:]:
            link = [last[0], member, EQUAL, last[3], last[4], 0]
            last[4] = count + len(extra)
            extra.append(link)
            last = link
    table = rows + extra
    for row in table:
        for side in (3, 4):
            if isinstance(row[side], tuple):
                row[side] = leaf_start + row[side][0]
    leaf_code = len(BRANCHES)
    table += [[0, 0.0, leaf_code, leaf_start + i, leaf_start + i, 0] for i in range(leaves)]
    feature, threshold, mode, yes, no, missing = (list(c) for c in zip(*table, strict=True))
    modes = [LEAF if code == leaf_code else BRANCHES[code] for code in mode]
    roots = [int(root) for root in ctx.attrs["tree_roots"]]
    if not roots or min(roots) < 0 or max(roots) >= count:
        raise ctx.invalid(f"tree_roots {roots[:5]} for {count} nodes")
    depth = forest_depth(ctx, roots, np.asarray(yes), np.asarray(no), modes)
    is_leaf = np.asarray(mode) == leaf_code
    start = np.where(is_leaf, np.arange(len(table)) - leaf_start, 0)
    return Forest(
        np.asarray(feature, np.int64),
        np.asarray(threshold, np.float64),
        np.asarray(mode, np.int32),
        np.asarray(yes, np.int64),
        np.asarray(no, np.int64),
        np.asarray(missing, np.int32),
        np.asarray(roots, np.int64),
        start.astype(np.int64),
        is_leaf.astype(np.int64),
        nodes.leaf_targets,
        nodes.leaf_weights,
        depth,
    )


class _Nodes:
    """The attributes, their lengths checked."""

    def __init__(self, ctx: NodeContext) -> None:
        attrs = ctx.attrs
        self.ctx = ctx
        self.modes = np.asarray(attrs["nodes_modes"]).reshape(-1).astype(int)
        self.count = len(self.modes)
        self.splits = np.asarray(attrs["nodes_splits"]).reshape(-1)
        names = ("featureids", "truenodeids", "falsenodeids", "trueleafs", "falseleafs")
        self.columns = {name: list(attrs[f"nodes_{name}"]) for name in names}
        self.missing = list(attrs.get("nodes_missing_value_tracks_true") or [0] * self.count)
        self.leaf_targets = np.asarray(attrs["leaf_targetids"], np.int64)
        self.leaf_weights = np.asarray(attrs["leaf_weights"]).reshape(-1)
        columns: list[Any] = [*self.columns.values(), self.splits, self.missing]
        lengths = {len(column) for column in columns}
        if lengths != {self.count} or len(self.leaf_targets) != len(self.leaf_weights):
            raise ctx.invalid("the tree attributes differ in length")
        if self.count and not 0 <= self.modes.min() <= self.modes.max() <= MEMBER:
            raise ctx.invalid(f"node mode {self.modes.max()} does not exist")

    def row(self, number: int) -> list[Any]:
        """[feature, threshold, mode, yes, no, missing]; a leaf as a tuple of its number."""
        children: list[Any] = []
        for side in ("true", "false"):
            child = int(self.columns[f"{side}nodeids"][number])
            leaf = bool(self.columns[f"{side}leafs"][number])
            if not 0 <= child < (len(self.leaf_targets) if leaf else self.count):
                raise self.ctx.invalid(f"node {number} leads to {child}, which does not exist")
            children.append((child,) if leaf else child)
        feature, missing = self.columns["featureids"][number], self.missing[number]
        return [int(feature), float(self.splits[number]), int(self.modes[number]),
                *children, int(missing)]  # fmt: skip


def _member_sets(ctx: NodeContext, modes: Any) -> dict[int, list[float]]:
    """Node number -> members, which stand in order of the nodes, each set closed by NaN."""
    wanted = [number for number, mode in enumerate(modes) if mode == MEMBER]
    if not wanted:
        return {}
    given = ctx.attrs.get("membership_values")
    values = np.asarray(given if given is not None else [], np.float64).reshape(-1)
    ends = np.flatnonzero(np.isnan(values))
    if len(ends) != len(wanted):
        raise ctx.invalid(f"{len(ends)} sets of members for {len(wanted)} tests of membership")
    sets = [part[~np.isnan(part)].tolist() for part in np.split(values, ends + 1)[:-1]]
    if not all(sets):
        raise ctx.invalid("a set without members")
    return dict(zip(wanted, sets, strict=True))
