"""Decode speed of an artifact on the torch CPU backend beside transformers' eager decode of its source, in one process, runs alternated.

    python benchmarks/cpu_decode.py ARTIFACT SOURCE [--threads 2] [--tokens 128] [--rounds 5]

Prints tokens per second (median and range) of each, and the ratio to the faster of transformers' bfloat16 and float32.
Greedy, batch 1, 32 prompt tokens.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import transformers

from thinlm.runtime_min import load


def cpu_name() -> str:
    """The processor's name, where Linux tells."""
    info = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    return names[0] if names else platform.processor()


def main() -> None:
    """See module docstring."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("artifact", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    transformers.logging.set_verbosity_error()
    model = load(args.artifact)
    ids = np.random.default_rng(0).integers(4, model.options.vocab, 32).tolist()
    rows: dict[str, Callable[[], object]] = {"thinc torch_cpu": lambda: model.generate(ids, args.tokens, ignore_eos=True)}
    for dtype in (torch.float32, torch.bfloat16):
        peer = transformers.AutoModelForCausalLM.from_pretrained(args.source, dtype=dtype).eval()
        inputs = torch.tensor([ids])
        fixed = {"max_new_tokens": args.tokens, "min_new_tokens": args.tokens, "do_sample": False}
        rows[f"transformers {str(dtype).removeprefix('torch.')}"] = lambda peer=peer, inputs=inputs, fixed=fixed: peer.generate(inputs, **fixed)
    speeds: dict[str, list[float]] = {name: [] for name in rows}
    for turn in range(args.rounds + 1):
        for name, run in rows.items():
            start = time.perf_counter()
            run()
            if turn:  # the first round warms up
                speeds[name].append(args.tokens / (time.perf_counter() - start))
    print(f"{cpu_name()}, {args.threads} threads, torch {torch.__version__}, transformers {transformers.__version__}")
    for name, found in speeds.items():
        print(f"{name:<24} {statistics.median(found):7.1f} tokens/s  ({min(found):.1f} .. {max(found):.1f})")
    best = max(statistics.median(found) for name, found in speeds.items() if name.startswith("transformers"))
    print(f"ratio to the faster peer: {statistics.median(speeds['thinc torch_cpu']) / best:.2f}")


if __name__ == "__main__":
    main()
