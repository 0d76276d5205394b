"""A task that crashes, hangs, lies or raises is one answer; the next task is served."""

from __future__ import annotations

from pathlib import Path

import pytest

from uif_tvm.selection.isolation import Pool

HERE = "tests.selection.tasks"


@pytest.fixture
def pool(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    with Pool(1) as made:
        yield made


def test_a_worker_serves_many_tasks_and_prints_do_not_matter(pool):
    first = pool.run(f"{HERE}:double", 30, value=4)
    second = pool.run(f"{HERE}:double", 30, value=5)
    assert (first.how, first.value["value"], second.value["value"]) == ("done", 8, 10)
    assert first.value["process"] == second.value["process"]


def test_what_raises_is_an_error_with_its_code(pool):
    outcome = pool.run(f"{HERE}:refuse", 30)
    assert outcome.how == "error"
    assert outcome.value["error"]["code"] == "UIF-USAGE-TEST"
    assert outcome.value["exit_code"] == 2
    assert pool.run(f"{HERE}:double", 30, value=1).how == "done"


def test_a_crash_names_the_signal_and_the_last_words(pool):
    outcome = pool.run(f"{HERE}:die", 30)
    assert outcome.how == "crash"
    assert "SIGSEGV" in outcome.detail
    assert "last words" in outcome.detail
    assert pool.run(f"{HERE}:double", 30, value=1).how == "done"


def test_a_process_that_ends_by_itself_is_a_crash(pool):
    outcome = pool.run(f"{HERE}:leave", 30, code=7)
    assert (outcome.how, "exit code 7" in outcome.detail) == ("crash", True)


def test_a_hang_is_stopped(pool):
    outcome = pool.run(f"{HERE}:hang", 0.3)
    assert (outcome.how, outcome.detail) == ("timeout", "not done in 0.3 s")
    assert pool.run(f"{HERE}:double", 30, value=1).how == "done"


def test_all_tasks_answer_whatever_their_neighbours_do(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    tasks = [
        (f"{HERE}:double", 30.0, {"value": 1}),
        (f"{HERE}:die", 30.0, {}),
        (f"{HERE}:refuse", 30.0, {}),
        (f"{HERE}:double", 30.0, {"value": 2}),
    ]
    with Pool(2) as pool:
        answers = dict(pool.run_all(tasks))
    assert [answers[i].how for i in range(4)] == ["done", "crash", "error", "done"]


def test_a_pool_that_is_closed_starts_nothing(pool):
    pool.__exit__()
    assert pool.run(f"{HERE}:double", 30, value=1).how == "crash"
