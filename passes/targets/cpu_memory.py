"""What the torch CPU backend allocates per step, as arithmetic: it follows runtime_min/backends/torch_cpu operation by operation.

In: a Call. Out: a Footprint. All values are float32 and a batch is one sequence. Temporaries count while Python names hold them; what torch
allocates and frees inside one operation is not seen (nor by the meter of the certificate). tests/passes/test_plan_memory.py compares the
whole with measured peaks. Ops without a row allocate their result only.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from ...artifacts.formats import FORMATS
from ...runtime_min.targets import FEW_TOKENS, TAIL, TOKEN_TILE, block_widths, int_codes, scratch_bytes
from ...schemas.kv import KV_ITEM_BYTES
from .base import Call, Footprint, Shape

F32, I32, I64, F64 = 4, 4, 8, 8
MASK_RUN = 8  # inputs that one mask row covers
VIEWS = frozenset({"reshape", "transpose", "slice"})
TEMPORARIES = {"softplus": 1, "softcap": 1, "gelu": 0}  # of the result's size, beside it


def size(shape: Shape) -> int:
    """Bytes of a float32 value."""
    return F32 * prod(shape)


def footprint(call: Call) -> Footprint:
    """See module docstring."""
    if call.op in VIEWS:
        return Footprint(0)
    if call.op in SPECIAL:
        return SPECIAL[call.op](call)
    out = size(call.outs[0])
    return Footprint(out * (1 + TEMPORARIES.get(call.op, 0)), (out,))


def _norm(call: Call) -> Footprint:
    """The square or the scaled input beside the result; a layer norm also holds its centred input; one number per row several times."""
    out, rows = size(call.outs[0]), prod(call.shapes[0][:-1])
    held = 3 if call.attrs["kind"] == "layer" else 2
    return Footprint(held * out + 4 * F32 * rows * int(call.attrs["groups"]), (out,))  # pyright: ignore[reportArgumentType]


def _rope(call: Call) -> Footprint:
    """Both rotated halves beside two products, or beside their concatenation; the tables are computed in float64 when first needed."""
    x, freqs = call.shapes[0], call.shapes[2][0]
    out, rotated = size(x), F32 * prod(x[:-1]) * 2 * freqs
    peak = 2 * rotated if rotated == out else 2 * rotated + out
    return Footprint(peak + 3 * F64 * x[1] * freqs, (out,))


def _embedding(call: Call) -> Footprint:
    """Gathered codes as bytes (three at a time), decoded values, and the rows put together."""
    out, tokens, cols = size(call.outs[0]), call.outs[0][1], call.outs[0][-1]
    fmt = FORMATS[call.format]
    codes = int_codes(fmt)
    depth = cols if codes is None else codes.groups(cols) * codes.group
    return Footprint(out + tokens * depth * (F32 + 4) + 4 * I64 * tokens, (out,))


def _linear(call: Call) -> Footprint:
    """The kernel's own bound, also for one token less, when inputs are padded to whole tiles; with biases a new value per result."""
    tokens, cols = prod(call.shapes[0][:-1]), call.shapes[0][-1]
    rows = sum(s[-1] for s in call.outs)
    product, outs = F32 * tokens * rows, tuple(map(size, call.outs))
    if int_codes(FORMATS[call.format]) is not None:  # results come in whole tiles
        tiled = tokens if tokens <= FEW_TOKENS else -(-tokens // TOKEN_TILE) * TOKEN_TILE
        product = F32 * tiled * sum(block_widths(rows))
    peak = max(scratch_bytes(call.format, rows, cols, t) for t in {tokens, max(1, tokens - 1)})
    if not any(call.biased):
        return Footprint(peak, (product,))
    kept = tuple(o if b else product for o, b in zip(outs, call.biased, strict=True))  # a result without a bias keeps the product alive
    return Footprint(max(peak, product + sum(outs)), kept)


def _attention(call: Call) -> Footprint:
    """Keys and values as read, the permuted query, three times the scores (in softmax), distances and the mask."""
    query, key, value, _, *extras = call.shapes  # extras: sinks, slopes
    (_, t, n, _), (_, _, m, dk), dv, s = query, key, value[-1], call.keys
    out, item = size(call.outs[0]), KV_ITEM_BYTES[call.kv_dtype]
    read = s * m * (dk + dv)
    copies = F32 * read if call.kv_dtype != "f32" or call.gathered else 0
    fetch = copies + (I64 * s + (item * s * m * dv if call.kv_dtype != "f32" else 0) if call.gathered else 0)
    stored = item * t * m * dk if call.kv_dtype != "f32" else 0
    scores, pairs = F32 * n * t * s, t * s
    softmax = 3 * scores + (I32 + 1) * pairs + 3 * F32 * n * t
    values = 2 * scores + (I32 + 1) * pairs + 2 * out
    biased = 3 * scores + I32 * pairs if any(extras[1:]) else 0
    return Footprint(max(stored, fetch, copies + 2 * I32 * s + size(query) + max(softmax, values, biased)), (out,))


SPECIAL: dict[str, Callable[[Call], Footprint]] = {
    "norm": _norm,
    "rope": _rope,
    "embedding": _embedding,
    "linear": _linear,
    "attention": _attention,
}


def table_bytes(loads: frozenset[tuple[str, int, int]], tokens: int) -> int:
    """Masks and routes that the integer kernel keeps: per width of outputs and of codes, and per depth; for decoding whole weights and for
    products through the codes, of single tokens and of `tokens` where those are few."""
    masks: set[tuple[int, int]] = set()
    routes: set[tuple[int, int, int]] = set()
    for name, rows, cols in loads:
        codes = int_codes(FORMATS[name])
        for width in block_widths(rows) if codes else ():
            assert codes is not None
            depth = codes.groups(cols) * codes.group
            span = min(depth, codes.groups_per_span(width) * codes.group)
            masks |= {(codes.held_bits, width)} if codes.held_bits < 8 else set()
            routes |= {(codes.held_bits, inputs, codes.group) for inputs in (span, depth % span or span)}
    kept = sum(8 // bits * MASK_RUN * (width * bits // 8 + TAIL) for bits, width in masks)
    kept += sum(2 * I32 * inputs * 8 // bits for bits, inputs in {route[:2] for route in routes})
    times = 1 + (tokens if 1 < tokens <= FEW_TOKENS else 0)
    return kept + times * sum(I32 * (1 + group) * inputs * 8 // bits // group for bits, inputs, group in routes)
