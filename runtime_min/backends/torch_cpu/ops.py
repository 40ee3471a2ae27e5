"""Every op of the table in torch float32 on the CPU: `OPS[op](args, attrs) -> Tensor`, the same signatures as the interpreter's references.

Shapes: x [..., H], heads [B, T, N, D], positions int64 or int32 [B, T]. Differentiable when gradients are enabled (calibration uses that).
Angles are computed in float64 and then rounded, so positions stay exact at any context. Fully masked rows give zeros, not NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Args = Sequence[Any]
Attrs = dict[str, Any]


def _padded(args: Args, count: int) -> tuple[Any, ...]:
    """The inputs, absent optional ones as None."""
    return (*args, *[None] * (count - len(args)))


def embedding(args: Args, _: Attrs) -> Tensor:
    ids, table = args
    return F.embedding(ids, table)


def linear(args: Args, _: Attrs) -> Tensor:
    x, w, *bias = args
    return F.linear(x, w, bias[0] if bias else None)


def norm(args: Args, attrs: Attrs) -> Tensor:
    x, w, b = _padded(args, 3)
    kind, eps, groups = attrs["kind"], attrs["eps"], attrs["groups"]
    if kind == "rms" and groups == 1 and w is not None and b is None:
        return F.rms_norm(x, w.shape, w + attrs["offset"] if attrs["offset"] else w, eps)
    shape = x.shape
    if groups > 1:
        x = x.unflatten(-1, (groups, -1))
    if kind == "layer":
        x = x - x.mean(-1, keepdim=True)
    power = x.square().sum(-1, keepdim=True) if kind == "l2" else x.square().mean(-1, keepdim=True)
    y = (x * torch.rsqrt(power + eps)).reshape(shape)
    if w is not None:
        y = y * (w + attrs["offset"] if attrs["offset"] else w)
    return y if b is None else y + b


def rope_tables(positions: Tensor, freqs: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """cos and sin, float32 [B, T, 1, R/2]."""
    angles = positions.double()[..., None, None] * freqs.double()
    return (angles.cos() * scale).float(), (angles.sin() * scale).float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Rotate the first R dims of x [B, T, N, D] by precomputed tables."""
    half = cos.shape[-1]
    r, rest = x[..., : 2 * half], x[..., 2 * half :]
    a, b = (r[..., 0::2], r[..., 1::2]) if interleaved else (r[..., :half], r[..., half:])
    ra, rb = a * cos - b * sin, b * cos + a * sin
    y = torch.stack((ra, rb), -1).flatten(-2) if interleaved else torch.cat((ra, rb), -1)
    return torch.cat((y, rest), -1) if rest.shape[-1] else y


def rope(args: Args, attrs: Attrs) -> Tensor:
    x, positions, freqs = args
    cos, sin = rope_tables(positions, freqs, attrs["scale"])
    return rotate(x, cos, sin, attrs["interleaved"])


def attention(args: Args, attrs: Attrs, key_positions: Tensor | None = None) -> Tensor:
    """q [B, T, N, Dk], k [B, S, M, Dk], v [B, S, M, Dv] -> [B, T, N, Dv]; `key_positions` [B, S], negative for an empty slot."""
    q, k, v, positions, sinks, slopes = _padded(args, 6)
    seen = positions if key_positions is None else key_positions
    (b, t, n, d), (s, m) = q.shape, k.shape[1:3]
    g = n // m
    qg = q.reshape(b, t, m, g, d).permute(0, 2, 3, 1, 4).reshape(b, m, g * t, d)
    scores = (qg @ k.permute(0, 2, 3, 1) * attrs["scale"]).view(b, m, g, t, s)
    if attrs["softcap"]:
        scores = torch.tanh(scores / attrs["softcap"]) * attrs["softcap"]
    distance = seen[:, None, :] - positions[:, :, None]  # [B, T, S]
    if slopes is not None:
        scores = scores + slopes.view(m, g, 1, 1) * distance[:, None, None]
    if t > 1 or attrs["window"] or b > 1 or seen is not positions:
        hidden = (distance > 0) | (seen[:, None, :] < 0)
        if attrs["window"]:
            hidden = hidden | (distance <= -attrs["window"])
        scores = scores.masked_fill(hidden[:, None, None], -math.inf)
    p = _softmax(scores, None if sinks is None else sinks.view(m, g, 1, 1))
    out = p.view(b, m, g * t, s) @ v.permute(0, 2, 1, 3)
    return out.view(b, m, g, t, -1).permute(0, 3, 1, 2, 4).reshape(b, t, n, -1)


def attend_all(q: Tensor, k: Tensor, v: Tensor, attrs: Attrs) -> Tensor:
    """One query per sequence that sees every key given (no mask, sinks or slopes): the decode path. Shapes as `attention` with T = 1."""
    b, _, n, d = q.shape
    m = k.shape[2]
    scores = q.view(b, m, n // m, d) @ k.permute(0, 2, 3, 1) * attrs["scale"]
    if attrs["softcap"]:
        scores = torch.tanh(scores / attrs["softcap"]) * attrs["softcap"]
    return (scores.softmax(-1) @ v.permute(0, 2, 1, 3)).reshape(b, 1, n, -1)


def _softmax(x: Tensor, sink: Tensor | None = None) -> Tensor:
    top = x.detach().amax(-1, keepdim=True)
    if sink is not None:
        top = torch.maximum(top, sink)
    top = top.masked_fill(torch.isneginf(top), 0.0)
    e = torch.exp(x - top)
    total = e.sum(-1, keepdim=True)
    if sink is not None:
        total = total + torch.exp(sink - top)
    return e / total.masked_fill(total == 0, 1.0)


def causal_mask(args: Args, attrs: Attrs) -> Tensor:
    d = distance(args, attrs)
    hidden = (d > 0) | (args[0][:, None, None, :] < 0)
    if attrs["window"]:
        hidden = hidden | (d <= -attrs["window"])
    return torch.zeros_like(d).masked_fill(hidden, -math.inf)


def distance(args: Args, _: Attrs) -> Tensor:
    (p,) = args
    return (p[:, None, None, :] - p[:, None, :, None]).float()


def _slice(args: Args, attrs: Attrs) -> Tensor:
    index = [slice(None)] * args[0].ndim
    index[attrs["axis"]] = slice(attrs["start"], attrs["stop"], attrs["step"])
    return args[0][tuple(index)]


def _reshape(args: Args, attrs: Attrs) -> Tensor:
    x = args[0]
    sizes = {"B": x.shape[0], "T": -1}  # B stays in front through every op, so T is what is left
    return x.reshape([sizes[d] if isinstance(d, str) else d for d in attrs["shape"]])


def _unary(fn: Callable[[Tensor], Tensor]) -> Callable[[Args, Attrs], Tensor]:
    return lambda args, _: fn(args[0])


OPS: dict[str, Callable[..., Tensor]] = {
    "embedding": embedding,
    "linear": linear,
    "matmul": lambda args, _: args[0] @ args[1],
    "add": lambda args, _: args[0] + args[1],
    "sub": lambda args, _: args[0] - args[1],
    "mul": lambda args, _: args[0] * args[1],
    "neg": _unary(torch.neg),
    "silu": _unary(F.silu),
    "gelu": _unary(F.gelu),
    "gelu_tanh": _unary(lambda x: F.gelu(x, approximate="tanh")),
    "relu": _unary(F.relu),
    "sigmoid": _unary(torch.sigmoid),
    "tanh": _unary(torch.tanh),
    "softplus": _unary(lambda x: torch.logaddexp(x, torch.zeros_like(x))),
    "exp": _unary(torch.exp),
    "square": _unary(torch.square),
    "rsqrt": _unary(torch.rsqrt),
    "cos": _unary(torch.cos),
    "sin": _unary(torch.sin),
    "scale": lambda args, attrs: args[0] * attrs["by"],
    "shift": lambda args, attrs: args[0] + attrs["by"],
    "cast": _unary(Tensor.float),
    "softmax": lambda args, _: _softmax(args[0]),
    "softmax_sink": lambda args, _: _softmax(args[0], args[1]),
    "mean": lambda args, attrs: args[0].mean(attrs["axis"], keepdim=True),
    "sum": lambda args, attrs: args[0].sum(attrs["axis"], keepdim=True),
    "reshape": _reshape,
    "transpose": lambda args, attrs: args[0].permute(attrs["perm"]),
    "slice": _slice,
    "concat": lambda args, attrs: torch.cat((args[0], args[1]), attrs["axis"]),
    "repeat": lambda args, attrs: args[0].repeat_interleave(attrs["times"], attrs["axis"]),
    "causal_mask": causal_mask,
    "distance": distance,
    "softcap": lambda args, attrs: torch.tanh(args[0] / attrs["cap"]) * attrs["cap"],
    "norm": norm,
    "rope": rope,
    "attention": attention,
}
