"""uif: the layer between model frameworks and chips, built on Apache TVM.

    import uif

    uif.export(model, dummy_input, output_path="model.uif")
    engine = uif.load("model.uif")
    outputs = engine.run(x)

Importing this package checks that the installed versions fit together and imports nothing heavy;
NumPy and TVM come along with the first call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uif_tvm import compat
from uif_tvm.errors import UifError

if TYPE_CHECKING:
    from uif_tvm.api import export, load
    from uif_tvm.frontends.extension import register_op
    from uif_tvm.selection.coverage import coverage
    from uif_tvm.selection.reduction import reduce

__version__ = "0.1.0"
__all__ = ["UifError", "__version__", "coverage", "export", "load", "reduce", "register_op"]

#: Public function -> the module that has it; imported on first use.
_LAZY = {
    "coverage": "uif_tvm.selection.coverage",
    "export": "uif_tvm.api",
    "load": "uif_tvm.api",
    "register_op": "uif_tvm.frontends.extension",
    "reduce": "uif_tvm.selection.reduction",
}

compat.check()


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
