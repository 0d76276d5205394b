"""Placement problems for tests: the published hard ones, and a hypothesis strategy."""

from __future__ import annotations

import csv
from pathlib import Path

from hypothesis import strategies as st

from uif_tvm.compiler.memory.problem import Buffer

DATA = Path(__file__).with_name("data")
#: Capacity of the published instances A to K, bytes.
CAPACITY = 1048576
INSTANCES = "ABCDEFGHIJK"


def load(path: Path) -> list[Buffer]:
    """Buffers of a file in the format of ``data/README.md``; no alignment."""
    with path.open(newline="") as file:
        return [
            Buffer(row["id"], int(row["lower"]), int(row["upper"]), int(row["size"]), 1)
            for row in csv.DictReader(file)
        ]


def instance(name: str) -> list[Buffer]:
    """A published instance."""
    return load(DATA / f"{name}.{CAPACITY}.csv")


def buffers(
    most: int = 14, alignments: tuple[int, ...] = (1, 64, 48, 256), steps: int = 12
) -> st.SearchStrategy[list[Buffer]]:
    """Lists of buffers with sizes and lifetimes that often leave a gap.

    Half of them have one alignment, the first; the other half draws from all of them.
    """
    one = st.tuples(
        st.integers(0, steps - 1),
        st.integers(1, steps // 2),
        st.integers(1, 12).map(lambda size: 60 * size),
        st.sampled_from(alignments),
    )
    return st.tuples(st.lists(one, max_size=most), st.booleans()).map(
        lambda drawn: [
            Buffer(f"b{index}", first, first + life, size, step if drawn[1] else alignments[0])
            for index, (first, life, size, step) in enumerate(drawn[0])
        ]
    )
