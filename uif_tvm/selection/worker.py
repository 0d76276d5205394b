"""The process that runs isolated tasks: one JSON line in, one JSON line out.

Started by :mod:`uif_tvm.selection.isolation`. What libraries print goes to stderr, so that the
answers on stdout stay readable. A task is ``module:function``, which takes keyword arguments and
returns plain data.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings
from typing import Any


def main() -> int:
    """Serve until stdin ends; arguments are modules to import first."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    for module in sys.argv[1:]:
        importlib.import_module(module)
    answers.write(json.dumps({"ready": os.getpid()}) + "\n")
    for line in sys.stdin:
        request = json.loads(line)
        answers.write(json.dumps(_answer(request["task"], request["arguments"])) + "\n")
    return 0


def _answer(task: str, arguments: dict[str, Any]) -> dict[str, Any]:
    module, function = task.split(":")
    try:
        value = getattr(importlib.import_module(module), function)(**arguments)
    except Exception as error:  # whatever a task raises is its answer, and the worker lives on
        to_dict = getattr(error, "to_dict", None)
        value = {"error": to_dict(), "exit_code": error.exit_code} if to_dict else {}  # type: ignore[attr-defined]
        return {"how": "error", "value": value, "detail": f"{type(error).__name__}: {error}"}
    return {"how": "done", "value": value}


if __name__ == "__main__":
    sys.exit(main())
