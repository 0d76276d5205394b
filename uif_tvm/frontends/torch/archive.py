"""Reading ``.pt2`` files without running anything that is in them.

``torch.export.load`` (2.13) trusts its input: pickled weights and opaque constants are loaded
with ``weights_only=False``, sample inputs fall back to it, operator names are resolved by
``getattr`` from the ``torch`` module (``torch.os.system``), size expressions go through
``sympy.sympify``, which evaluates them, and ahead-of-time compiled parts are opened as native
libraries. So every file is checked first: the archive's structure and check sums, no native or
pickled parts, only operator names and plain size expressions in the program text.
"""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from uif_tvm.errors import ImportModelError
from uif_tvm.frontends.torch.quiet import quietly

#: An archive member may not unpack to more than this many times its stored size.
_MAX_EXPANSION = 200
#: Largest program text, in bytes; real ones stay under a few hundred MB.
_MAX_TEXT = 1 << 30

_OPERATOR = re.compile(
    r"torch\.ops\.[A-Za-z]\w*\.(?!__)\w+\.[A-Za-z]\w*"
    r"|torch\.ops\.aten\.__(and|or|xor|lshift|rshift)__\.[A-Z]\w*"
    r"|torch\.ops\.higher_order\.[A-Za-z]\w*"
    r"|torch\._?sym_\w+"
    r"|_operator\.(getitem|add|sub|mul|floordiv|truediv|mod|neg|pow|and_|or_|not_|pos)"
    r"|_operator\.(lt|le|gt|ge|eq|ne)"
    r"|math\.(ceil|floor|trunc|sqrt)"
)
#: Size symbols, as sympy writes them; taken out before the rest is looked at.
_SYMBOL = re.compile(r"Symbol\('[A-Za-z]\w{0,30}'(?:, [a-z]+=(?:True|False))*\)")
_EXPRESSION = re.compile(
    r"(?:\b(?:[su]\d+|zf\d+|int_oo|oo|True|False|Add|Mul|Pow|Integer|Float|Rational|Max|Min|Mod"
    r"|PythonMod|FloorDiv|CleanDiv|CeilDiv|ModularIndexing|IntTrueDiv|FloatTrueDiv|ToFloat"
    r"|TruncToInt|FloorToInt|CeilToInt|RoundToInt|Identity|Where|Eq|Ne|Lt|Le|Gt|Ge|Equality"
    r"|Unequality|StrictLessThan|LessThan|StrictGreaterThan|GreaterThan|And|Or|Not|true|false"
    r"|floor|ceiling|PowByNatural|FloatPow|BitwiseFn_bitwise_and|BitwiseFn_bitwise_or"
    r"|\d+(?:\.\d+)?)\b|[-+*/(),<>=&|~! ])*"
)
#: Longer expressions are no sizes; sympy takes for ever over them.
_MAX_EXPRESSION = 4000


def load_archive(path: str | os.PathLike[str]) -> torch.export.ExportedProgram:
    """The program in a ``.pt2`` file.

    Raises:
        ImportModelError: the file cannot be read, is damaged, unsafe, or no exported program.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ImportModelError(
            f"cannot read {os.fspath(path)}: {error.strerror or error}",
            code="UIF-IMPORT-FILE",
            hint="pass the path of a .pt2 file",
        ) from error
    try:
        with quietly():
            program = torch.export.load(_checked_copy(data))
    except ImportModelError as error:
        raise ImportModelError(
            f"{os.fspath(path)}: {error.message}", code=error.code, hint=error.hint
        ) from error
    except Exception as error:
        raise ImportModelError(
            f"{os.fspath(path)} cannot be loaded: {type(error).__name__}: {error}",
            hint="write it again with torch.export.save of this PyTorch version",
        ) from error
    # Python source that ExportedProgram.module() would execute; nothing here needs it.
    program._guards_code = []
    return program


def _unsafe(message: str) -> ImportModelError:
    return ImportModelError(
        message,
        code="UIF-IMPORT-UNSAFE",
        hint="load it with torch.export.load in an environment you trust, and pass the program",
    )


def _checked_copy(data: bytes) -> io.BytesIO:
    """A new archive of the members that were checked.

    PyTorch reads archives with another library, which may see other members in a crafted file.

    Raises:
        ImportModelError: the archive is damaged, or loading it would run code.
    """
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except zipfile.BadZipFile as error:
        raise ImportModelError(
            f"not a .pt2 archive: {error}", hint="pass a file written by torch.export.save"
        ) from error
    copy = io.BytesIO()
    with archive, zipfile.ZipFile(copy, "w", zipfile.ZIP_STORED) as clean:
        members = archive.infolist()
        if len({info.filename for info in members}) != len(members):
            raise _unsafe("the archive has two members of one name")
        for info in members:
            _check_member(info)
            try:
                content = archive.read(info)  # checks the sum
            except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
                raise ImportModelError(
                    f"archive member {info.filename!r} is damaged: {error}",
                    hint="write the file again with torch.export.save",
                ) from error
            _check_content(info.filename, content)
            clean.writestr(info.filename, content)
        kinds = {info.filename.split("/", 1)[-1] for info in members}
        if "archive_format" not in kinds:
            raise ImportModelError(
                "not written by torch.export.save"
                + (": it is a TorchScript file" if "constants.pkl" in kinds else ""),
                hint="pass the model itself, or save torch.export.export(model, inputs) with "
                "torch.export.save",
            )
    copy.seek(0)
    return copy


def _check_member(info: zipfile.ZipInfo) -> None:
    parts = info.filename.split("/")
    if info.filename.startswith("/") or ".." in parts or "\\" in info.filename:
        raise _unsafe(f"archive member {info.filename!r} points outside the archive")
    if info.file_size > _MAX_EXPANSION * max(info.compress_size, 1):
        raise _unsafe(f"archive member {info.filename!r} unpacks to {info.file_size} bytes")
    if info.external_attr >> 28 == 0o12:
        raise _unsafe(f"archive member {info.filename!r} is a link")


def _check_content(name: str, content: bytes) -> None:
    inner = name.split("/", 1)[-1]
    if inner.startswith("data/aotinductor/"):
        raise _unsafe("the archive contains native code (ahead-of-time compiled model)")
    base = inner.rsplit("/", 1)[-1]
    if base.startswith(("custom_obj", "opaque_obj")):
        raise _unsafe(f"the archive contains a pickled object, {inner!r}")
    if base.endswith(".pt"):
        _check_pickle(content, inner)
    elif base.endswith(".json"):
        if len(content) > _MAX_TEXT:
            raise _unsafe(f"{inner!r} is too large")
        _check_text(json.loads(content), inner)


def _check_pickle(data: bytes, where: str) -> None:
    """A ``torch.save`` file must load with tensors and plain containers alone."""
    if not data:
        return
    try:
        torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except Exception as error:
        raise _unsafe(f"{where!r} holds more than tensors: {error}") from error


def _walk(value: Any) -> Iterator[tuple[str, Any]]:
    """Every key and value of nested JSON, without recursion."""
    stack: list[tuple[str, Any]] = [("", value)]
    while stack:
        key, item = stack.pop()
        yield key, item
        if isinstance(item, dict):
            stack.extend(item.items())
        elif isinstance(item, list):
            stack.extend((key, entry) for entry in item)


def _is_plain(expression: Any) -> bool:
    """Whether a size expression is sums, products and the like of symbols and numbers."""
    if not isinstance(expression, str) or len(expression) > _MAX_EXPRESSION:
        return False
    return _EXPRESSION.fullmatch(_SYMBOL.sub("s0", expression)) is not None


def _check_text(document: Any, where: str) -> None:
    """Only operator names, plain size expressions and raw tensors in the program's JSON."""
    for key, item in _walk(document):
        if key == "use_pickle" and item is not False:
            raise _unsafe(f"{where!r} refers to pickled tensors")
        if key == "expr_str" and not _is_plain(item):
            raise _unsafe(f"size expression {str(item)[:60]!r} is not plain arithmetic")
        if key == "range_constraints" and isinstance(item, dict):
            for symbol in item:
                if not _is_plain(symbol):
                    raise _unsafe(f"size symbol {symbol[:60]!r} is not plain arithmetic")
        if key == "nodes" and isinstance(item, dict):
            target = item.get("target")
            if not isinstance(target, str) or _OPERATOR.fullmatch(target) is None:
                raise _unsafe(f"operator {str(target)[:80]!r} is not a PyTorch operator")
