"""Who runs operators on the host, and how long they take there.

Compiled code calls functions named ``uif.host.*``, each with the operator's name, a constant that
describes the operator, and tensors. The constant is one of the model's weights, and every engine
maps its weights to addresses of its own, so the constant's address tells whose call it was.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from uif_tvm.errors import UifError

_lock = threading.Lock()
#: The typed error of this thread's last failed call: compiled code hands on its text only.
_failed = threading.local()
_spent: dict[int, dict[str, float]] = {}


@contextmanager
def timed(address: int, op: str) -> Iterator[None]:
    """Charge the body's wall time to ``op`` of the engine whose constant lies at ``address``."""
    start = time.perf_counter()
    try:
        yield
    except UifError as error:
        _failed.error = error
        raise
    finally:
        elapsed = time.perf_counter() - start
        with _lock:
            spent = _spent.setdefault(address, {})
            spent[op] = spent.get(op, 0.0) + elapsed


def take_error() -> UifError | None:
    """The typed error of this thread's last failed call, once."""
    error: UifError | None = getattr(_failed, "error", None)
    _failed.error = None
    return error


def seconds_by_op(addresses: Iterable[int]) -> dict[str, float]:
    """Seconds spent per operator in calls whose constant lies at one of ``addresses``."""
    total: dict[str, float] = {}
    with _lock:
        for address in addresses:
            for op, seconds in _spent.get(address, {}).items():
                total[op] = total.get(op, 0.0) + seconds
    return total


def forget(addresses: Iterable[int]) -> None:
    """Start the clocks of ``addresses`` anew: a freed engine may have lived there before."""
    with _lock:
        for address in addresses:
            _spent.pop(address, None)
