"""Damaged ``.pt2`` archives: the program's JSON changed in its structure, or bytes in the file."""

from __future__ import annotations

import io
import json
import random
import zipfile
from typing import Any

from tests.fuzz.mutate import SIZES, TEXTS, damaged

STRANGE = (None, True, False, -1, 0, 2**40, 1e300, "", "x", [], {}, [None], {"as_int": 7})


def mutated_archive(data: bytes, rng: random.Random) -> bytes:
    """The archive after one to three changes of its parts, or of the bytes of the whole file."""
    if rng.random() < 0.15:
        return damaged(data, rng)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    for _ in range(rng.choice((1, 1, 2, 3))):
        _change_part(parts, rng)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return out.getvalue()


def _change_part(parts: dict[str, bytes], rng: random.Random) -> None:
    programs = [name for name in parts if name.endswith(".json")]
    if programs and rng.random() < 0.75:
        name = rng.choice(programs)
        try:
            tree = json.loads(parts[name])
        except ValueError:
            return
        _change_tree(tree, rng)
        parts[name] = json.dumps(tree).encode()
        return
    name = rng.choice(list(parts))
    how = rng.randrange(4)
    if how == 0:
        del parts[name]
    elif how == 1:
        parts[rng.choice((f"{name}x", "../escape", "/absolute", name.upper()))] = parts.pop(name)
    elif how == 2:
        parts[f"{name.split('/')[0]}/extra/thing.so"] = b"\x7fELF"
    else:
        parts[name] = damaged(parts[name], rng)
    if not parts:
        parts["archive/version"] = b"0"


def _change_tree(tree: Any, rng: random.Random) -> None:
    """One place of a JSON document gets a strange value, moves, doubles or goes."""
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in list(items):
            places.append((value, key))
            if isinstance(item, (dict, list)):
                walk(item)

    walk(tree)
    if not places:
        return
    holder, key = rng.choice(places)
    how = rng.randrange(6)
    if how == 0:
        del holder[key]
    elif how == 1:
        holder[key] = rng.choice(STRANGE)
    elif how == 2:
        other, name = rng.choice(places)
        if name in other if isinstance(other, dict) else name < len(other):
            holder[key] = json.loads(json.dumps(other[name]))
    elif how == 3 and isinstance(holder, list):
        holder.append(json.loads(json.dumps(holder[key])))
    elif how == 4 and isinstance(holder, dict):
        holder[rng.choice(TEXTS)] = holder.pop(key)
    elif isinstance(holder[key], int):
        holder[key] = rng.choice(SIZES)
    else:
        holder[key] = rng.choice(TEXTS)
