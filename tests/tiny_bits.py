"""A process of its own for test_same_bits.py: digests of what models compute, under one and under two threads, as JSON.

    python tiny_bits.py TOKENS CASE...

TOKENS is how many are generated. A case is the path of an artifact (*.thin) or a model made in memory: of one number format, or "source" for
dense float32.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import replace

import numpy as np
import torch

from thinlm.passes import import_pipeline, run_pipeline
from thinlm.runtime_min import load_artifact, open_artifact, options_of
from thinlm.runtime_min.backends.torch_cpu import TorchBackend
from thinlm.runtime_min.model import Model, ModelOptions
from tiny import Dims, MemoryWeights, tiny_graph
from tiny_packed import Packed, encoded

DIMS = Dims(hidden=192, ffn=320, layers=2, heads=6, kv_heads=3, head_dim=32, vocab=1500, windows=(40, 0), tied=True, bias=True)
LENGTHS = (1, 7, 8, 9, 16, 17, 64, 100, 129)


def model(case: str) -> Model:
    """What `case` names."""
    if case.endswith(".thin"):
        artifact = open_artifact(case)
        return load_artifact(artifact, options=replace(options_of(artifact), context=256))
    graph, _ = run_pipeline(tiny_graph(DIMS), import_pipeline())
    weights, options = MemoryWeights(graph), ModelOptions(context=256, vocab=DIMS.vocab, kv_dtype="f16")
    if case == "source":
        return Model(graph, weights, TorchBackend(), options)
    return Model(encoded(graph, case), Packed(encoded(graph, case), weights), TorchBackend(), options)


def digest(array: np.ndarray) -> str:
    """Of its bytes."""
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def computed(m: Model, new_tokens: int) -> dict[str, str]:
    """What is compared: whole texts, cached texts in two ways, new tokens in two ways."""
    rng, out = np.random.default_rng(7), {}
    for length in LENGTHS:
        ids = rng.integers(0, m.options.vocab, length)
        for name, array in m.trace(ids).items():
            out[f"trace {length} {name}"] = digest(array)
        with m.session() as s:
            out[f"append {length}"] = digest(s.append(ids))
            out[f"advance {length}"] = digest(s.advance(ids[:5]))
    for temperature in (0.0, 1.0):
        tokens = m.generate([5, 6, 7], new_tokens, temperature=temperature, seed=11, ignore_eos=True)
        assert len(tokens) == new_tokens
        out[f"tokens at temperature {temperature}"] = digest(np.array(tokens))
    return out


if __name__ == "__main__":
    found = {}
    count, *cases = sys.argv[1:]
    for case in cases:
        loaded = model(case)
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found[f"{case} threads={threads}"] = computed(loaded, int(count))
    sys.stdout.write(json.dumps(found))
