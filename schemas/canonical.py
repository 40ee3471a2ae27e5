"""Canonical JSON: one value has exactly one spelling, so that a digest of the bytes is a digest of the value.

Form: UTF-8 without a byte-order mark, keys sorted by code point, no spaces, no escapes that aren't needed, integers in decimal, floats by
Python's repr (shortest that reads back), no NaN or infinity, no newline at the end.

In: dict/list/str/int/float/bool/None or msgspec structs. Out: bytes, and back.
Refused with InputError: more than `max_bytes` bytes, nesting beyond MAX_DEPTH, anything that is not byte for byte its own canonical form
(duplicate keys, other order, spaces, "1.0e0", lone surrogates), and values that don't fit the struct asked for.
"""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec

from .errors import InputError

T = TypeVar("T")

NOT_JSON = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)  # what msgspec.json.decode raises for bytes that are none
MAX_DEPTH = 64
MAX_BYTES = 64 << 20


def canonical_bytes(value: Any) -> bytes:
    """The canonical form of a JSON value or struct; InputError when it has none (NaN, a key that is not a string)."""
    try:
        plain = msgspec.to_builtins(value, str_keys=False)
        _check_keys(plain)
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return text.encode("utf-8")
    except (TypeError, ValueError, RecursionError) as e:
        raise InputError(f"a value has no canonical JSON form: {e}") from e


def parse_canonical(data: bytes, *, where: str, max_bytes: int = MAX_BYTES) -> Any:
    """The JSON value behind canonical bytes; `where` names the file in messages."""
    if len(data) > max_bytes:
        raise InputError(f"{where}: {len(data)} bytes, at most {max_bytes} are read")
    try:
        value = msgspec.json.decode(data)
    except NOT_JSON as e:
        raise InputError(f"{where}: not JSON: {e}") from e
    _check_depth(value, where)
    if canonical_bytes(value) != data:
        raise InputError(f"{where}: not canonical JSON (sorted unique keys, no spaces, shortest numbers, no newline at the end)")
    return value


def as_struct(value: Any, kind: type[T], *, where: str) -> T:
    """A parsed JSON value as a msgspec struct; InputError naming the field that does not fit."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as e:
        raise InputError(f"{where}: {e}") from e


def decode_canonical(data: bytes, kind: type[T], *, where: str, max_bytes: int = MAX_BYTES) -> T:
    """parse_canonical, then as_struct."""
    return as_struct(parse_canonical(data, where=where, max_bytes=max_bytes), kind, where=where)


def _check_keys(value: Any) -> None:
    """json.dumps would silently turn a key 1 into "1"."""
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            if not all(isinstance(key, str) for key in item):
                raise TypeError(f"a key of {list(item)[:3]} is not a string")
            todo.extend(item.values())
        elif isinstance(item, list | tuple):
            todo.extend(item)


def _check_depth(value: Any, where: str) -> None:
    level, depth = [value], 0
    while level:
        if depth > MAX_DEPTH:
            raise InputError(f"{where}: nested deeper than {MAX_DEPTH}")
        containers = [item for item in level if isinstance(item, dict | list)]
        level = [x for item in containers for x in (item.values() if isinstance(item, dict) else item)]
        depth += 1
