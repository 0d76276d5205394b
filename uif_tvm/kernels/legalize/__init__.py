"""Which kernel each operator of a graph becomes.

``LEGALIZE`` maps operator names (Relax's own, and ``uif.<name>`` for the standard operators that
Relax lacks) to functions for ``relax.transform.LegalizeOps``. Every module of this package that
defines a map of that name adds to it; there is no list to edit. Functions for operators of Relax
fall back to TVM's own legalisation for element types and forms that our kernels do not take.
"""

from __future__ import annotations

import importlib
import pkgutil

from uif_tvm.errors import UsageError
from uif_tvm.kernels.legalize.rules import Legalizer


def _collected() -> dict[str, Legalizer]:
    found: dict[str, Legalizer] = {}
    for module in pkgutil.iter_modules(__path__):
        family = importlib.import_module(f"{__name__}.{module.name}")
        for name, legalizer in getattr(family, "LEGALIZE", {}).items():
            if name in found:
                raise UsageError(
                    f"two kernels are registered for {name}", code="UIF-OP-BROKEN", op=name
                )
            found[name] = legalizer
    return found


#: Operator name -> legalisation, for ``relax.transform.LegalizeOps``.
LEGALIZE: dict[str, Legalizer] = _collected()

__all__ = ["LEGALIZE", "Legalizer"]
