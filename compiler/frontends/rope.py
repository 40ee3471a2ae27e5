"""Rotary frequencies from both spellings of a config, as constants.

Frequencies are computed step by step in float32, as transformers does, then kept exactly as float64. Case 1 (transformers 5):
`rope_parameters` {rope_theta, rope_type, ...}. Case 2 (most published files): `rope_theta` and `rope_scaling` {rope_type or type, ...} or
null. A theta inside the dict wins over one beside it. Adding a scaling is one function and one row of SCALINGS.
Refused with FrontendError: both dicts at once, rope types outside SCALINGS, partial rotation, parameters that a type does not read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .config_reader import ConfigReader

MAX_HEAD_DIM = 1 << 16


@dataclass(frozen=True, slots=True)
class Rope:
    """Frequencies [D / 2] of the rotated pairs; `scale` multiplies cos and sin."""

    freqs: tuple[float, ...]
    scale: float = 1.0


def read_rope(c: ConfigReader, head_dim: int, context: int) -> Rope:
    """The one rope of a model whose layers all rotate alike."""
    c.expect("partial_rotary_factor", (None, 1.0))
    key = rope_key(c)
    return rope_of(c.child(key, rope_defaults(theta(c, "rope_theta"), context)), head_dim)


def read_typed_rope(c: ConfigReader, layer_type: str, theta_key: str, head_dim: int, context: int, scaled: bool) -> Rope:
    """The rope of one layer type, where `rope_parameters` is keyed by type.

    In the older spelling `theta_key` gives its base, and `rope_scaling` belongs to the one type that is `scaled`.
    """
    defaults = rope_defaults(theta(c, theta_key), context)
    c.expect("partial_rotary_factor", (None, 1.0))
    if rope_key(c) == "rope_parameters" or not scaled:
        return rope_of(c.child("rope_parameters", {}).child(layer_type, defaults), head_dim)
    legacy = c.child("rope_scaling", defaults)
    legacy.expect("type", (None,))  # transformers overlooks this spelling here, so what is meant is open
    return rope_of(legacy, head_dim)


def rope_key(c: ConfigReader) -> str:
    """The key of the spelling that the file uses: `rope_parameters`, or `rope_scaling` (perhaps null or missing)."""
    if c.has("rope_parameters") and c.has("rope_scaling"):
        raise c.refuse("rope_scaling", "given beside rope_parameters; keep one of them")
    c.ignore("rope_parameters", "rope_scaling")  # one is null or missing, the other is about to be read
    return "rope_parameters" if c.has("rope_parameters") else "rope_scaling"


def theta(c: ConfigReader, key: str) -> float:
    """A base of the exponential."""
    return c.number(key, 1.0, 1e30)


def rope_defaults(theta: float, context: int) -> dict[str, Any]:
    """Defaults inside a rope dict, given the values beside it."""
    return {"rope_theta": theta, "partial_rotary_factor": None, "rope_type": None, "type": None, "original_max_position_embeddings": context}


def rope_of(r: ConfigReader, head_dim: int) -> Rope:
    """The rope that one dict describes, rotating all of `head_dim`."""
    if head_dim % 2 or head_dim > MAX_HEAD_DIM:
        raise r.refuse("rope_type", f"rotates heads of {head_dim}; only even sizes up to {MAX_HEAD_DIM}")
    r.expect("partial_rotary_factor", (None, 1.0))
    kind, old = r.expect("rope_type", (None, *SCALINGS)), r.expect("type", (None, *SCALINGS))
    if kind and old and kind != old:
        raise r.refuse("type", f"contradicts rope_type={kind}")
    return Rope(tuple(float(f) for f in SCALINGS[kind or old or "default"](r, base_freqs(theta(r, "rope_theta"), head_dim))))


def base_freqs(theta: float, head_dim: int) -> np.ndarray:
    """theta^(-2i / D) for i < D / 2, each step rounded to float32: f32[D / 2].

    The power goes through float64, whose rounding to float32 is the same on every machine (float32 powers differ by an ulp).
    """
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    powers = np.power(np.float64(np.float32(theta)), exponents.astype(np.float64)).astype(np.float32)
    return np.float32(1) / powers


def _default(r: ConfigReader, freqs: np.ndarray) -> np.ndarray:
    return freqs


def _linear(r: ConfigReader, freqs: np.ndarray) -> np.ndarray:
    return freqs / np.float32(r.number("factor", 1e-3, 1e6))


def _by_wavelength(r: ConfigReader, freqs: np.ndarray) -> np.ndarray:
    """Long wavelengths are divided by `factor`, short ones kept, those between blended."""
    factor, low, high = (r.number(f, 1e-3, 1e6) for f in ("factor", "low_freq_factor", "high_freq_factor"))
    original = r.size("original_max_position_embeddings")
    if high <= low:
        raise r.refuse("high_freq_factor", f"must be above low_freq_factor={low}")
    wavelength = np.float32(2 * math.pi) / freqs
    blend = (np.float32(original) / wavelength - np.float32(low)) / np.float32(high - low)
    medium = (np.float32(1) - blend) * freqs / np.float32(factor) + blend * freqs
    scaled = np.where(wavelength > original / low, freqs / np.float32(factor), medium)
    return np.where(wavelength < original / high, freqs, scaled)


SCALINGS: dict[str, Callable[[ConfigReader, np.ndarray], np.ndarray]] = {"default": _default, "linear": _linear, "llama3": _by_wavelength}
