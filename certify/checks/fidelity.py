"""FIDELITY on held-out text: how close the artifact's next-token distributions are to the source's, in float32, through the runtimes.

Document by document, window by window, a few positions at a time: no window's logits are held whole. Every document weighs the same in a
mean; percentiles and top-1 are over all positions. What has no threshold (single domains, the change of probability) is reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...runtime_min.model import Model
from ...schemas.certificate import Check
from ..metrics import Positions, compare_pieces
from ..stats import RESAMPLES, mean_interval, wilson
from ..texts import SKIP, Sample, Text, text_windows

METRICS = ("logits_cosine_raw", "logits_cosine_centred", "worst_domain", "p01", "kl", "top1")
_FORMS = ("raw", "centred")


def measure(model: Model, source: Model, text: Text, size: Sample, vocabulary: int) -> Positions:
    """Metrics of one document's counting positions."""
    windows = text_windows(text, size)
    return Positions.join(compare_pieces(source.forward_pieces(ids), model.forward_pieces(ids), vocabulary, SKIP) for ids in windows)


def fidelity_checks(documents: Sequence[Positions], texts: Sequence[Text], size: Sample, seed: int) -> tuple[Check, ...]:
    """All figures of the measured documents, `documents[i]` being those of `texts[i]`."""
    if not texts:
        return tuple(Check(metric=m, name=m, value=None, n=0, detail=f"no document has more than {SKIP} tokens") for m in METRICS)
    return tuple(_Figures(tuple(documents), tuple(t.domain for t in texts), size, seed).checks())


@dataclass(frozen=True, slots=True)
class _Figures:
    documents: tuple[Positions, ...]
    domains: tuple[str, ...]
    size: Sample
    seed: int

    def checks(self) -> Iterator[Check]:
        """Every figure of the module."""
        everything = Positions.join(self.documents)
        for form in _FORMS:
            yield self._mean(f"logits_cosine_{form}", self._cosines(form))
            yield self._worst_domain(form)
            yield self._check("p01", form, 1 - float(np.percentile(_deviations(everything, form), 99)), len(everything))
        yield self._mean("kl", np.array([d.kl.mean() for d in self.documents]))
        hits = int(everything.top1.sum())
        low, high = wilson(hits, len(everything))
        yield self._check("top1", "", hits / len(everything), len(everything), lower=low, upper=high)
        yield self._check("probability_change", "rms", float(np.sqrt(np.square(everything.change).mean())), len(everything))
        for domain in sorted(set(self.domains)):
            yield from self._domain(domain)

    def _cosines(self, form: str) -> np.ndarray:
        """Mean cosine of every document."""
        return np.array([1 - _deviations(d, form).mean() for d in self.documents])

    def _mean(self, metric: str, figures: np.ndarray) -> Check:
        low, high = mean_interval(figures, self.seed)
        if len(figures) < 2:
            return self._check(metric, "mean", float(figures.mean()), len(figures), detail="one document has no interval")
        form = f"mean,interval=t+bootstrap-t:{RESAMPLES}"
        return self._check(metric, form, float(figures.mean()), len(figures), seed=self.seed, lower=low, upper=high)

    def _worst_domain(self, form: str) -> Check:
        figures, of = self._cosines(form), np.array(self.domains)
        value, domain = min((float(figures[of == d].mean()), d) for d in sorted(set(self.domains)))
        return self._check("worst_domain", form, value, int((of == domain).sum()), detail=f"worst: {domain}")

    def _domain(self, domain: str) -> Iterator[Check]:
        """One domain's figures, reported."""
        mine = [d for d, name in zip(self.documents, self.domains, strict=True) if name == domain]
        for metric, figures in (
            ("raw", [1 - d.deviation_raw.mean() for d in mine]),
            ("centred", [1 - d.deviation_centred.mean() for d in mine]),
            ("kl", [d.kl.mean() for d in mine]),
            ("top1", [d.top1.mean() for d in mine]),
        ):
            yield self._check("domain", f"{domain},{metric}", float(np.mean(figures)), len(mine))

    def _check(self, metric: str, form: str, value: float, n: int, **more: object) -> Check:
        size = f"skip={SKIP},window={self.size.window},tokens={self.size.tokens},documents={len(self.documents)}"
        name = f"{metric}[{form},{size}]" if form else f"{metric}[{size}]"
        return Check(metric=metric, name=name, value=value, n=n, **more)  # pyright: ignore[reportArgumentType]


def _deviations(positions: Positions, form: str) -> np.ndarray:
    return positions.deviation_raw if form == "raw" else positions.deviation_centred
