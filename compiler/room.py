"""What a compile needs beside its input: bytes on the disk. An estimate from headers alone.

The artifact; and until it is published, the steps that are kept: second moments of inputs, and the values at segment boundaries.
"""

from __future__ import annotations

from math import prod

from ..passes.calibrate import Calibration
from ..passes.calibrate.segments import segments
from ..schemas.recipe import limits_of
from ..schemas.verify import infer
from .prepare import Prepared
from .search import as_stored


def disk_bytes(prepared: Prepared) -> int:
    """Bytes of the artifact, as large as its budgets allow, and of the kept steps."""
    exact = prepared.lossless()
    dense = sum(g.option(exact[g.params[0]]).encoded_bytes for g in prepared.costs.groups)
    artifact = min([dense, *limits_of(prepared.recipe).values()]) + prepared.small_bytes
    return artifact + (0 if as_stored(prepared) is not None else _kept_bytes(prepared))


def _kept_bytes(prepared: Prepared) -> int:
    graph, options = prepared.graph, Calibration(source="")
    types, _ = infer(graph)
    params = graph.param_table()
    widths = {node.output: prod(d for d in types[node.output].shape if isinstance(d, int)) for node in graph.nodes}
    inputs = {node.inputs[0] for node in graph.nodes if node.op == "linear" and node.inputs[1] in params}
    moments = sum(4 * widths[i] ** 2 for i in inputs if widths[i] <= options.max_gram)
    crossing = sum(widths[v] for part in segments(graph) for v in part.makes)
    values = 4 * prepared.recipe.calibration_tokens * crossing * (1 + options.gradient_share)
    return moments + int(values)
