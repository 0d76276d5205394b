"""A trained ONNX model at work: what kind of files are these?

    python examples/onnx_model.py FILE ...

Magika's classifier looks at the first and the last bytes of a file and names its type. The model
(Apache-2.0) comes from a pinned wheel. It is compiled once and reused on the next call.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from fetch import FILE_TYPES, fetch

import uif


def features(data: bytes, config: dict[str, Any]) -> np.ndarray:
    """First and last bytes without surrounding white space, int32[1, begin + end], padded."""
    block, padding = config["block_size"], config["padding_token"]
    begin = data[:block].lstrip()[: config["beg_size"]]
    end = data[-block:].rstrip()[-config["end_size"] :]
    head = list(begin) + [padding] * (config["beg_size"] - len(begin))
    tail = [padding] * (config["end_size"] - len(end)) + list(end)
    return np.array([head + tail], np.int32)


def main(files: list[str]) -> None:
    """Name the type of each file."""
    model = fetch(FILE_TYPES)
    config = json.loads(model.with_name("config.min.json").read_text())
    artifact = Path("build/examples/magika.uif")
    if not artifact.exists():
        artifact.parent.mkdir(parents=True, exist_ok=True)
        # One input of a fixed size; compile for just that.
        uif.export(str(model), features(b"", config), output_path=str(artifact))
    engine = uif.load(str(artifact))
    for file in files:
        (scores,) = engine.run(features(Path(file).read_bytes(), config))
        best = int(scores[0].argmax())
        label = config["target_labels_space"][best]
        print(f"{file}: {label} ({scores[0, best]:.0%})")


if __name__ == "__main__":
    main(sys.argv[1:] or [__file__])
