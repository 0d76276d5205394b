"""PyTorch without its log lines: what matters is in the exceptions it raises."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr


@contextmanager
def quietly() -> Iterator[None]:
    """No warnings, log lines, tracebacks or graph print-outs of PyTorch's.

    Loggers outside PyTorch keep their errors: only warnings of theirs are held back.
    """
    disabled = logging.root.manager.disable
    loggers = [
        logger
        for name, logger in list(logging.root.manager.loggerDict.items())
        if name.split(".")[0] == "torch" and isinstance(logger, logging.Logger)
    ]
    states = [logger.disabled for logger in loggers]
    logging.disable(max(disabled, logging.WARNING))
    for logger in loggers:
        logger.disabled = True
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        for logger, state in zip(loggers, states, strict=True):
            logger.disabled = state
