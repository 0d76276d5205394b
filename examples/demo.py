"""A trained OCR network reads a line of text: export, load, run, compare, measure.

    python examples/demo.py ["text to read"]

The network is PP-OCRv4's recogniser (a CNN, attention and a CTC head, Apache-2.0), taken from a
pinned wheel. The image is drawn here. The same network runs in ONNX Runtime for comparison.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from fetch import OCR, fetch
from PIL import Image, ImageDraw, ImageFont
from rich import box
from rich.console import Console
from rich.table import Table

import uif

HEIGHT = 48
"""Pixel rows that the network was trained on; any width will do."""

TOLERANCE = 1e-4
console = Console(highlight=False)


def draw(text: str) -> Image.Image:
    """``text`` in black on white, 48 pixels high."""
    font = ImageFont.load_default(32)
    width = int(font.getlength(text)) + 32
    image = Image.new("RGB", (width, HEIGHT), "white")
    ImageDraw.Draw(image).text((16, HEIGHT // 2), text, fill="black", font=font, anchor="lm")
    return image


def show(image: Image.Image) -> None:
    """The image in the terminal: one character for two pixels above each other."""
    columns = min(console.width - 4, 110)
    rows = max(2, round(HEIGHT * columns / image.width / 2) * 2)
    dark = np.asarray(image.convert("L").resize((columns, rows))) < 140
    for top, bottom in zip(dark[::2], dark[1::2], strict=True):
        line = "".join(" ▄▀█"[int(b) + 2 * int(t)] for t, b in zip(top, bottom, strict=True))
        if line.strip():
            console.print("  " + line)


def preprocess(image: Image.Image) -> np.ndarray:
    """Image to float32[1, 3, 48, width] in [-1, 1], blue channel first, as in training."""
    pixels = np.asarray(image, np.float32)[:, :, ::-1] / 255
    return np.ascontiguousarray(((pixels - 0.5) / 0.5).transpose(2, 0, 1)[None])


def alphabet(model: Path) -> list[str]:
    """The network's characters; index 0 is CTC's blank, and a space comes last."""
    for entry in onnx.load(model).metadata_props:
        if entry.key == "character":
            return ["", *entry.value.splitlines(), " "]
    raise SystemExit(f"{model} does not list its characters")


def decode(probabilities: np.ndarray, characters: list[str]) -> str:
    """CTC's best path: the likeliest class per step, repeats merged, blanks dropped."""
    steps = probabilities[0].argmax(axis=-1)
    merged = [int(c) for i, c in enumerate(steps) if i == 0 or c != steps[i - 1]]
    return "".join(characters[c] for c in merged)


def confidence(probabilities: np.ndarray) -> float:
    """Mean probability of the steps that are characters, blanks left out."""
    best = probabilities[0].argmax(axis=-1)
    return float(probabilities[0].max(axis=-1)[best > 0].mean())


def median_ms(call: Any, runs: int = 15) -> float:
    """Median latency of ``call()``."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return float(np.median(times[runs // 3 :]))


def main(text: str) -> int:
    """Run the demo; 0 when both engines read the same and agree within TOLERANCE."""
    model = fetch(OCR)
    characters = alphabet(model)
    image = draw(text)
    x = preprocess(image)
    name = "x"

    console.rule("[bold]the input", align="left")
    show(image)

    console.rule("[bold]export", align="left")
    artifact = Path("build/demo/ocr.uif")
    artifact.parent.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    with console.status("compiling ...") as status:
        uif.export(
            str(model),
            {name: x},
            output_path=str(artifact),
            optimize_level=3,
            progress=lambda phase, done, total: status.update(f"{phase} {done}/{total}"),
        )
    seconds = time.perf_counter() - start
    size = artifact.stat().st_size / 1e6
    console.print(f"  {model.name} -> {artifact} ({size:.1f} MB) in {seconds:.1f} s")

    console.rule("[bold]run", align="left")
    engine = uif.load(str(artifact))
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    (ours,), (theirs,) = engine.run({name: x}), session.run(None, {name: x})
    difference = float(np.abs(ours - theirs).max())

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("engine", "reads", "confidence", "median latency"):
        table.add_column(column)
    results = (
        (f"uif {uif.__version__}", ours, lambda: engine.run({name: x})),
        (f"ONNX Runtime {onnxruntime.__version__}", theirs, lambda: session.run(None, {name: x})),
    )
    readings = []
    for label, output, call in results:
        readings.append(decode(output, characters))
        time.sleep(0.1)  # the other engine's threads spin for a while after their last run
        latency = f"{median_ms(call):.2f} ms"
        table.add_row(label, readings[-1], f"{confidence(output):.1%}", latency)
    console.print(table)
    agree = difference <= TOLERANCE and readings[0] == readings[1]
    verdict = "[green]they agree[/]" if agree else "[red]they DISAGREE[/]"
    console.print(f"  largest difference of any probability: {difference:.1e}: {verdict}")

    console.rule("[bold]statistics", align="left")
    for key, value in engine.get_stats().items():
        shown = f"{value:.2f}" if isinstance(value, float) else str(value)
        console.print(f"  {key:<16} {shown}")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main(" ".join(sys.argv[1:]) or "Hello 2026"))
