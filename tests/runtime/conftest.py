"""Small compiled models that many runtime tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from tvm import relax

from tests.models import compiled, constant, imported, linear, save, weights
from uif_tvm import api
from uif_tvm.runtime.engine import Engine

#: Element types that the echo model is made for.
DTYPES = (
    *("float16", "bfloat16", "float32", "float64", "bool"),
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
)


@pytest.fixture(scope="session")
def linear_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``y0 = relu(x @ w)``: see :func:`tests.models.linear`."""
    return save(tmp_path_factory.mktemp("linear") / "m.uif", linear(), compiled(linear()))


@pytest.fixture
def linear_engine(linear_file: Path) -> Engine:
    """An engine of its own for each test."""
    return api.load(linear_file)


@pytest.fixture(scope="session")
def two(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """``y0 = a + b``, ``y1 = ids + 1`` for a, b float32[n, 3] and ids int64[2]."""
    model = imported(
        [("a", ("n", 3), "float32"), ("b", ("n", 3), "float32"), ("my ids", (2,), "int64")],
        lambda a, b, ids: [relax.op.add(a, b), relax.op.add(ids, constant(1, "int64"))],
    )
    path = tmp_path_factory.mktemp("two") / "m.uif"
    return api.load(save(path, model, compiled(model)))


@pytest.fixture(scope="session")
def aliasing(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """Everything that an output can share memory with: see ``test_engine.TestOutputs``."""
    table = constant(weights(4, 6))

    def body(x):
        total = relax.op.add(x, x)
        return [
            x,
            relax.op.reshape(x, (24,)),
            table,
            relax.op.reshape(table, (2, 12)),
            total,
            total,
            relax.op.reshape(total, (3, 8)),
        ]

    model = imported([("x", (4, 6), "float32")], body)
    path = tmp_path_factory.mktemp("aliasing") / "m.uif"
    return api.load(save(path, model, compiled(model)))


@pytest.fixture(scope="session")
def echoes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Engine]:
    """dtype -> engine that returns its input of shape [n, 4] rearranged (halves swapped)."""
    made = {}
    for dtype in DTYPES:
        model = imported(
            [("x", ("n", 4), dtype)],
            lambda x: [relax.op.concat(relax.op.split(x, 2, axis=1), axis=1), relax.op.flip(x, 1)],
        )
        path = tmp_path_factory.mktemp(dtype) / "m.uif"
        made[dtype] = api.load(save(path, model, compiled(model, level=1)))
    return made
