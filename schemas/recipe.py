"""What a compile is asked for: byte budgets, context, target, candidates, gate. A recipe file, flags and defaults all become one Recipe.

In: a JSON or YAML file, or a dict; unknown keys, wrong types and meaningless values are refused with UsageError. Budgets are bytes, or text:
  "6.6GiB" "900MB" "123456"   GiB = 2^30, GB = 10^9 (likewise K, M, T; case counts), rounded down
  "36%"                       of logical parameters x 2 bytes (weights_budget only); a tied embedding is one tensor and counts once
Out: `resolve` fills in what depends on the model and the target; `canonical` gives that form as bytes, for the build key.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import msgspec

from .errors import UsageError
from .kv import KVDtype

UNITS = {"": 1, "B": 1} | {p + s: b**e for e, p in enumerate("KMGT", 1) for s, b in (("iB", 1024), ("B", 1000))}
_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*|%)")
MAX_RECIPE = 64 << 10
MAX_TEXT = 64  # characters of an amount
DENSE_BYTES = 2  # a percentage is of this many bytes per logical parameter


class Gate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fidelity thresholds (design.md section 7): lower bounds, but `kl` is an upper bound in nats."""

    logits_cosine_raw: float = 0.995
    logits_cosine_centred: float = 0.995
    worst_domain: float = 0.99
    p01: float = 0.97
    kl: float = 0.05
    top1: float = 0.88
    greedy: float = 0.95

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            low, high = (0.0, 100.0) if field == "kl" else (-1.0, 1.0)
            if not low <= getattr(self, field) <= high:
                raise ValueError(f"gate {field}: {getattr(self, field)} is not in [{low:g}, {high:g}]")


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One compile's settings. Budgets are bytes, text as written, or None for no limit; `context` None is the model's own."""

    schema: Literal["thinc.recipe/1"] = "thinc.recipe/1"
    budget: int | str | None = None  # peak bytes on the target
    weights_budget: int | str | None = None  # encoded weight bytes
    max_artifact: int | str | None = None  # bytes of the artifact's files
    context: int | None = None
    batch: int = 1
    target: str = "cpu"  # one of passes.targets.TARGETS
    kv_dtype: KVDtype | Literal["auto"] = "auto"  # auto: f32 where the budget allows, else f16
    block: int = 64  # positions of a KV block
    prefill_chunk: int = 64
    candidates: tuple[str, ...] = ()  # number formats; empty = the target's own list
    calibration_tokens: int = 8192
    certificate_tokens: int = 16384  # of held-out text that fidelity is measured on, at most
    relayout: Literal["identity"] = "identity"
    seed: int = 0
    gate: Gate = Gate()

    def __post_init__(self) -> None:
        for field, (low, high) in RANGES.items():
            value = getattr(self, field)
            if value is not None and not low <= value <= high:
                raise ValueError(f"{field}: {value} must be at least {low}" if value < low else f"{field}: {value} must be at most {high}")
        if not 0 <= self.seed < 1 << 63:
            raise ValueError("seed: must be from 0 to 2^63 - 1")
        if len(set(self.candidates)) != len(self.candidates):
            raise ValueError(f"candidates: a format is listed twice in {list(self.candidates)}")
        for field in BUDGETS:
            value = getattr(self, field)
            if isinstance(value, str):
                try:
                    value = parse_bytes(value, 0 if field in PERCENT_BUDGETS else None)
                except UsageError as e:
                    raise UsageError(f"{field}: {e}") from e
            if value is not None and not 0 <= value < 1 << 63:
                raise ValueError(f"{field}: {value} bytes, expected a number from 0 to 2^63 - 1")


# A plan multiplies some of these and still has to count in 63 bits.
RANGES = {
    "context": (1, 1 << 30),
    "batch": (1, 1 << 16),
    "block": (1, 1 << 16),
    "prefill_chunk": (1, 1 << 20),
    "calibration_tokens": (1, 1 << 40),
    "certificate_tokens": (64, 1 << 40),
    "seed": (0, (1 << 63) - 1),
}
BUDGETS = ("budget", "weights_budget", "max_artifact")
PERCENT_BUDGETS = ("weights_budget",)


def parse_bytes(text: str, logical_parameters: int | None = None) -> int:
    """Bytes meant by `text`, rounded down; UsageError. A percentage needs the number of logical parameters."""
    match = _AMOUNT.fullmatch(text.strip()) if len(text) <= MAX_TEXT else None
    amount, unit = (Fraction(match[1]), match[2]) if match else (Fraction(0), "?")
    if unit == "%":
        if logical_parameters is None:
            raise UsageError(f"{text!r}: a percentage is of the weights' bytes, so only the weights budget takes one")
        return int(amount * logical_parameters * DENSE_BYTES / 100)
    if unit not in UNITS:
        raise UsageError(f"{text[:MAX_TEXT]!r} is not a number of bytes; write for example 6.6GiB, 900MB, 123456 or 36%")
    return int(amount * UNITS[unit])


def recipe_from_dict(data: Mapping[str, Any], where: str = "recipe") -> Recipe:
    """The recipe that `data` spells; `where` starts the message of a UsageError."""
    try:
        return msgspec.convert(dict(data), Recipe)
    except (msgspec.ValidationError, UsageError) as e:
        raise UsageError(f"{where}: {e}") from e


def read_recipe(path: Path) -> Recipe:
    """The recipe of a .json, .yaml or .yml file; UsageError."""
    try:
        raw = _bytes_of(path)
        if path.suffix == ".json":
            data = msgspec.json.decode(raw)
        elif path.suffix in (".yaml", ".yml"):
            data = msgspec.yaml.decode(raw)
        else:
            raise UsageError(f"{path}: a recipe is a .json, .yaml or .yml file")
    except OSError as e:
        raise UsageError(f"{path}: can't be read ({e.strerror})") from e
    except (msgspec.DecodeError, RecursionError, ValueError) as e:
        raise UsageError(f"{path}: {e}") from e
    except ImportError as e:
        raise UsageError(f"{path}: reading YAML needs the compile extra (pip install 'thinlm[compile]'), or write the recipe as JSON") from e
    if not isinstance(data, dict):
        raise UsageError(f"{path}: a recipe is a table of settings, not {type(data).__name__}")
    return recipe_from_dict(data, str(path))


def _bytes_of(path: Path) -> bytes:
    """A small regular file; a pipe or device, which might never answer, is not opened."""
    info = path.stat()
    if not stat.S_ISREG(info.st_mode) or info.st_size > MAX_RECIPE:
        raise UsageError(f"{path}: not a regular file of at most {MAX_RECIPE} bytes")
    return path.read_bytes()


def resolve(recipe: Recipe, *, logical_parameters: int, context: int, candidates: tuple[str, ...]) -> Recipe:
    """The recipe with budgets in bytes, the model's `context` where none is asked for, and `candidates` where none are named.

    `logical_parameters` counts every tensor once. UsageError when more context is asked for than the model has.
    """
    if recipe.context is not None and recipe.context > context:
        raise UsageError(f"context: {recipe.context} asked for, the model has {context} positions")
    budgets = {name: getattr(recipe, name) for name in BUDGETS}
    limits = {k: parse_bytes(v, logical_parameters if k in PERCENT_BUDGETS else None) if isinstance(v, str) else v for k, v in budgets.items()}
    asked = context if recipe.context is None else recipe.context
    return msgspec.structs.replace(recipe, **limits, context=asked, candidates=recipe.candidates or candidates)


def limits_of(recipe: Recipe) -> dict[str, int]:
    """Budget name -> bytes, of a resolved recipe; unlimited ones are left out."""
    values = {name: getattr(recipe, name) for name in BUDGETS}
    assert not any(isinstance(v, str) for v in values.values()), "the recipe is not resolved"
    return {name: value for name, value in values.items() if value is not None}


def canonical(recipe: Recipe) -> bytes:
    """The recipe as JSON bytes: every field, keys sorted; equal bytes mean equal settings."""
    return msgspec.json.encode(recipe, order="sorted")
