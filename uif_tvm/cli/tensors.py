"""Arrays on the command line: ``NAME=@file`` in, ``NAME.npy`` out, and made-up ones."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from uif_tvm.errors import ArtifactIOError, InputError, UsageError
from uif_tvm.signature import Spec, TensorSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[Any]

#: Longest file name written, without its ending; most file systems stop at 255 bytes.
MAX_NAME = 120
_SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.")

input_option = click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="NAME=@FILE",
    help="An input from a .npy or .npz file (NAME=@f.npz takes the entry NAME); repeatable.",
)
shape_option = click.option(
    "--input-shape",
    "shapes",
    multiple=True,
    metavar="NAME=1,3,224,224",
    help="The shape of an input whose model leaves it open; repeatable.",
)


def split_assignment(text: str, option: str) -> tuple[str, str]:
    """``NAME=VALUE`` at the last ``=`` before the value, as names may contain any character."""
    marker = text.rfind("=@") if option == "--input" else text.rfind("=")
    if marker <= 0:
        form = {"--input": "NAME=@FILE", "--input-shape": "NAME=1,3,224,224"}.get(
            option, "NAME=batch:1..8,3,224,w or auto"
        )
        raise UsageError(f"{option} takes {form}, got {text!r}", code="UIF-USAGE-INPUT")
    return text[:marker], text[marker + (2 if option == "--input" else 1) :]


def read_inputs(assignments: Iterable[str]) -> dict[str, Array]:
    """Arrays named by ``NAME=@x.npy`` or ``NAME=@x.npz``; never unpickles.

    Raises:
        UsageError: malformed assignment, a name given twice, unreadable file.
    """
    arrays: dict[str, Array] = {}
    for text in assignments:
        name, file = split_assignment(text, "--input")
        if name in arrays:
            raise UsageError(f"input {name!r} is given twice", code="UIF-USAGE-INPUT")
        arrays[name] = _read_array(name, Path(file))
    return arrays


def _read_array(name: str, path: Path) -> Array:
    import numpy as np

    try:
        loaded = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise UsageError(
            f"input {name!r}: there is no file {path}",
            code="UIF-USAGE-INPUT",
            hint="write it with numpy.save(path, array)",
        ) from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(
            f"input {name!r}: {path} is not a .npy or .npz file of plain numbers: {error}",
            code="UIF-USAGE-INPUT",
            hint="write it with numpy.save(path, array); object arrays are not accepted",
        ) from error
    if isinstance(loaded, np.ndarray):
        return loaded
    with loaded as archive:
        names = list(archive.files)
        key = name if name in names else names[0] if len(names) == 1 else None
        if key is None:
            raise UsageError(
                f"input {name!r}: {path} holds {', '.join(map(repr, names)) or 'nothing'}",
                code="UIF-USAGE-INPUT",
                hint=f"store the array as {name!r}: numpy.savez(path, **{{{name!r}: x}})",
            )
        try:
            return np.asarray(archive[key])
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise UsageError(
                f"input {name!r}: entry {key!r} of {path} cannot be read: {error}",
                code="UIF-USAGE-INPUT",
            ) from error


def read_shapes(assignments: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Shapes from ``NAME=1,3,224,224`` (also with ``x`` between the numbers; ``NAME=`` is 0-d)."""
    shapes: dict[str, tuple[int, ...]] = {}
    for text in assignments:
        name, value = split_assignment(text, "--input-shape")
        try:
            shape = tuple(int(d) for d in value.replace("x", ",").split(",") if value)
        except ValueError:
            shape = (-1,)
        if any(extent < 0 for extent in shape):
            raise UsageError(
                f"--input-shape {name}: {value!r} is not a list of sizes",
                code="UIF-USAGE-SHAPE",
                hint=f"like --input-shape {name}=1,3,224,224",
            )
        shapes[name] = shape
    return shapes


def complete_shapes(
    specs: Sequence[TensorSpec],
    shapes: Mapping[str, tuple[int, ...]],
    given: Mapping[str, Array],
) -> dict[str, tuple[int, ...]]:
    """A concrete shape for each input that ``given`` has no array for.

    Raises:
        UsageError: names that the model lacks, shapes that contradict it, and dimensions that
            neither the model nor ``shapes`` settles; all of the latter in one message.
    """
    known = {spec.name for spec in specs}
    for name in [*shapes, *given]:
        if name not in known:
            raise UsageError(
                f"the model has no input {name!r}; its inputs are {listed(specs)}",
                code="UIF-USAGE-INPUT",
            )
    result: dict[str, tuple[int, ...]] = {}
    unsettled: list[TensorSpec] = []
    for spec in specs:
        if spec.name in given:
            continue
        if spec.name in shapes:
            result[spec.name] = _fitting(spec, shapes[spec.name])
        elif all(isinstance(extent, int) for extent in spec.shape):
            result[spec.name] = tuple(int(extent) for extent in spec.shape)
        else:
            unsettled.append(spec)
    if unsettled:
        raise UsageError(
            "the model leaves dimensions open in " + listed(unsettled),
            code="UIF-USAGE-SHAPE",
            hint="say how large they are: "
            + " ".join(f"--input-shape '{s.name}={_example(s)}'" for s in unsettled)
            + "  (put your own sizes in)",
        )
    return result


def _fitting(spec: TensorSpec, shape: tuple[int, ...]) -> tuple[int, ...]:
    fits = len(shape) == len(spec.shape) and all(
        isinstance(wanted, str) or wanted == extent
        for wanted, extent in zip(spec.shape, shape, strict=False)
    )
    if not fits:
        raise UsageError(
            f"--input-shape {spec.name}={','.join(map(str, shape))} contradicts the model, "
            f"which declares {spec}",
            code="UIF-USAGE-SHAPE",
        )
    return shape


def _example(spec: TensorSpec) -> str:
    return ",".join(str(d) if isinstance(d, int) else "1" for d in spec.shape)


def listed(specs: Sequence[Spec]) -> str:
    """Signatures in one line."""
    return "; ".join(map(str, specs)) or "none"


def synthesise(
    specs: Sequence[TensorSpec], shapes: Mapping[str, tuple[int, ...]], seed: int = 0
) -> dict[str, Array]:
    """Made-up inputs: floats from N(0, 1), integers 0 or 1, booleans true, texts ``a``, the same
    per ``seed``.

    Integers stay below 2 as they are mostly indices, of which nothing tells the range.
    """
    import numpy as np

    rng = np.random.default_rng(seed)
    made: dict[str, Array] = {}
    for spec in specs:
        if spec.name not in shapes:
            continue
        if spec.dtype == "string":
            made[spec.name] = np.full(shapes[spec.name], "a")
            continue
        dtype = numpy_dtype(spec)
        shape = shapes[spec.name]
        if dtype.kind == "b":
            made[spec.name] = np.ones(shape, dtype)
        elif dtype.kind in "iu":
            made[spec.name] = rng.integers(0, 2, shape).astype(dtype)
        else:
            made[spec.name] = rng.standard_normal(shape).astype(dtype)
    return made


def numpy_dtype(spec: TensorSpec) -> np.dtype[Any]:
    """The NumPy dtype of an input, ``bfloat16`` and 8-bit floats included."""
    import ml_dtypes
    import numpy as np

    try:
        return np.dtype(getattr(ml_dtypes, spec.dtype, spec.dtype))
    except TypeError:
        raise InputError(
            f"input {spec.name!r} has dtype {spec.dtype}, of which no array can be made",
            hint=f"give it yourself: --input {spec.name}=@FILE",
        ) from None


def safe_file_name(name: str) -> str:
    """A file name for an output called ``name``, which may be any text: JSON, paths, anything.

    Characters other than ``[A-Za-z0-9_.-]`` and a leading dot are percent-encoded, so that
    different names stay different; very long names end in a digest.
    """
    encoded = "".join(
        char
        if char in _SAFE and not (index == 0 and char == ".")
        else "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))
        for index, char in enumerate(name)
    )
    if not encoded:
        return "%"
    if len(encoded) <= MAX_NAME:
        return encoded
    digest = hashlib.sha256(encoded.encode()).hexdigest()[:12]
    return f"{encoded[: MAX_NAME - 13]}-{digest}"


def write_outputs(folder: Path, names: Sequence[str], arrays: Sequence[Array]) -> dict[str, str]:
    """Write one ``.npy`` per output and ``outputs.json``, which maps names to files.

    Each file is written aside and then moved into place, so no half-written one is ever seen.

    Raises:
        ArtifactIOError: the folder or a file cannot be written.
    """
    files: dict[str, str] = {}
    taken: set[str] = {"outputs.json"}
    for name in names:
        stem = file = safe_file_name(name)
        count = 1
        while f"{file}.npy".lower() in taken:  # some file systems ignore case
            count += 1
            file = f"{stem}~{count}"
        taken.add(f"{file}.npy".lower())
        files[name] = f"{file}.npy"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for (_, file), array in zip(files.items(), arrays, strict=True):
            _write_npy(folder / file, array)
        index = json.dumps({"outputs": files}, indent=2, ensure_ascii=True)
        _replace(folder / "outputs.json", index.encode())
    except OSError as error:
        raise ArtifactIOError(
            f"cannot write outputs to {folder}: {error.strerror or error}",
            stage="run",
            code="UIF-RUN-WRITE",
            hint="choose a folder that can be written with --output-dir",
        ) from error
    return files


def _write_npy(path: Path, array: Array) -> None:
    import io

    import numpy as np

    plain = array
    if array.dtype.kind == "V":  # bfloat16 and its like: np.load would not know them
        plain = array.astype(np.float32)
    elif array.dtype.kind == "O":  # texts: np.load takes them without unpickling in this form
        plain = array.astype(np.str_)
    buffer = io.BytesIO()
    np.save(buffer, np.ascontiguousarray(plain) if plain.ndim else plain, allow_pickle=False)
    _replace(path, buffer.getvalue())


def _replace(path: Path, data: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".uif-", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
