"""The tests that are known to fail, each with its reason: a strict list."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tests.onnx_backend.judge import PASSED

FILE = Path(__file__).with_name("known_failures.json")


def known_failures() -> dict[str, str]:
    """Name -> reason."""
    reasons: dict[str, str] = json.loads(FILE.read_text())
    return reasons


def departures(statuses: Mapping[str, str], known: Mapping[str, str]) -> list[str]:
    """How results depart from the list, one sentence each; only tests that ran are looked at.

    Args:
        statuses: name -> status of each test that ran.
        known: name -> reason of each that is expected to fail.
    """
    found = []
    for name, status in statuses.items():
        if status == PASSED and name in known:
            found.append(f"{name} passes: take it off the list")
        if status != PASSED and name not in known:
            found.append(f"{name} {status}")
    return found
