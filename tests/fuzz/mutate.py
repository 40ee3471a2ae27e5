"""Mutations that know the structure of what they change: JSON values, and bytes.

In: a random generator and valid seeds. Out: bytes of a case. The same generator state gives the same case.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from typing import Any

Path = tuple[Any, ...]

NUMBERS = (0, 1, -1, 2, 7, 63, 64, 255, 256, 1 << 15, 1 << 16, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, 1 << 64, 10**30)
FLOATS = (0.0, -0.0, 0.5, -1.5, 1e-320, 1e308, 1e-5)
TEXTS = ("", "a", "\0", "\n", "..", "../x", "/etc/passwd", "\u202e", "e\u0301", "\ufeff", "\U0001f642", "x" * 3000, "NaN", "(a+)+$", "null", "0" * 64)
LITERALS = (
    *("NaN", "-Infinity", "1e999", "0.10", "1E5", "-0", '"\\ud800"', '"\\u0061"'),
    *("9" * 5000, "[" * 3000 + "]" * 3000, '{"a":' * 200 + "1" + "}" * 200),
)
MARK = "\u0001literal\u0001"


def json_case(rng: random.Random, seed: bytes, compact: bool = True) -> bytes:
    """A JSON document with one to four of its values changed; sometimes also its spelling, or its bytes."""
    value, literal = json.loads(seed), ""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        path = rng.choice(_paths(value, rng))
        change = rng.choice(CHANGES)
        if change is _literal:
            literal = rng.choice(LITERALS)
        value = _replaced(value, path, change(rng, _at(value, path), value))
    sort = compact and rng.random() < 0.9
    text = json.dumps(value, ensure_ascii=not sort, sort_keys=sort, separators=(",", ":") if sort else None)
    text = text.replace(json.dumps(MARK, ensure_ascii=not sort), literal)
    if rng.random() < 0.05:
        text = _key_twice(rng, text)
    data = text.encode("utf-8", "surrogatepass")
    return bytes_case(rng, [data]) if rng.random() < 0.05 else data


def bytes_case(rng: random.Random, seeds: list[bytes]) -> bytes:
    """One of the seeds with one to eight places changed."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        rng.choice(BYTES)(rng, data, seeds)
    return bytes(data)


def _paths(value: Any, rng: random.Random) -> list[Path]:
    """Places in a document: all of a small one, a walk through a large one."""
    found: list[Path] = [()]
    for _ in range(12):
        path: Path = ()
        here = value
        while isinstance(here, dict | list) and here:
            key = rng.choice(list(here)) if isinstance(here, dict) else rng.randrange(len(here))
            path, here = (*path, key), here[key]
            found.append(path)
    return found[1:] or found


def _at(value: Any, path: Path) -> Any:
    for key in path:
        value = value[key]
    return value


def _replaced(value: Any, path: Path, new: Any) -> Any:
    """`value` with another thing at `path`; DROP takes it away. Only what lies on the way is copied."""
    if not path:
        return None if new is DROP else new
    copy = dict(value) if isinstance(value, dict) else list(value)
    if len(path) == 1 and new is DROP:
        del copy[path[0]]
    else:
        copy[path[0]] = _replaced(value[path[0]], path[1:], new)
    return copy


DROP = object()
Change = Callable[[random.Random, Any, Any], Any]


def _number(rng: random.Random, old: Any, root: Any) -> Any:
    if isinstance(old, int) and not isinstance(old, bool) and rng.random() < 0.5:
        return old + rng.choice((-1, 1, -old, old, 1 << 32, 1 << 62))
    return rng.choice(rng.choice((NUMBERS, FLOATS)))


def _text(rng: random.Random, old: Any, root: Any) -> Any:
    if isinstance(old, str) and old and rng.random() < 0.5:
        at = rng.randrange(len(old))
        return rng.choice((old[:at], old[at:], old + old, old[:at] + rng.choice(TEXTS) + old[at:], old.upper(), old[::-1]))
    return rng.choice(TEXTS)


def _type(rng: random.Random, old: Any, root: Any) -> Any:
    return rng.choice((None, True, False, [], {}, [old], {"a": old}, str(old)[:99], [[]], {"": None}))


def _drop(rng: random.Random, old: Any, root: Any) -> Any:
    return DROP


def _other(rng: random.Random, old: Any, root: Any) -> Any:
    """A copy of what is elsewhere in the document."""
    return _at(root, rng.choice(_paths(root, rng)))


def _shuffle(rng: random.Random, old: Any, root: Any) -> Any:
    """Repeated, cut, turned round; an object with a new or renamed key."""
    if isinstance(old, list) and old:
        at = rng.randrange(len(old))
        return rng.choice((old + old, old[:at], old[::-1], [*old, old[at]], old * 50, old[:at] + old[at + 1 :]))[:20_000]
    if isinstance(old, dict) and old:
        key = rng.choice(list(old))
        return {(rng.choice(TEXTS) if k == key else k): v for k, v in old.items()} | rng.choice(({}, {"extra": 1}, {key: old[key]}))
    return [old] * rng.choice((2, 9, 300))


def _deep(rng: random.Random, old: Any, root: Any) -> Any:
    for _ in range(rng.choice((3, 40, 70, 150))):
        old = [old] if rng.random() < 0.5 else {"type": "Sequence", "a": old}
    return old


def _literal(rng: random.Random, old: Any, root: Any) -> Any:
    """A place for a spelling that json.dumps would not write."""
    return MARK


CHANGES: tuple[Change, ...] = (_number, _number, _text, _text, _type, _type, _drop, _other, _other, _shuffle, _deep, _literal)


def _key_twice(rng: random.Random, text: str) -> str:
    at = [i for i in range(len(text) - 1) if text[i] == "{" and text[i + 1] == '"'][:200]
    if not at:
        return text
    start = rng.choice(at) + 1
    return f'{text[:start]}{text[start : text.index(chr(34), start + 1) + 1]}:{rng.choice(("0", "null", "[]"))},{text[start:]}'


def _flip(rng: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _integer(rng: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    form = rng.choice("BHIQ")
    size = struct.calcsize(form)
    if len(data) >= size:
        at = rng.randrange(len(data) - size + 1)
        at -= at % size if rng.random() < 0.7 else 0
        (old,) = struct.unpack_from(f"<{form}", data, at)
        new = rng.choice((*NUMBERS, old + 1, old - 1, old * 2, ~old, len(data), len(data) - at))
        struct.pack_into(f"<{form}", data, at, new & ((1 << 8 * size) - 1))


def _splice(rng: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    other = rng.choice(seeds)
    if data and other:
        at, start = rng.randrange(len(data)), rng.randrange(len(other))
        piece = other[start : start + rng.choice((1, 4, 16, 200))]
        data[at : at + rng.choice((0, len(piece)))] = piece


def _cut(rng: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    del data[at : rng.choice((len(data), at + 1, at + 8))]


def _insert(rng: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.choice((b"\0", b"\xff", b"\0" * 64, rng.randbytes(5), b"[" * 2000, b'"', b"{", b"PK\5\6", data[at : at + 30]))


def _fill(rng: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    end = min(len(data), at + rng.choice((4, 32, 500)))
    data[at:end] = bytes([rng.choice((0, 255, 32))]) * (end - at)


BYTES = (_flip, _flip, _integer, _integer, _splice, _cut, _insert, _fill)
