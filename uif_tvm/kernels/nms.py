"""Greedy box suppression as one TIR function."""

# mypy: ignore-errors
from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script import tirx as T


def nms_kernel(batch: int, classes: int, boxes: int, centred: bool) -> Any:
    """Greedy suppression per class; kept rows first, then -1; their number in ``count``.

    ``left`` marks the boxes not yet decided. Selected boxes are found by repeated maximum, first
    of equals, and compared with those kept before.
    """
    batch_, classes_, boxes_ = (tirx.IntImm("int64", n) for n in (batch, classes, boxes))
    total = tirx.IntImm("int64", batch * classes * boxes)

    def corners(read: Any) -> tuple[Any, Any, Any, Any]:
        a, b, c, d = (read(k) for k in range(4))
        if centred:
            two = tirx.const(2, "float32")
            return b - d / two, a - c / two, b + d / two, a + c / two
        return tirx.min(a, c), tirx.min(b, d), tirx.max(a, c), tirx.max(b, d)

    def overlap(first: Any, second: Any) -> Any:
        zero = tirx.const(0, "float32")
        p, q = corners(first), corners(second)
        height = tirx.max(tirx.min(p[2], q[2]) - tirx.max(p[0], q[0]), zero)
        width = tirx.max(tirx.min(p[3], q[3]) - tirx.max(p[1], q[1]), zero)
        both = height * width
        union = (p[2] - p[0]) * (p[3] - p[1]) + (q[2] - q[0]) * (q[3] - q[1]) - both
        safe = tirx.Select(union > zero, union, tirx.const(1, "float32"))
        return tirx.Select(union > zero, both / safe, zero)

    @T.prim_func(private=True, s_tir=True)
    def suppress(
        box: T.Buffer((batch_, boxes_, 4), "float32"),
        score: T.Buffer((batch_, classes_, boxes_), "float32"),
        most: T.Buffer((1,), "int64"),
        iou: T.Buffer((1,), "float32"),
        lowest: T.Buffer((1,), "float32"),
        kept: T.Buffer((total, 3), "int64"),
        count: T.Buffer((1,), "int64"),
    ):
        with T.sblock("root"):
            left = T.alloc_buffer((boxes_,), "bool")
            state = T.alloc_buffer((3,), "int64")  # best box or -1, rows before, may keep it
            with T.sblock("loops"):
                for i in range(total):
                    for k in range(3):
                        kept[i, k] = T.int64(-1)
                count[0] = T.int64(0)
                for n in range(batch_):
                    for c in range(classes_):
                        state[1] = count[0]
                        for i in range(boxes_):
                            left[i] = score[n, c, i] > lowest[0]
                        for _ in range(boxes_):
                            state[0] = T.int64(-1)
                            if count[0] - state[1] < most[0]:
                                for i in range(boxes_):
                                    if left[i]:
                                        if (
                                            state[0] < T.int64(0)
                                            or score[n, c, i] > score[n, c, T.max(state[0], 0)]
                                        ):
                                            state[0] = i
                            if state[0] >= T.int64(0):
                                left[state[0]] = T.bool(False)
                                state[2] = T.int64(1)
                                for k in range(boxes_):
                                    if state[1] + k < count[0]:
                                        if (
                                            overlap(
                                                lambda z: box[n, state[0], z],
                                                lambda z: box[n, kept[state[1] + k, 2], z],
                                            )
                                            > iou[0]
                                        ):
                                            state[2] = T.int64(0)
                                if state[2] == T.int64(1):
                                    kept[count[0], 0] = n
                                    kept[count[0], 1] = c
                                    kept[count[0], 2] = state[0]
                                    count[0] = count[0] + T.int64(1)

    return suppress
