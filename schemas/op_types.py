"""The type rule of every op: from the types and attributes of a node's inputs to the type of its output.

In: the types of the inputs that are present, in order, and all attributes with their exact Python types; the verifier has checked both,
and that every input has axes, all of at least 1, and is an integer only where its name says so (`ids`, `positions`). Out: a `Type`; every computed
value is `f32`. Refused (OpError): shapes and values that the op has no meaning for.
"""

from __future__ import annotations

from collections.abc import Sequence

from .graph import AttrValue, Dim, Type

Attrs = dict[str, AttrValue]
Shape = tuple[Dim, ...]


class OpError(ValueError):
    """A node's inputs or attributes break its op's rule; the verifier turns it into a violation."""


def need(ok: bool, message: str) -> None:
    """Raise OpError(message) unless `ok`."""
    if not ok:
        raise OpError(message)


def broadcast(a: Shape, b: Shape) -> Shape:
    """Numpy broadcasting over dims that may be symbols (a symbol equals only itself, or stretches a 1)."""
    n = max(len(a), len(b))
    out: list[Dim] = []
    for x, y in zip((1,) * (n - len(a)) + a, (1,) * (n - len(b)) + b, strict=True):
        need(x == y or x == 1 or y == 1, f"shapes {text(a)} and {text(b)} don't broadcast")
        out.append(y if x == 1 else x)
    return tuple(out)


def text(shape: Sequence[Dim]) -> str:
    """`[B, T, 8]`."""
    return f"[{', '.join(map(str, shape))}]"


def _int(value: AttrValue | Dim) -> int:
    assert isinstance(value, int)
    return value


def _float(value: AttrValue) -> float:
    assert isinstance(value, float)
    return value


def _shape(value: AttrValue) -> Shape:
    assert isinstance(value, tuple)
    return value


def _axis(t: Type, attrs: Attrs) -> int:
    axis = _int(attrs["axis"])
    need(-len(t.shape) <= axis < 0, f"axis {axis} must lie in [-{len(t.shape)}, -1]")
    return len(t.shape) + axis


def _fixed(dim: Dim, what: str) -> int:
    need(isinstance(dim, int), f"{what} must be a number, not {dim}")
    return int(dim)


def _with_dim(t: Type, axis: int, dim: Dim) -> Type:
    return Type("f32", (*t.shape[:axis], dim, *t.shape[axis + 1 :]))


def same(ts: Sequence[Type], _: Attrs) -> Type:
    """Elementwise."""
    return Type("f32", ts[0].shape)


def binary(ts: Sequence[Type], _: Attrs) -> Type:
    """Elementwise over two operands that broadcast."""
    return Type("f32", broadcast(ts[0].shape, ts[1].shape))


def embedding(ts: Sequence[Type], _: Attrs) -> Type:
    """ids [...], table [V, H] -> [..., H]."""
    need(len(ts[1].shape) == 2, f"table must be [V, H], not {text(ts[1].shape)}")
    return Type("f32", (*ts[0].shape, ts[1].shape[1]))


def linear(ts: Sequence[Type], _: Attrs) -> Type:
    """x [..., in], w [out, in], bias [out] -> [..., out]."""
    x, w = ts[0].shape, ts[1].shape
    need(len(w) == 2, f"weight must be [out, in], not {text(w)}")
    need(x[-1] == w[1], f"weight [out, in] = {text(w)} does not take inputs of last dim {x[-1]}")
    for bias in ts[2:]:
        need(bias.shape == (w[0],), f"bias {text(bias.shape)} != [out] = [{w[0]}]")
    return Type("f32", (*x[:-1], w[0]))


def matmul(ts: Sequence[Type], _: Attrs) -> Type:
    """a [..., i, k], b [..., k, j] -> [..., i, j]; the leading dims broadcast."""
    a, b = ts[0].shape, ts[1].shape
    need(len(a) > 1 and len(b) > 1 and a[-1:] == b[-2:-1], f"matmul of {text(a)} and {text(b)}")
    return Type("f32", (*broadcast(a[:-2], b[:-2]), *a[-2:-1], *b[-1:]))


def norm(ts: Sequence[Type], attrs: Attrs) -> Type:
    """x [..., H], w [H], b [H] -> [..., H]; H is `groups` equal parts."""
    last, groups = _fixed(ts[0].shape[-1], "last dim"), _int(attrs["groups"])
    need(attrs["kind"] in ("rms", "layer", "l2"), f"kind {attrs['kind']!r} is none of rms, layer, l2")
    need(_float(attrs["eps"]) >= 0, f"eps {attrs['eps']} must be >= 0")
    need(groups >= 1 and last % groups == 0, f"last dim {last} is not {groups} equal groups")
    for weight in ts[1:]:
        need(weight.shape == (last,), f"weight {text(weight.shape)} != last dim [{last}]")
    return same(ts, attrs)


def softcap(ts: Sequence[Type], attrs: Attrs) -> Type:
    """Elementwise, cap > 0."""
    need(_float(attrs["cap"]) > 0, f"cap {attrs['cap']} must be > 0")
    return same(ts, attrs)


def rope(ts: Sequence[Type], attrs: Attrs) -> Type:
    """x [B, T, N, D], positions [B, T], freqs [F] -> [B, T, N, D] with 2 F <= D."""
    x, positions, freqs = (t.shape for t in ts)
    need(len(x) == 4, f"x must be [B, T, N, D], not {text(x)}")
    need(positions == x[:2], f"positions {text(positions)} != {text(x[:2])}")
    need(len(freqs) == 1, f"freqs must be one vector, not {text(freqs)}")
    rotated = 2 * _fixed(freqs[0], "freqs")
    need(rotated <= _fixed(x[3], "head dim"), f"{freqs[0]} frequencies rotate {rotated} dims, more than D = {x[3]}")
    return same(ts, attrs)


def attention(ts: Sequence[Type], attrs: Attrs) -> Type:
    """q [B, T, N, D], k [B, T, M, D], v [B, T, M, Dv], positions [B, T], sinks [N], slopes [N] -> [B, T, N, Dv]; M divides N."""
    q, k, v, positions = (t.shape for t in ts[:4])
    need(len(q) == len(k) == len(v) == 4, f"q, k, v must be [B, T, heads, dim], not {text(q)}, {text(k)}, {text(v)}")
    need(q[:2] == k[:2] == positions, f"q {text(q)}, k {text(k)} and positions {text(positions)} differ in [B, T]")
    need(q[3] == k[3], f"q dim {q[3]} != k dim {k[3]}")
    need(k[:3] == v[:3], f"k {text(k)} and v {text(v)} differ in heads")
    need(_fixed(q[2], "heads") % _fixed(k[2], "kv heads") == 0, f"{q[2]} query heads over {k[2]} kv heads")
    for extra in ts[4:]:
        need(extra.shape == (q[2],), f"sinks and slopes are one per query head, not {text(extra.shape)}")
    need(min(_int(attrs["window"]), _int(attrs["cache"])) >= 0, "window and cache must be >= 0")
    need(_int(attrs["window"]) < 1 << 31, f"window {attrs['window']} reaches beyond any position, which is an i32")
    _fixed(k[3], "key dim")
    _fixed(v[3], "value dim")
    need(_float(attrs["softcap"]) >= 0, f"softcap {attrs['softcap']} must be >= 0")
    return Type("f32", (*q[:3], v[3]))


def reshape(ts: Sequence[Type], attrs: Attrs) -> Type:
    """To `shape`, of numbers and symbols; a symbol keeps its place."""
    x, out = ts[0].shape, _shape(attrs["shape"])
    for i, d in enumerate(out):
        need(x[i : i + 1] == (d,) if isinstance(d, str) else d >= 1, f"shape[{i}] = {d!r} is no size, and not dim {i} of {text(x)}")
    need(_volume(x) == _volume(out), f"{text(x)} can't become {text(out)}")
    return Type("f32", out)


def _volume(shape: Shape) -> tuple[int, tuple[str, ...]]:
    n = 1
    for d in shape:
        n *= d if isinstance(d, int) else 1
    return n, tuple(sorted(d for d in shape if isinstance(d, str)))


def transpose(ts: Sequence[Type], attrs: Attrs) -> Type:
    """Axis i of the output is axis perm[i] of x."""
    x, perm = ts[0].shape, [_int(p) for p in _shape(attrs["perm"])]
    need(sorted(perm) == list(range(len(x))), f"perm {text(perm)} does not permute {text(x)}")
    return Type("f32", tuple(x[i] for i in perm))


def slice_(ts: Sequence[Type], attrs: Attrs) -> Type:
    """start:stop:step of one fixed axis, never empty."""
    axis = _axis(ts[0], attrs)
    size, start, stop, step = _fixed(ts[0].shape[axis], "sliced dim"), _int(attrs["start"]), _int(attrs["stop"]), _int(attrs["step"])
    need(0 <= start < stop <= size and step >= 1, f"slice {start}:{stop}:{step} of a dim of {size}")
    return _with_dim(ts[0], axis, len(range(start, stop, step)))


def concat(ts: Sequence[Type], attrs: Attrs) -> Type:
    """Two tensors one after the other along one fixed axis."""
    a, b, axis = ts[0].shape, ts[1].shape, _axis(ts[0], attrs)
    need(len(a) == len(b) and a[:axis] + a[axis + 1 :] == b[:axis] + b[axis + 1 :], f"concat of {text(a)} and {text(b)} along {attrs['axis']}")
    return _with_dim(ts[0], axis, _fixed(a[axis], "joined dim") + _fixed(b[axis], "joined dim"))


def softmax_sink(ts: Sequence[Type], attrs: Attrs) -> Type:
    """x [..., S], sink broadcasting to [..., 1]."""
    x, sink = ts[0].shape, ts[1].shape
    need(sink[-1] == 1 and len(sink) <= len(x) and broadcast(x, sink) == x, f"sink {text(sink)} must give one logit per row of {text(x)}")
    return same(ts, attrs)


def repeat(ts: Sequence[Type], attrs: Attrs) -> Type:
    """Each element of one fixed axis `times` times in a row."""
    axis, times = _axis(ts[0], attrs), _int(attrs["times"])
    need(times >= 1, f"times {times} must be >= 1")
    return _with_dim(ts[0], axis, _fixed(ts[0].shape[axis], "repeated dim") * times)


def reduce(ts: Sequence[Type], attrs: Attrs) -> Type:
    """One axis becomes 1."""
    return _with_dim(ts[0], _axis(ts[0], attrs), 1)


def pairwise(ts: Sequence[Type], _: Attrs) -> Type:
    """positions [B, T] -> [B, 1, T, T]."""
    need(len(ts[0].shape) == 2, f"positions must be [B, T], not {text(ts[0].shape)}")
    b, t = ts[0].shape
    return Type("f32", (b, 1, t, t))
