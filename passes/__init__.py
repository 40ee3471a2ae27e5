"""Floor 4: graph -> graph passes and the search for the best encoding of every weight under byte budgets.

Order of a compile (design.md section 6): canonicalise -> calibrate -> relayout -> score -> allocate -> round -> plan memory.
"""

from .allocate import Allocation, allocate, feasible_range
from .pipeline import PASSES, PassRecord, encode_pipeline, import_pipeline, parse_pipeline, print_pipeline, run_pipeline

__all__ = [
    "PASSES",
    "Allocation",
    "PassRecord",
    "allocate",
    "encode_pipeline",
    "feasible_range",
    "import_pipeline",
    "parse_pipeline",
    "print_pipeline",
    "run_pipeline",
]
