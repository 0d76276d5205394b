"""The sweep's bookkeeping."""

from __future__ import annotations

from typing import Any

from tests.torch_ops.check import settled, summarise, surprises


def row(op: str, status: str, way: str = "", core: bool | None = True) -> dict[str, Any]:
    return {
        "op": op,
        "dtype": "float32",
        "sample": 0,
        "core": core,
        "status": status,
        "way": way,
        "message": status,
    }


def test_skipped_samples_do_not_count() -> None:
    rows = [row("a", "passed", "native"), row("a", "passed", "host"), row("b", "skipped")]
    summary = summarise([*rows, row("c", "refused")])
    assert (summary["passed"], summary["total"], summary["skipped"]) == (2, 3, 1)
    assert (summary["native"], summary["host"], summary["refused"]) == (1, 1, 1)


def test_the_list_of_known_failures_is_strict() -> None:
    rows = [row("a", "passed"), row("b", "refused"), row("c", "refused")]
    listed = {"a:float32": "once", "b:float32": "no kernel", "d:float32": "not run"}
    rows.append(row("e", "refused") | {"message": "its results are random"})
    found = surprises(rows, {"operators": listed, "reasons": {"are random": "rightly so"}})
    assert found == [
        "c:float32 fails and is not listed",
        "a:float32 is listed and passes: take it off the list",
    ]


def test_an_operator_is_core_when_all_its_samples_say_so() -> None:
    rows = settled([row("a", "passed", core=True), row("a", "refused", core=False)])
    assert [entry["core"] for entry in rows] == [False, False]
    rows = settled([row("a", "passed", core=True), row("a", "crashed", core=None)])
    assert [entry["core"] for entry in rows] == [True, True]
