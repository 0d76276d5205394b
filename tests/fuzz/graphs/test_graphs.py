"""A sample of random graphs at every level; `make fuzz-graphs` tries thousands."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.graphs.attempt import attempt
from tests.fuzz.graphs.check import graph_of
from tests.fuzz.graphs.generate import generate


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("kernels")
    return str(folder)


@pytest.mark.parametrize("number", range(60))
def test_all_levels_agree(number: int, cache: str) -> None:
    attempt(graph_of(f"ci-{number}"), cache=cache)


@settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(st.randoms(use_true_random=False))
def test_all_levels_agree_on_graphs_that_shrink(cache: str, rng: random.Random) -> None:
    attempt(generate(rng), cache=cache)
