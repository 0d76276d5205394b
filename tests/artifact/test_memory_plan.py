"""Memory plans: read back as written; refused when a tensor would leave its arena."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.artifact.forge import reforge
from tests.models import compiled, imported, save, weights
from uif_tvm import api
from uif_tvm.artifact.memory_plan import (
    ELEMENT_BYTES,
    MEMORY_PLAN,
    Arena,
    ArenaTensor,
    MemoryPlan,
    ResidentWeight,
    ResultTensor,
)
from uif_tvm.errors import ArtifactError, EnvironmentFault, UifError

relax = pytest.importorskip("tvm.relax")
MEMBER = f"targets/cpu/{MEMORY_PLAN}"

PLAN = MemoryPlan(
    arenas=(Arena("dram", 1024), Arena("on-chip", 64)),
    tensors=(
        ArenaTensor(0, 0, (4, 8), "float32"),
        ArenaTensor(0, 128, (448,), "bfloat16"),
        ArenaTensor(1, 0, (), "int64"),
        ArenaTensor(1, 64, (0, 7), "float32"),
    ),
    results=(ResultTensor((2, 3), "float32"), None),
    resident=(ResidentWeight(5, 0),),
    run_allocations=3,
)


def changed(**fields: Any) -> bytes:
    return json.dumps(json.loads(PLAN.to_bytes()) | fields).encode()


def row(**fields: Any) -> dict[str, Any]:
    return {"arena": 0, "offset": 0, "shape": [4], "dtype": "float32"} | fields


def test_round_trip() -> None:
    assert MemoryPlan.from_bytes(PLAN.to_bytes()) == PLAN
    assert (PLAN.arena_bytes, PLAN.result_bytes) == (1088, 24)


@pytest.mark.parametrize(
    "tensor",
    [
        row(arena=2),
        row(arena=-1),
        row(offset=32),
        row(offset=-64),
        row(offset=1024),
        row(offset=960, shape=[17]),
        row(shape=[257]),
        row(shape=[2**62, 4]),
        row(shape=[2**62, 2**62, 0]),
        row(shape=[-1]),
        row(shape=[True]),
        row(shape=[1.5]),
        row(shape=["n"]),
        row(shape=[1] * 33),
        row(shape=4),
        row(dtype="object"),
        row(dtype="float31"),
        row(dtype=""),
        row(more=1),
        {"arena": 0, "offset": 0, "shape": [4]},
        [],
        None,
    ],
)
def test_tensors_that_cannot_be(tensor: Any) -> None:
    with pytest.raises(ArtifactError) as caught:
        MemoryPlan.from_bytes(changed(tensors=[tensor]))
    assert caught.value.code == "UIF-ARTIFACT-MEMORY"


@pytest.mark.parametrize(
    "fields",
    [
        {"arenas": [{"tier": "", "bytes": 1}]},
        {"arenas": [{"tier": "dram", "bytes": -1}]},
        {"arenas": [{"tier": "dram", "bytes": 2**64}]},
        {"arenas": [{"tier": "dram", "bytes": 2**63 - 1}] * 2, "tensors": []},
        {"arenas": {}},
        {"results": [{"shape": [2**63], "dtype": "int8"}]},
        {"results": [{"shape": [2]}]},
        {"results": [None]},
        {"resident": [{"weight": 0, "tensor": 4}]},
        {"resident": [{"weight": -1, "tensor": 0}]},
        {"run_allocations": -1},
        {"run_allocations": True},
        {"unknown": 1},
    ],
)
def test_plans_that_cannot_be(fields: dict[str, Any]) -> None:
    with pytest.raises(ArtifactError) as caught:
        MemoryPlan.from_bytes(changed(**fields))
    assert caught.value.code == "UIF-ARTIFACT-MEMORY"


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "arena": st.integers(-1, 2),
                "offset": st.integers(-64, 2048),
                "shape": st.lists(st.integers(-1, 2**40), max_size=4),
                "dtype": st.sampled_from([*ELEMENT_BYTES, "string"]),
            }
        ),
        max_size=4,
    )
)
@settings(deadline=None, max_examples=200)
def test_no_accepted_tensor_leaves_its_arena(tensors: list[dict[str, Any]]) -> None:
    try:
        plan = MemoryPlan.from_bytes(changed(tensors=tensors))
    except ArtifactError:
        return
    for tensor in plan.tensors:
        assert 0 <= tensor.offset <= tensor.offset + tensor.nbytes
        assert tensor.offset + tensor.nbytes <= plan.arenas[tensor.arena].bytes
        assert tensor.offset % 64 == 0


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Three softmaxes after each other: two tensors in the arena, one result."""

    def body(x: Any) -> list[Any]:
        for _ in range(3):
            x = relax.op.nn.softmax(x)
        return [x]

    model = imported([("x", (4, 10), "float32")], body)
    path = tmp_path_factory.mktemp("model") / "m.uif"
    return save(path, model, compiled(model, disabled_fusion=("*",))).read_bytes()


def edited(data: bytes, change: Callable[[dict[str, Any]], Any]) -> bytes:
    """The file with its plan changed, digests made to fit."""

    def edit(_document: dict[str, Any], members: dict[str, bytes]) -> None:
        plan = json.loads(members[MEMBER])
        change(plan)
        members[MEMBER] = json.dumps(plan).encode()

    return reforge(data, edit)


def load(folder: Path, data: bytes) -> Any:
    path = folder / "edited.uif"
    path.write_bytes(data)
    return api.load(path)


def test_the_unchanged_file_runs(tmp_path: Path, model_file: bytes) -> None:
    engine = load(tmp_path, edited(model_file, lambda plan: None))
    assert engine.run(weights(4, 10))[0].sum() == pytest.approx(4)


def test_outside_of_the_arena(tmp_path: Path, model_file: bytes) -> None:
    def beyond(plan: dict[str, Any]) -> None:
        plan["tensors"][0]["offset"] = plan["arenas"][0]["bytes"]

    with pytest.raises(ArtifactError, match="of an arena of") as caught:
        load(tmp_path, edited(model_file, beyond))
    assert caught.value.code == "UIF-ARTIFACT-MEMORY"


def test_more_than_the_machine_has(tmp_path: Path, model_file: bytes) -> None:
    def huge(plan: dict[str, Any]) -> None:
        plan["arenas"][0]["bytes"] = 2**60

    with pytest.raises(EnvironmentFault, match="this machine has") as caught:
        load(tmp_path, edited(model_file, huge))
    assert caught.value.code == "UIF-ENV-MEMORY"


@pytest.mark.parametrize(
    "result", [{}, {"shape": [4, 9], "dtype": "float32"}, {"shape": [4, 10], "dtype": "int32"}]
)
def test_results_of_another_model(tmp_path: Path, model_file: bytes, result: Any) -> None:
    """Never accepted: when it loads, or by the compiled code, which checks what it is given."""

    def other(plan: dict[str, Any]) -> None:
        plan["results"] = [result]

    with pytest.raises(UifError):
        load(tmp_path, edited(model_file, other)).run(weights(4, 10))


@pytest.mark.parametrize("count", [0, 2])
def test_number_of_results(tmp_path: Path, model_file: bytes, count: int) -> None:
    def other(plan: dict[str, Any]) -> None:
        plan["results"] = plan["results"] * count

    with pytest.raises(ArtifactError, match="another model's"):
        load(tmp_path, edited(model_file, other))


@pytest.mark.parametrize("change", ["shape", "dtype", "missing"])
def test_tensors_that_compiled_code_does_not_expect(
    tmp_path: Path, model_file: bytes, change: str
) -> None:
    """Kernels check the shape and type of every tensor before they write to it."""

    def other(plan: dict[str, Any]) -> None:
        if change == "missing":
            plan["tensors"] = plan["tensors"][:0]
        else:
            for tensor in plan["tensors"]:
                tensor[change] = [4, 2] if change == "shape" else "int8"

    with pytest.raises(UifError):
        load(tmp_path, edited(model_file, other)).run(weights(4, 10))


def test_files_of_schema_2_allocate_by_themselves(tmp_path: Path) -> None:
    model = imported([("x", (4, 10), "float32")], lambda x: [relax.op.exp(x)])
    data = save(tmp_path / "old.uif", model, compiled(model, level=1)).read_bytes()

    def edit(document: dict[str, Any], _members: dict[str, bytes]) -> None:
        document["schema"] = 2

    engine = load(tmp_path, reforge(data, edit))
    x = weights(4, 10)
    np.testing.assert_allclose(engine.run(x)[0], np.exp(x), rtol=1e-6)
    assert engine.get_stats()["arena_bytes"] == 0


@pytest.mark.parametrize("seed", range(40))
def test_damaged_plans_are_refused_or_run(tmp_path: Path, model_file: bytes, seed: int) -> None:
    """Whatever a plan says: a typed error, or results of the right shape; never a write outside."""
    rng = random.Random(seed)

    def damage(plan: dict[str, Any]) -> None:
        for _ in range(rng.choice((1, 1, 2, 4))):
            rows = [*plan["arenas"], *plan["tensors"], *filter(None, plan["results"])]
            if not rows:
                return
            how = rng.randrange(4)
            row = rng.choice(rows)
            if how == 0:
                row[rng.choice(list(row))] = rng.choice(
                    (0, 1, 64, 65, 2**40, -1, [4], [10, 4], [], "int8", "bool", None)
                )
            elif how == 1 and "shape" in row:
                row["shape"] = [rng.choice((0, 1, 4, 10, 2**31)) for _ in range(rng.randrange(4))]
            elif how == 2:
                rng.shuffle(plan["tensors"])
                plan["tensors"] = plan["tensors"] * rng.randrange(3)
            else:
                plan["resident"] = [{"weight": rng.randrange(3), "tensor": rng.randrange(3)}]

    try:
        engine = load(tmp_path, edited(model_file, damage))
        (result,) = engine.run(weights(4, 10))
    except UifError:
        return
    assert result.shape == (4, 10)
