"""``make cases``: small inputs that once failed somewhere, each in a process of its own.

    python -m tests.cases.check [--cases DIR] [--levels "0 2 3"] [ID ...]

A folder of cases holds modules with a registry ``R``: a list of dicts with ``id``, ``kind``
(``onnx``, ``torch``, ``relax``, ``script``), ``build() -> (model, inputs, expected)``, ``tol``
(relative, absolute) and, for PyTorch, ``dynamic_shapes()`` and ``export_args()``; ``script``
cases have ``run() -> reason`` instead. Crashes and hangs are rows of the report. Writes
build/reports/cases.json; exit code 0 when every case is right or guarded.
"""

from __future__ import annotations

import argparse
import ast
import json
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.cases.run_one import RIGHT, find_case, guarded, registry, run_case

HERE = Path(__file__).parent / "registry"
TIMEOUT = 300
#: What the workers' common parent has imported already; they start in milliseconds.
PRELOAD = ["tvm", "onnx", "onnx.reference", "torch", "torch.export", "uif_tvm.api"]
_SPAWN = multiprocessing.get_context("forkserver")


def modules_with_registry(folder: Path) -> list[str]:
    """Modules of ``folder`` that bind ``R`` at their top level; none is imported for it."""
    found = []
    for path in sorted(folder.glob("*.py")):
        for statement in ast.parse(path.read_text()).body:
            if isinstance(statement, ast.Assign | ast.AnnAssign):
                targets = getattr(statement, "targets", None) or [statement.target]  # type: ignore[union-attr]
                if any(isinstance(t, ast.Name) and t.id == "R" for t in targets):
                    found.append(path.stem)
                    break
    return found


def listed(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(module, case) of every case in the folder."""
    for module in modules_with_registry(folder):
        for case in registry(folder, module):
            yield module, case


def _work(
    folder: str, module: str, name: str, levels: list[int], died: str | None, pipe: Any
) -> None:
    case = find_case(Path(folder), module, name)
    pipe.send(run_case(case, levels) if died is None else guarded(case, died))


def checked(
    folder: Path, module: str, case: dict[str, Any], levels: list[int], timeout: float = TIMEOUT
) -> dict[str, Any]:
    """The case's row. A probe that takes its process down is answered in another one."""
    row = isolated(folder, module, case["id"], levels, timeout=timeout)
    if case["kind"] == "script" and row["status"] in ("crash", "timeout"):
        died = f"{row['status']}: {row['message']}"
        row = isolated(folder, module, case["id"], levels, died, timeout)
    return row


def isolated(
    folder: Path,
    module: str,
    name: str,
    levels: list[int],
    died: str | None = None,
    timeout: float = TIMEOUT,
) -> dict[str, Any]:
    """:func:`run_case` in a process of its own, or the guard's answer to how that ``died``."""
    ours, theirs = _SPAWN.Pipe(duplex=False)
    worker = _SPAWN.Process(
        target=_work, args=(str(folder.resolve()), module, name, levels, died, theirs), daemon=True
    )
    worker.start()
    theirs.close()
    try:
        if not ours.poll(timeout):
            worker.kill()
            return {"status": "timeout", "message": f"not done in {timeout:g} s"}
        row: dict[str, Any] = ours.recv()
        return row
    except EOFError:
        worker.join(10)
        return {"status": "crash", "message": f"exit code {worker.exitcode}"}
    finally:
        worker.join(10)
        if worker.is_alive():
            worker.kill()
        ours.close()


def check_all(folder: Path, wanted: set[str], levels: list[int], jobs: int) -> list[dict[str, Any]]:
    """A row per case, told on the terminal as they come."""
    _SPAWN.set_forkserver_preload(PRELOAD)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    cases = [(m, case) for m, case in listed(folder) if not wanted or case["id"] in wanted]

    def one(item: tuple[str, dict[str, Any]]) -> dict[str, Any]:
        module, case = item
        start = time.perf_counter()
        row = {key: case.get(key) for key in ("id", "kind", "area", "source", "title")}
        row |= checked(folder, module, case, levels)
        row["seconds"] = round(time.perf_counter() - start, 1)
        colour = "green" if row["status"] in RIGHT else "red"
        first = (row["message"].splitlines() or [""])[0][:300]
        console.print(f"{row['id']}: [{colour}]{row['status']}[/] ({row['seconds']} s)")
        if first:
            console.print(f"    {first}", markup=False)
        return row

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, cases))


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts; a guarded fault of TVM's counts as right, and its row names the guard."""
    counts = Counter(row["status"] for row in rows)
    by_kind = {
        kind: {
            "right": sum(row["status"] in RIGHT for row in rows if row["kind"] == kind),
            "total": sum(row["kind"] == kind for row in rows),
        }
        for kind in sorted({row["kind"] for row in rows})
    }
    return {
        "right": sum(counts[status] for status in RIGHT),
        "total": len(rows),
        "by_status": dict(counts),
        "by_kind": by_kind,
    }


def main() -> int:
    """See the module text."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", type=Path, default=HERE)
    parser.add_argument("--levels", default="0 2 3")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--report", type=Path, default=Path("build/reports/cases.json"))
    parser.add_argument("ids", nargs="*", metavar="ID")
    args = parser.parse_args()
    if not args.cases.is_dir():
        parser.error(f"{args.cases} is no folder")
    known = {case["id"] for _, case in listed(args.cases)}
    if not known:
        parser.error(f"no module in {args.cases} has a registry R")
    if set(args.ids) - known:
        parser.error(f"not in {args.cases}: {', '.join(sorted(set(args.ids) - known))}")
    levels = [int(level) for level in args.levels.split()]
    rows = check_all(args.cases, set(args.ids), levels, args.jobs)
    summary = summarise(rows)
    body = {"right": summary["right"], "total": summary["total"], "levels": levels,
            "summary": summary, "rows": rows}  # fmt: skip
    args.report.parent.mkdir(parents=True, exist_ok=True)
    args.report.write_text(json.dumps(body, indent=2) + "\n")
    Console(highlight=False).print(
        f"{summary['right']} of {summary['total']} right; {summary['by_status']}; "
        f"report: {args.report}"
    )
    return 0 if summary["right"] == summary["total"] else 1


if __name__ == "__main__":
    sys.exit(main())
