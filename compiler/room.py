"""What a compile needs beside its input: bytes on the disk, and anonymous memory. Estimates from headers alone.

Disk: the artifact; and until it is published, the steps that are kept - second moments of inputs and the values at segment boundaries.
Memory: the checkpoint, the artifact and kept steps are mapped files, which the system may drop; models too large for `--max-ram` are spilled into
unnamed files beside the output. What is left grows with the largest layer and the widest vocabulary, not with the model.
Refused: a --max-ram below the smallest feasible (InfeasibleError).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from ..certify.side_by_side import PROCESS_BYTES, worker_bytes
from ..certify.texts import WINDOW as CERTIFY_WINDOW
from ..passes.calibrate import Calibration
from ..passes.calibrate.options import BATCH, PIECE, ROWS, WIDE
from ..passes.calibrate.segments import Segment, segments
from ..passes.score import SAMPLE
from ..schemas.errors import InfeasibleError
from ..schemas.recipe import limits_of
from ..schemas.verify import infer
from .prepare import Prepared
from .search import WINDOW, as_stored

WORKERS = 2
F32, F64 = 4, 8
LOGITS = 44  # bytes that drawing a label and taking a gradient hold per logit
COPIES = 6  # of a page's or a sample's weights while they are rounded


@dataclass(frozen=True, slots=True)
class Room:
    """How many threads work side by side, and where models are spilled that don't fit (None: they do)."""

    workers: int
    spill: Path | None
    max_ram: int | None


def room_for(prepared: Prepared, max_ram: int | None, folder: Path, *, searching: bool) -> Room:
    """As much side by side as fits; InfeasibleError when nothing does. `searching`: formats are searched, and not only certified."""
    limit = max_ram if max_ram is not None else physical_bytes() * 3 // 4
    need = {workers: memory_bytes(prepared, workers, searching) for workers in range(1, WORKERS + 1)}
    if max_ram is not None and need[1] > max_ram:
        raise InfeasibleError(f"max_ram: {max_ram} bytes asked for, the smallest feasible is about {need[1]} bytes for this model")
    parameters = prepared.costs.logical_parameters
    resident = 2 * max(sum(o.resident_bytes for o in (max(g.options, key=lambda o: o.resident_bytes) for g in prepared.costs.groups)), 1)
    held = need[WORKERS] + F32 * parameters + resident  # the reference, the candidate, and the candidate once more for the memory check
    workers = max((w for w, size in need.items() if size <= limit), default=1)
    return Room(workers, folder if held > limit else None, max_ram)


def give_back() -> None:
    """Give freed memory back to the system; glibc keeps it otherwise."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def physical_bytes() -> int:
    """Memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def disk_bytes(prepared: Prepared) -> int:
    """Bytes of the artifact, as large as its budgets allow, and of the kept steps."""
    exact = prepared.lossless()
    dense = sum(g.option(exact[g.params[0]]).encoded_bytes for g in prepared.costs.groups)
    artifact = min([dense, *limits_of(prepared.recipe).values()]) + prepared.small_bytes
    return artifact + (0 if as_stored(prepared) is not None else _kept_bytes(prepared))


def memory_bytes(prepared: Prepared, workers: int, searching: bool) -> int:
    """Anonymous memory of the whole process at its peak, models spilled."""
    graph = prepared.graph
    certify = worker_bytes(graph, min(CERTIFY_WINDOW, prepared.info.context_length))
    if not searching:
        return PROCESS_BYTES + certify
    widths = _widths(prepared)
    rounding = workers * COPIES * F32 * SAMPLE
    parts = segments(graph)
    backward = max(_backward(prepared, part, widths, workers) for part in parts[:-1])
    head = workers * (PIECE * LOGITS * widths[graph.output("logits")] + 2 * F32 * ROWS)
    forward = max(_forward(prepared, part, widths) for part in parts)
    return PROCESS_BYTES + max(certify, rounding, backward, head, forward)


def _backward(prepared: Prepared, part: Segment, widths: Mapping[str, int], workers: int) -> int:
    """A segment's weights, and a window's values with their gradients for each worker."""
    sizes = {p.name: p.size for p in prepared.graph.params}
    used = {i for n in part.nodes for i in n.inputs if i in sizes and n.op != "embedding"}
    weights = sum(sizes[i] if sizes[i] <= WIDE else 0 for i in used)
    values = sum(widths[n.output] for n in part.nodes) * WINDOW
    scores = sum(widths[n.inputs[0]] for n in part.nodes if n.op == "attention") // 32 * WINDOW * WINDOW // 2
    return F32 * (weights + workers * 3 * (values + scores))


def _forward(prepared: Prepared, part: Segment, widths: Mapping[str, int]) -> int:
    """One matrix, second moments, and a batch of windows' values."""
    sizes = {p.name: p.size for p in prepared.graph.params}
    inputs = {n.inputs[0] for n in part.nodes if n.op == "linear" and n.inputs[1] in sizes}
    most = Calibration(source="").max_gram
    moments = sum((F64 + F32) * widths[i] ** 2 for i in inputs if widths[i] <= most)
    matrix = max((min(sizes[n.inputs[1]], WIDE) for n in part.nodes if n.op == "linear" and n.inputs[1] in sizes), default=0)
    values = sum(widths[n.output] for n in part.nodes if n.output != prepared.graph.output("logits"))
    return moments + F32 * (matrix + ROWS + BATCH * WINDOW * values)


def _widths(prepared: Prepared) -> dict[str, int]:
    """Numbers per position of every computed value."""
    types, _ = infer(prepared.graph)
    return {n.output: prod(d for d in types[n.output].shape if isinstance(d, int)) for n in prepared.graph.nodes}


def _kept_bytes(prepared: Prepared) -> int:
    graph, options, widths = prepared.graph, Calibration(source=""), _widths(prepared)
    params = graph.param_table()
    inputs = {node.inputs[0] for node in graph.nodes if node.op == "linear" and node.inputs[1] in params}
    moments = sum(F32 * widths[i] ** 2 for i in inputs if widths[i] <= options.max_gram)
    crossing = sum(widths[v] for part in segments(graph) for v in part.makes)
    values = F32 * prepared.recipe.calibration_tokens * crossing * (1 + options.gradient_share)
    return moments + int(values)
