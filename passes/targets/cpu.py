"""cpu: the torch CPU backend. All integer formats share one kernel, so bytes decide speed; group sizes trade scales against error.

Candidates (bits per weight with scales): 2.125 to 8.125. Wider symmetric groups win at equal bytes over affine ones, but for the smallest
group of 4-bit codes and for 2-bit codes (measured on Gaussian weights, 2026-11: relative error 0.064 at 5.0 bits, 0.303 at 2.5 bits).
"""

from __future__ import annotations

from ...artifacts.formats import FORMATS
from ...runtime_min import targets
from .base import Target
from .cpu_memory import footprint, table_bytes

_SYMMETRIC = {8: (128,), 6: (64,), 4: (32, 64, 128), 3: (32, 64, 128), 2: (64, 128)}
_AFFINE = {4: (32,), 2: (32, 64)}


def _candidates() -> tuple[str, ...]:
    chosen = (f for f in FORMATS.values() if f.family == "int" and f.group in (_AFFINE if f.affine else _SYMMETRIC).get(f.bits, ()))
    return tuple(f.name for f in chosen)


CPU = Target(
    name="cpu",
    candidates=_candidates(),
    resident_bytes=targets.resident_bytes,
    vector_item_bytes=4,
    footprint=footprint,
    table_bytes=table_bytes,
    overhead_bytes=0,
)
