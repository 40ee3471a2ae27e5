"""May this artifact run like this? Looks for a passing certificate for the device and mode, and says what is missing.

1. An artifact in its plan's own mode runs with a warning when no passing certificate covers it (uncertified, or failed).
2. A switch (context, KV dtype) to a mode that no passing certificate covers is refused with GateError, unless the user passes --uncertified.
A certificate is judged again from its recorded figures; the stored verdict alone is not believed.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..artifacts import Artifact
from ..certify import Standing, rejudge, standing_of
from ..runtime_min import ModelOptions, options_of
from ..schemas.certificate import Certificate
from ..schemas.errors import GateError
from ..schemas.recipe import read_recipe

_BACKENDS = {"cpu": "torch_cpu", "interp": "interp"}
REFERENCE = "interp"  # the meaning of the graph: certified backends are compared with it, so it needs no row of its own


def standing(artifact: Artifact, device: str, options: ModelOptions | None = None) -> Standing:
    """What the certificates say about `device` and `options` (the plan's own mode by default)."""
    return standing_of(artifact, _BACKENDS.get(device, device), options or options_of(artifact))


def warning_for(artifact: Artifact, device: str, options: ModelOptions, uncertified: bool) -> str | None:
    """What the user should know before this run, None when a certificate covers it. GateError for an uncovered switch."""
    found = standing(artifact, "cpu" if device == REFERENCE else device, options)
    if found.verdict == "pass":
        return None
    message = f"{artifact.path}: {found.reason}"
    if options != options_of(artifact) and not uncertified:
        raise GateError(f"{message}; leave out --context and --kv-dtype, or pass --uncertified to run it all the same")
    return message


def judged(artifact: Artifact, device: str, recipe_file: Path | None) -> tuple[str, str, Certificate | None]:
    """(verdict, reason, certificate) for `device`, by the recorded thresholds or those of a recipe's gate."""
    found = standing(artifact, device)
    if found.certificate is None or recipe_file is None:
        return found.verdict, found.reason, found.certificate
    predicate = found.certificate.predicate
    bounds = msgspec.structs.asdict(read_recipe(recipe_file).gate)
    rows = tuple(msgspec.structs.replace(row, bound=float(bounds.get(row.metric, row.bound))) for row in predicate.thresholds)
    gates, verdict = rejudge(found.certificate, rows)
    failed = [c.name for g in gates for c in g.checks if not c.passed]
    reason = f"by {recipe_file}: {verdict}" + (f": {', '.join(failed[:3])}" if failed else "")
    predicate = msgspec.structs.replace(predicate, thresholds=rows, gates=gates, verdict=verdict)
    return verdict, reason, msgspec.structs.replace(found.certificate, predicate=predicate)
