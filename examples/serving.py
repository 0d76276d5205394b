"""One engine, many threads: a request handler may call ``engine.run`` without any lock.

Each request is checked against the answer that a single thread gives.
"""

from __future__ import annotations

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import nn

import uif

CLIENTS, REQUESTS = 8, 200


def main() -> None:
    """Serve REQUESTS requests from CLIENTS threads."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10), nn.Softmax(-1)).eval()
    rng = np.random.default_rng(0)
    requests = [rng.standard_normal((1, 64)).astype(np.float32) for _ in range(REQUESTS)]
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "mlp.uif"))
        uif.export(module, torch.zeros(1, 64), output_path=path)
        # Many requests at once keep the cores busy, so one thread per request is enough.
        engine = uif.load(path, threads=1)
        expected = [engine.run(x)[0] for x in requests]

        start = time.perf_counter()
        with ThreadPoolExecutor(CLIENTS) as pool:
            answers = list(pool.map(lambda x: engine.run(x)[0], requests))
        seconds = time.perf_counter() - start

    wrong = sum(not np.array_equal(a, b) for a, b in zip(answers, expected, strict=True))
    print(f"{REQUESTS} requests from {CLIENTS} threads: {REQUESTS / seconds:.0f} a second")
    print(f"{wrong} wrong answers")
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
