"""The file between measuring and allocating: what each format of each choice group costs in KL and in bytes.

`passes/costs.py` fills in the bytes from headers alone (every predicted KL is 0, `scored` is false); `passes/score.py` adds the KL;
`passes/allocate.py` reads it. JSON, schema-checked: unknown keys and negative or non-finite numbers are refused with UsageError.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import msgspec

from .canonical import NOT_JSON, canonical_bytes
from .errors import UsageError
from .plan import GroupPlan


class Option(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One format for a whole group. `predicted_kl` in nats per token; bytes in the file (with page padding) and on the device."""

    format: str
    encoded_bytes: int
    resident_bytes: int
    predicted_kl: float = 0.0

    def __post_init__(self) -> None:
        if min(self.encoded_bytes, self.resident_bytes) < 0 or not 0 <= self.predicted_kl < math.inf:
            raise ValueError(f"{self.format}: bytes and predicted KL must be finite and not negative")


class GroupScores(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Params that share a format, and their options; a single option is no choice (norms, biases)."""

    params: tuple[str, ...]
    options: tuple[Option, ...]

    def __post_init__(self) -> None:
        if not self.params or not self.options:
            raise ValueError(f"group {self.params}: needs params and options")

    def option(self, format_name: str) -> Option:
        """The option of that format; KeyError."""
        return {o.format: o for o in self.options}[format_name]


class ScoreTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All groups of a graph. `logical_parameters` counts every tensor once; `stats` is the digest of the calibration behind the scores."""

    schema: Literal["thinc.scores/1"] = "thinc.scores/1"
    scored: bool
    stats: str
    logical_parameters: int
    groups: tuple[GroupScores, ...]

    def plan(self, encodings: Mapping[str, str]) -> tuple[GroupPlan, ...]:
        """The groups of a plan that gives each param the format in `encodings`; KeyError on a format that is no option."""
        chosen = ((g.params, g.option(encodings[g.params[0]])) for g in self.groups)
        return tuple(
            GroupPlan(
                params=params, encoding=o.format, encoded_bytes=o.encoded_bytes, resident_bytes=o.resident_bytes, predicted_kl=o.predicted_kl
            )
            for params, o in chosen
        )


def encode_scores(table: ScoreTable) -> bytes:
    """Canonical JSON bytes."""
    return canonical_bytes(table)


def decode_scores(raw: bytes, where: str = "scores") -> ScoreTable:
    """The table in `raw`; UsageError that begins with `where` when it is none."""
    try:
        return msgspec.json.decode(raw, type=ScoreTable)
    except NOT_JSON as e:
        raise UsageError(f"{where}: {e}") from e
