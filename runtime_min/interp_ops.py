"""The meaning of every op: one plain numpy function per row of `schemas/ops.py`, all in REFERENCE.

In: arrays (`None` for an absent optional) and the complete attributes of a node. Out: one array, float64 or float32 as the inputs are; what is
made from positions alone is float64. Slow on purpose: backends are compared with this file, so it is written to be checked by eye.
Rows of attention that see no key (batch padding) give zeros. Ids outside the table are refused (InputError).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ..schemas.errors import InputError

Args = Sequence[np.ndarray | None]
Attrs = Mapping[str, Any]
Reference = Callable[..., np.ndarray]

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _arg(args: Args, i: int) -> np.ndarray:
    value = args[i]
    assert value is not None, f"input {i} is required"
    return value


def _optional(args: Args, i: int) -> np.ndarray | None:
    return args[i] if i < len(args) else None


def _elementwise(fn: Callable[[np.ndarray], np.ndarray]) -> Reference:
    return lambda args, attrs: fn(_arg(args, 0))


def _binary(fn: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Reference:
    return lambda args, attrs: fn(_arg(args, 0), _arg(args, 1))


# elementwise


def softplus(x: np.ndarray) -> np.ndarray:
    """log(1 + exp(x)), without overflow."""
    return np.logaddexp(x.dtype.type(0), x)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)), without overflow."""
    return np.exp(-softplus(-x))


def silu(x: np.ndarray) -> np.ndarray:
    """x * sigmoid(x)."""
    return x * sigmoid(x)


def gelu(x: np.ndarray) -> np.ndarray:
    """The exact one: x times the normal distribution function of x."""
    return (x * 0.5 * (1 + _erf(x / math.sqrt(2)))).astype(x.dtype)


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    """The tanh approximation."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def softcap(args: Args, attrs: Attrs) -> np.ndarray:
    """cap * tanh(x / cap)."""
    return attrs["cap"] * np.tanh(_arg(args, 0) / attrs["cap"])


# products


def embedding(args: Args, attrs: Attrs) -> np.ndarray:
    """Rows of table [V, H] at ids [...]; InputError when an id is no row."""
    ids, table = _arg(args, 0), _arg(args, 1)
    require_ids(ids, len(table))
    return table[ids]


def require_ids(ids: np.ndarray, rows: int) -> None:
    """InputError unless every id is one of `rows` rows."""
    if ids.size and (ids.min() < 0 or ids.max() >= rows):
        raise InputError(f"ids must lie in [0, {rows}), got {ids.min()} to {ids.max()}")


def linear(args: Args, attrs: Attrs) -> np.ndarray:
    """x [..., in] times w [out, in] transposed, plus bias [out]."""
    y = _arg(args, 0) @ _arg(args, 1).T
    bias = _optional(args, 2)
    return y if bias is None else y + bias


# softmax and norm


def softmax(x: np.ndarray, sink: np.ndarray | None = None) -> np.ndarray:
    """Over the last axis; a sink [..., 1] joins the denominator only. A row of -inf gives zeros."""
    top = x.max(-1, keepdims=True)
    if sink is not None:
        top = np.maximum(top, sink)
    top = np.where(np.isneginf(top), 0, top).astype(x.dtype)
    e = np.exp(x - top)
    total = e.sum(-1, keepdims=True)
    if sink is not None:
        total = total + np.exp(sink - top)
    return e / np.where(total == 0, 1, total).astype(x.dtype)


def norm(args: Args, attrs: Attrs) -> np.ndarray:
    """rms, layer (mean-centred) or l2 norm of each of `groups` equal parts of the last axis; then times (w + offset), plus b."""
    x, w, b = _arg(args, 0), _optional(args, 1), _optional(args, 2)
    g = x.reshape(*x.shape[:-1], attrs["groups"], -1)
    if attrs["kind"] == "layer":
        g = g - g.mean(-1, keepdims=True)
    power = np.square(g)
    power = power.sum(-1, keepdims=True) if attrs["kind"] == "l2" else power.mean(-1, keepdims=True)
    y = (g / np.sqrt(power + attrs["eps"])).reshape(x.shape)
    if w is not None:
        y = y * (w + attrs["offset"])
    return y if b is None else y + b


# positions


def rope(args: Args, attrs: Attrs) -> np.ndarray:
    """Rotate the first 2 F dims of x [B, T, N, D] by positions [B, T] times freqs [F].

    Pairs are (i, i + F), or (2i, 2i + 1) when interleaved; the other dims pass. Angles are float64 whatever x is; `scale` multiplies cos and sin.
    """
    x, positions, freqs = _arg(args, 0), _arg(args, 1), _arg(args, 2)
    n = len(freqs)
    angle = positions[:, :, None, None].astype(np.float64) * freqs.astype(np.float64)
    cos, sin = (np.cos(angle) * attrs["scale"]).astype(x.dtype), (np.sin(angle) * attrs["scale"]).astype(x.dtype)
    first, second = (slice(0, 2 * n, 2), slice(1, 2 * n, 2)) if attrs["interleaved"] else (slice(0, n), slice(n, 2 * n))
    out = x.copy()
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., second] * cos + x[..., first] * sin
    return out


def visible(positions: np.ndarray, key_positions: np.ndarray, window: int) -> np.ndarray:
    """bool[B, 1, T, S]: may the query at positions [B, T] see the key at key_positions [B, S]? Negative keys are empty slots."""
    q, k = positions[:, None, :, None], key_positions[:, None, None, :]
    seen = (k >= 0) & (k <= q)
    return seen & (k > q - window) if window else seen


def attention(args: Args, attrs: Attrs, key_positions: np.ndarray | None = None) -> np.ndarray:
    """q [B, T, N, D] over k [B, S, M, D], v [B, S, M, Dv] -> [B, T, N, Dv]; query head h reads kv head h // (N / M).

    Scores: scale * q k, soft-capped, plus slopes [N] * (key position - query position), then masked; sinks [N] join the softmax's denominator.
    `key_positions` [B, S] defaults to `positions` (no cache: S = T).
    """
    q, k, v, positions = (_arg(args, i) for i in range(4))
    sinks, slopes = _optional(args, 4), _optional(args, 5)
    keys = positions if key_positions is None else key_positions
    k, v = (np.repeat(a, q.shape[2] // a.shape[2], axis=2).transpose(0, 2, 1, 3) for a in (k, v))
    scores = q.transpose(0, 2, 1, 3) @ k.swapaxes(-1, -2) * attrs["scale"]
    if attrs["softcap"]:
        scores = softcap([scores], {"cap": attrs["softcap"]})
    if slopes is not None:
        distance = (keys[:, None, None, :] - positions[:, None, :, None]).astype(scores.dtype)
        scores = scores + slopes[:, None, None] * distance
    scores = np.where(visible(positions, keys, attrs["window"]), scores, scores.dtype.type(-np.inf))
    weights = softmax(scores, None if sinks is None else sinks[:, None, None])
    return (weights @ v).transpose(0, 2, 1, 3)


def causal_mask(args: Args, attrs: Attrs) -> np.ndarray:
    """float64[B, 1, T, T]: 0 where query i sees key j, else -inf."""
    positions = _arg(args, 0)
    return np.where(visible(positions, positions, attrs["window"]), 0.0, -np.inf)


def distance(args: Args, attrs: Attrs) -> np.ndarray:
    """float64[B, 1, T, T]: position of key j minus position of query i."""
    positions = _arg(args, 0)
    return (positions[:, None, None, :] - positions[:, None, :, None]).astype(np.float64)


# shapes


def reshape(args: Args, attrs: Attrs) -> np.ndarray:
    """To `shape`; a symbol in it is the dim that x has at that place."""
    x = _arg(args, 0)
    return x.reshape([x.shape[i] if isinstance(d, str) else d for i, d in enumerate(attrs["shape"])])


def slice_(args: Args, attrs: Attrs) -> np.ndarray:
    """start:stop:step of one axis (negative, from the end)."""
    part = slice(attrs["start"], attrs["stop"], attrs["step"])
    return _arg(args, 0)[(..., part, *[slice(None)] * (-attrs["axis"] - 1))]


REFERENCE: Final[dict[str, Reference]] = {
    "embedding": embedding,
    "linear": linear,
    "matmul": _binary(np.matmul),
    "add": _binary(np.add),
    "sub": _binary(np.subtract),
    "mul": _binary(np.multiply),
    "neg": _elementwise(np.negative),
    "silu": _elementwise(silu),
    "gelu": _elementwise(gelu),
    "gelu_tanh": _elementwise(gelu_tanh),
    "relu": _elementwise(lambda x: np.maximum(x, 0)),
    "sigmoid": _elementwise(sigmoid),
    "tanh": _elementwise(np.tanh),
    "softplus": _elementwise(softplus),
    "exp": _elementwise(np.exp),
    "square": _elementwise(np.square),
    "rsqrt": _elementwise(lambda x: 1 / np.sqrt(x)),
    "cos": _elementwise(np.cos),
    "sin": _elementwise(np.sin),
    "scale": lambda args, attrs: _arg(args, 0) * attrs["by"],
    "shift": lambda args, attrs: _arg(args, 0) + attrs["by"],
    "cast": _elementwise(lambda x: x.astype(np.float64)),
    "softmax": _elementwise(softmax),
    "softmax_sink": _binary(softmax),
    "mean": lambda args, attrs: _arg(args, 0).mean(attrs["axis"], keepdims=True),
    "sum": lambda args, attrs: _arg(args, 0).sum(attrs["axis"], keepdims=True),
    "reshape": reshape,
    "transpose": lambda args, attrs: _arg(args, 0).transpose(attrs["perm"]),
    "slice": slice_,
    "concat": lambda args, attrs: np.concatenate([_arg(args, 0), _arg(args, 1)], attrs["axis"]),
    "repeat": lambda args, attrs: np.repeat(_arg(args, 0), attrs["times"], attrs["axis"]),
    "causal_mask": causal_mask,
    "distance": distance,
    "softcap": softcap,
    "norm": norm,
    "rope": rope,
    "attention": attention,
}
