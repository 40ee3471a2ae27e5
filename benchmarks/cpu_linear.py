"""Time of torch_cpu's linear layer per format and shape: python benchmarks/cpu_linear.py [--threads 2] [--tokens 1,512] [--formats a/1,b/1]

Prints, per matrix of a 31M-parameter llama, the fastest of many runs in microseconds, the resident bytes read per second, and their share of
a plain copy's read bandwidth in the same run; then the sum over the model (9 layers and the tied head) for one forward pass.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

from thinlm.artifacts.formats import Format, get_format
from thinlm.runtime_min.backends.torch_cpu.linear import PackedLinear
from thinlm.schemas.encoding import ELEMENT_BITS, Slab

# name, rows, columns, how many in the model
MATRICES = (("q k v", 768, 512, 9), ("o", 512, 512, 9), ("gate up", 3072, 512, 9), ("down", 512, 1536, 9), ("head", 8192, 512, 1))
FORMATS = ("int2-sym-g64/1", "int3-sym-g64/1", "int4-sym-g64/1", "int4-aff-g64/1", "int6-sym-g64/1", "int8-sym-g64/1", "bf16/1", "f32/1")
COPY_BYTES = 64 << 20


def random_raw(fmt: Format, rows: int, cols: int, rng: np.random.Generator) -> np.ndarray:
    """Encoded rows with small finite scales."""
    parts = {}
    for part in fmt.spec.parts:
        count = {"in": cols, "groups": -(-cols // fmt.group) if fmt.group else 1, "one": 1}[part.count]
        values = (rng.random((rows, count), np.float32) - 0.5) / 16
        if part.type.startswith("u"):
            parts[part.name] = rng.integers(0, 2 ** ELEMENT_BITS[part.type], (rows, count), np.uint8)
        elif part.type == "bf16":
            parts[part.name] = (values.view(np.uint32) >> 16).astype(np.uint16)
        elif part.type == "f8e4m3":
            parts[part.name] = rng.integers(0, 0x78, (rows, count), np.uint8)
        else:
            parts[part.name] = values.astype({"f16": np.float16, "f32": np.float32}[part.type])
    return fmt.pack(parts)


def fastest(call: Callable[[], object], seconds: float) -> float:
    """Seconds of the fastest run within a time budget."""
    call()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--threads", type=int, default=torch.get_num_threads())
    options.add_argument("--tokens", default="1")
    options.add_argument("--formats", default=",".join(FORMATS))
    options.add_argument("--seconds", type=float, default=0.5, help="per measurement")
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    rng = np.random.default_rng(0)
    source = torch.zeros(COPY_BYTES, dtype=torch.uint8)
    target = torch.empty_like(source)
    copy = COPY_BYTES / fastest(lambda: target.copy_(source), args.seconds)
    print(f"threads {args.threads}, copy reads {copy / 1e9:.1f} GB/s")
    print(f"{'format':16} {'tokens':>6} {'matrix':8} {'shape':>10} {'us':>9} {'GB/s':>6} {'of copy':>7}")
    for name in args.formats.split(","):
        fmt = get_format(name)
        loaded = [
            (PackedLinear.from_slabs(name, [(rows, cols)], [[Slab(0, rows, 0, cols, random_raw(fmt, rows, cols, rng))]]), *row)
            for row in MATRICES
            for rows, cols in [row[1:3]]
        ]
        for tokens in map(int, args.tokens.split(",")):
            total = 0.0
            for linear, matrix, rows, cols, count in loaded:
                x = torch.randn(tokens, cols)
                with torch.inference_mode():
                    took = fastest(lambda linear=linear, x=x: linear(x), args.seconds)
                total += took * count
                speed = linear.nbytes / took
                shape = f"{rows}x{cols}"
                print(f"{name:16} {tokens:6} {matrix:8} {shape:>10} {took * 1e6:9.1f} {speed / 1e9:6.1f} {speed / copy:7.0%}")
            speed = sum(linear.nbytes * row[-1] for linear, *row in loaded) / total
            print(f"{name:16} {tokens:6} {'model':8} {'':>10} {total * 1e6:9.1f} {speed / 1e9:6.1f} {speed / copy:7.0%}", flush=True)


if __name__ == "__main__":
    main()
