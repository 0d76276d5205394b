"""Converting a node in a way that can be taken back.

A loop or branch may turn out to be beyond us half way: what was emitted until then, a check of
the inputs' values among it, must not stay behind when the node goes to the host instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uif_tvm.frontends.converters.context import Importer


class RefusedWithinError(Exception):
    """Operators inside the node were refused; the first of them is the message."""


@contextmanager
def tentative(importer: Importer) -> Iterator[None]:
    """Keep what the body emits and notes only if it succeeds and refuses nothing.

    Raises:
        RefusedWithinError: the body reported unsupported operators.
    """
    before = importer.notes.copy()
    importer.open_block()
    try:
        yield
        refused = importer.notes.first_refusal_since(before)
        if refused:
            raise RefusedWithinError(refused)
    except BaseException:
        importer.close_block()
        importer.notes = before
        raise
    for binding in importer.close_block().bindings:
        importer.bb.emit_normalized(binding)
