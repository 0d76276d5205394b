"""A few operators of the database, and how their verdicts come about."""

from __future__ import annotations

import pytest
import torch

from tests.torch_ops.sample import check, is_core, op_label, operator_database, samples


@pytest.mark.parametrize(
    ("name", "dtype", "way"),
    [
        ("clamp", torch.int64, "native"),
        ("logical_and", torch.bool, "native"),
        ("softmax", torch.float32, "native"),
        ("linalg.svdvals", torch.float32, "host"),
        ("nonzero", torch.int64, "host"),
        ("fft.rfft", torch.float32, "host"),
    ],
)
def test_first_samples_are_right(name: str, dtype: torch.dtype, way: str) -> None:
    op = next(op for op in operator_database() if op_label(op) == name)
    for _, sample in samples(op, dtype, 2):
        verdict = check(op, sample)
        assert (verdict.status, verdict.way) == ("passed", way), verdict


def test_random_numbers_are_refused_and_uninitialised_memory_skipped() -> None:
    database = {op_label(op): op for op in operator_database()}
    _, sample = next(samples(database["bernoulli"], torch.float32, 1))
    assert check(database["bernoulli"], sample).status == "refused"
    _, sample = next(samples(database["empty_like"], torch.float32, 1))
    assert check(database["empty_like"], sample).status == "skipped"


def test_core_is_decided_by_pytorchs_own_tags() -> None:
    database = {op_label(op): op for op in operator_database()}
    for name, core in (("add", True), ("linalg.svdvals", False)):
        _, sample = next(samples(database[name], torch.float32, 1))
        assert is_core(database[name], sample) is core
