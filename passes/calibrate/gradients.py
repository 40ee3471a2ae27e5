"""How much every linear's output and every embedding column matters: the mean squared gradient of a token's loss.

Labels are sampled from the model's own next-token distribution (seeded per window), so that the mean squared gradient is the diagonal of the
Fisher information, and half of it times a squared error is the KL divergence that the error causes, to second order.
Segments go backward, each from the values that the forward pass kept at its boundary (inputs.py): one segment's weights and two windows'
activations are in memory. Each is one step (artifacts/work.py), from which a killed job goes on. The last segment, with the head, works
position by position and is done in runs of PIECE positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from ...artifacts.work import Arrays, Steps
from ...runtime_min.parallel import Map, one_thread_each
from .inputs import Boundary
from .options import PIECE, Calibration, Progress
from .segments import Segment
from .stats import TableMoments
from .tasks import Runner, Values, constants, inputs_of, tensor

Sums = dict[str, np.ndarray]  # "output/PARAM" or "table/PARAM" -> summed squared gradients


@dataclass(frozen=True, slots=True)
class Texts:
    """The windows that gradients are taken of: token ids, and the row of the boundary values at which each starts."""

    windows: Sequence[np.ndarray]
    starts: Sequence[int]

    @property
    def ends(self) -> list[int]:
        """Rows of gradient values, window after window: [0, T0, T0 + T1, ...]."""
        return np.cumsum([0, *map(len, self.windows)]).tolist()


def measure_gradients(
    runner: Runner, parts: Sequence[Segment], found: tuple[Boundary, Texts], options: Calibration, kept: tuple[Steps, Progress]
) -> tuple[Sums, dict[str, TableMoments]]:
    """(linear weight -> f64[out], embedding table -> its moments), both per token."""
    boundary, texts = found
    steps, progress = kept
    arriving: dict[str, np.ndarray] = {}  # gradients of boundary values, from all later segments
    total: Sums = {}
    with one_thread_each(options.workers) as each:
        for done, at in enumerate(reversed(range(len(parts)))):
            name = f"backward-{at:04d}"
            step = steps.get(name)
            if step is None:
                part = _Part(runner, parts[at], texts, options.seed, last=at == len(parts) - 1)
                step = steps.put(name, part.run(boundary, arriving, each))
            for v in parts[at].makes:
                arriving.pop(v, None)
            arriving |= {key.removeprefix("grad/"): a for key, a in step.items() if key.startswith("grad/")}
            _add(total, {key: a for key, a in step.items() if not key.startswith("grad/")})
            progress((done + 1) / len(parts))
    return _per_token(runner, texts.windows, total)


def _per_token(runner: Runner, windows: Sequence[np.ndarray], total: Mapping[str, np.ndarray]) -> tuple[Sums, dict[str, TableMoments]]:
    count = sum(map(len, windows))
    outputs = {key.removeprefix("output/"): a / count for key, a in total.items() if key.startswith("output/")}
    tables = {}
    for key, a in total.items():
        if key.startswith("table/"):
            name = key.removeprefix("table/")
            counts = np.bincount(np.concatenate(list(windows)), minlength=runner.shapes[name][0])
            tables[name] = TableMoments(counts.astype(np.int64), a / count)
    return outputs, tables


@dataclass(frozen=True, slots=True)
class _Part:
    """One segment's pass over all windows; the `last` one ends in the loss."""

    runner: Runner
    part: Segment
    texts: Texts
    seed: int
    last: bool

    def run(self, boundary: Boundary, arriving: Mapping[str, np.ndarray], each: Map) -> Arrays:
        """Squared gradients of the segment's linears, and gradients of what it reads, later segments' share included."""
        loaded = constants(self.runner.graph) | self.runner.load(self.part.nodes)
        sums: Sums = {}
        grads: dict[str, list[np.ndarray]] = {v: [] for v in self.part.reads}
        task = self._loss if self.last else self._window
        for found, gradients in each(partial(task, loaded, boundary, arriving), range(len(self.texts.windows))):
            _add(sums, found)
            for v, g in gradients.items():
                grads[v].append(g)
        whole = {v: np.concatenate(pieces) for v, pieces in grads.items()}
        for v in whole.keys() & arriving.keys():
            whole[v] += arriving[v]
        return sums | {f"grad/{v}": g for v, g in whole.items()}

    def _window(self, loaded: Values, boundary: Boundary, arriving: Mapping[str, np.ndarray], number: int) -> tuple[Sums, Sums]:
        ids, ends = self.texts.windows[number], self.texts.ends
        with torch.enable_grad():
            reads, sums = self._reads(boundary, number), Sums()
            values = self._forward(loaded | inputs_of(ids) | reads, sums)
            outs = [v for v in self.part.makes if v in arriving]
            grads = [tensor(arriving[v][ends[number] : ends[number + 1]])[None] for v in outs]
            torch.autograd.backward([values[v] for v in outs], grads)
        return sums, {v: _gradient(x) for v, x in reads.items()}

    def _loss(self, loaded: Values, boundary: Boundary, arriving: Mapping[str, np.ndarray], number: int) -> tuple[Sums, Sums]:
        ids = self.texts.windows[number]
        draws = np.random.default_rng((self.seed, number)).random(len(ids))
        whole, inputs, sums = self._reads(boundary, number), inputs_of(ids), Sums()
        for piece in _pieces(len(ids)):
            with torch.enable_grad():
                part = {v: x.detach()[:, piece].requires_grad_() for v, x in whole.items()}
                values = self._forward(loaded | {k: x[:, piece] for k, x in inputs.items()} | part, sums)
                logits = values[self.runner.graph.output("logits")][0]
                torch.nn.functional.cross_entropy(logits, _sampled(logits, draws[piece]), reduction="sum").backward()
            for v, x in whole.items():
                x.grad = torch.zeros_like(x) if x.grad is None else x.grad
                x.grad[:, piece] = torch.from_numpy(_gradient(part[v]))
        return sums, {v: _gradient(x) for v, x in whole.items()}

    def _reads(self, boundary: Boundary, number: int) -> Values:
        start = self.texts.starts[number]
        stop = start + len(self.texts.windows[number])
        return {v: tensor(boundary[v][start:stop])[None].requires_grad_() for v in self.part.reads}

    def _forward(self, values: Values, sums: Sums) -> Values:
        """Run the nodes; squared gradients of linears and embeddings will be added to `sums`."""
        for node in self.part.nodes:
            out = self.runner.run(node, values)
            if node.op in ("linear", "embedding") and node.inputs[1] in self.runner.shapes:
                if not out.requires_grad:
                    out.requires_grad_()
                kind = "output" if node.op == "linear" else "table"
                out.register_hook(partial(_add_square, sums, f"{kind}/{node.inputs[1]}"))
            values[node.output] = out
        return values


def _pieces(length: int) -> Iterator[slice]:
    return (slice(start, min(start + PIECE, length)) for start in range(0, length, PIECE))


def _gradient(x: torch.Tensor) -> np.ndarray:
    """[T, ...]; zeros where nothing depends on x."""
    return (torch.zeros_like(x) if x.grad is None else x.grad)[0].detach().numpy()


def _add(total: Sums, more: Mapping[str, np.ndarray]) -> None:
    for key, value in more.items():
        total[key] = total[key] + value if key in total else value


def _add_square(sums: Sums, key: str, gradient: torch.Tensor) -> None:
    _add(sums, {key: gradient[0].double().square().sum(0).numpy()})


def _sampled(logits: torch.Tensor, draws: np.ndarray) -> torch.Tensor:
    """One label per row of logits [T, V], drawn from its softmax by numbers [T] from [0, 1)."""
    cumulative = logits.detach().double().softmax(-1).cumsum(-1)
    draw = torch.from_numpy(draws)[:, None]
    return (cumulative < draw * cumulative[:, -1:]).sum(-1).clamp_(max=logits.shape[1] - 1)
