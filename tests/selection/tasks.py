"""Tasks for worker processes that misbehave in every way."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from uif_tvm.errors import UsageError


def double(value: int) -> dict[str, Any]:
    """Twice the value, while something is printed that must not reach the answer."""
    sys.stdout.write("noise on stdout\n")
    sys.stdout.flush()
    os.write(1, b'{"how": "done", "value": {"forged": true}}\n')
    return {"value": 2 * value, "process": os.getpid()}


def refuse() -> dict[str, Any]:
    """An error of ours."""
    raise UsageError("not like this", code="UIF-USAGE-TEST", hint="like that")


def die(signal_number: int = signal.SIGSEGV) -> dict[str, Any]:
    """The process is killed."""
    os.write(2, b"last words\n")
    os.kill(os.getpid(), signal_number)
    return {}


def leave(code: int) -> dict[str, Any]:
    """The process ends by itself."""
    os._exit(code)


def hang() -> dict[str, Any]:
    """It never ends."""
    while True:
        time.sleep(1)
