"""Whatever a ``.pt2`` file holds, import ends in a model or in a typed error; and odd examples."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.fuzz.mutate_archive import mutated_archive
from tests.fuzz.seeds import archives
from uif_tvm.errors import UifError
from uif_tvm.frontends.detect import import_model

ARCHIVES = list(archives())


@pytest.mark.parametrize(("name", "data", "inputs"), ARCHIVES, ids=[a[0] for a in ARCHIVES])
def test_mutated_archives(name: str, data: bytes, inputs: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    path.write_bytes(data)
    import_model(path, tuple(inputs.values()))
    rng = random.Random(name)
    stages: Counter[str] = Counter()
    for _ in range(70):
        path.write_bytes(mutated_archive(data, rng))
        try:
            import_model(path, tuple(inputs.values()))
        except UifError as error:
            stages[error.stage] += 1
    assert set(stages) <= {"import", "usage"}
    assert stages.total() > 20


class Two(torch.nn.Module):
    """Takes a tensor and a number of times."""

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return x @ torch.ones(4, 2) * scale


X, SCALE = torch.ones(3, 4), torch.tensor(2.0)


@pytest.mark.parametrize(
    "example",
    [
        None,
        (),
        X,
        (X,),
        (X, SCALE, SCALE),
        {"x": X},
        {"x": X, "scale": SCALE, "more": SCALE},
        {"y": X, "scale": SCALE},
        "text",
        (X, "text"),
        (X, object()),
        ([X, X], SCALE),
        (X, None),
        (torch.ones(3, 5), SCALE),
        (X.to_sparse(), SCALE),
        (X.to("meta"), SCALE),
        (np.array(["a"]), SCALE),
        (np.array([object()]), SCALE),
        (torch.ones(3, 4, dtype=torch.complex64), SCALE),
        lambda: X,
        3,
    ],
)
def test_examples_of_the_wrong_kind(example: Any) -> None:
    """A typed error that says what was expected; never a traceback of PyTorch's."""
    with pytest.raises(UifError) as caught:
        import_model(Two(), example)
    assert caught.value.stage in ("import", "usage")
    assert caught.value.hint
    assert "Traceback" not in str(caught.value)
