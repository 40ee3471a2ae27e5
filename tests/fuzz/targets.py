"""What a fuzz target is: how a case is made, what reads it, and with which exit codes it may be refused.

A target works in a folder of its own: `start` fills it and returns seeds, `make` turns a seed into a case, `read` hands the case to the code.
`read` may return normally (the case was harmless), or raise a ThincError of one of `codes`; all else is a finding.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from thinlm.schemas.errors import ThincError

from .mutate import bytes_case, json_case

REFUSED = frozenset({5, 6})
USAGE = frozenset({2})
MAX_MESSAGE = 2000


class Finding(Exception):
    """A wrong outcome that is no exception by itself."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """See the module."""

    start: Callable[[Path], list[bytes]]
    make: Callable[[random.Random, list[bytes]], bytes]
    read: Callable[[Path, bytes], object]
    codes: frozenset[int] = REFUSED


def of_json(rng: random.Random, seeds: list[bytes]) -> bytes:
    """A changed JSON document, mostly canonical."""
    return json_case(rng, rng.choice(seeds))


def of_bytes(rng: random.Random, seeds: list[bytes]) -> bytes:
    """Changed bytes."""
    return bytes_case(rng, seeds)


def of_both(rng: random.Random, seeds: list[bytes]) -> bytes:
    """A changed JSON document or changed bytes."""
    return json_case(rng, rng.choice(seeds), compact=False) if rng.random() < 0.8 else bytes_case(rng, seeds)


def refusal(target: Target, error: BaseException) -> str:
    """"" when `error` is an allowed refusal, else what is wrong with it."""
    if not isinstance(error, ThincError):
        return f"{type(error).__name__}: {error}"
    if error.exit_code not in target.codes:
        return f"exit code {error.exit_code}: {error}"
    if len(str(error)) > MAX_MESSAGE or not str(error).isprintable():
        return f"not one short line: {str(error)[:200]!r}"
    return ""
