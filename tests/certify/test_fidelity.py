"""Figures over documents against their definitions, on models that answer from tables."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from thinlm.certify.checks.fidelity import METRICS, fidelity_checks, measure
from thinlm.certify.metrics import Positions, compare
from thinlm.certify.stats import mean_interval, wilson
from thinlm.certify.texts import SKIP, Sample, Text
from thinlm.schemas.certificate import Check

V, SIZE = 30, Sample(window=40)


class Noisy:
    """Logits that are a fixed function of position and id, plus noise that depends on the domain's first id."""

    def __init__(self, noise: float) -> None:
        self.noise, self.calls = noise, 0

    def forward(self, ids: Any) -> np.ndarray:
        self.calls += 1
        exact = np.random.default_rng(int(np.sum(ids))).normal(0, 3, (len(ids), V))
        return (exact + np.random.default_rng(7).normal(0, self.noise * ids[0], (len(ids), V))).astype(np.float32)

    def forward_pieces(self, ids: Any) -> Iterator[np.ndarray]:
        logits = self.forward(ids)
        yield from (logits[i : i + 7 + (self.noise > 0)] for i in range(0, len(ids), 7 + (self.noise > 0)))


def text(name: str, domain: str, count: int) -> Text:
    ids = np.random.default_rng(count).integers(1, 9, count)
    return Text(name, domain, hashlib.sha256(name.encode()).hexdigest(), ids)


TEXTS = (text("a", "code", 100), text("b", "prose", 41), text("c", "prose", 90), text("d", "code", 33))


@pytest.fixture(scope="module")
def documents() -> list[Positions]:
    return [measure(Noisy(0.05), Noisy(0), t, SIZE, V) for t in TEXTS]  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def figures(documents: list[Positions]) -> dict[str, Check]:
    """Checks by name up to the parameters that all share."""
    return {c.name.replace(f"skip={SKIP},window=40,tokens=512,documents=4]", ""): c for c in fidelity_checks(documents, TEXTS, SIZE, seed=3)}


def test_windows_are_run_one_by_one_and_count_from_skip(documents: list[Positions]) -> None:
    model = Noisy(0.05)
    found = measure(model, Noisy(0), TEXTS[0], SIZE, V)  # type: ignore[arg-type]
    assert model.calls == 3
    assert len(found) == 24 + 24 + 4
    assert [len(d) for d in documents] == [52, 24, 24 + 24, 17]  # the last id of b and the last ten of c have no counting position
    first = TEXTS[0].ids[:40]
    expected = compare(Noisy(0).forward(first), Noisy(0.05).forward(first), V, SKIP)
    np.testing.assert_array_equal(found.kl[:24], expected.kl)


def test_every_document_weighs_the_same(documents: list[Positions], figures: dict[str, Check]) -> None:
    for form, attribute in (("raw", "deviation_raw"), ("centred", "deviation_centred")):
        means = np.array([1 - getattr(d, attribute).mean() for d in documents])
        check = figures[f"logits_cosine_{form}[mean,interval=t+bootstrap-t:1000,"]
        assert check.value == pytest.approx(means.mean(), abs=1e-15)
        assert (check.lower, check.upper, check.n, check.seed) == (*mean_interval(means, 3), 4, 3)
        worst = min(means[[0, 3]].mean(), means[[1, 2]].mean())
        assert figures[f"worst_domain[{form},"].value == pytest.approx(worst, abs=1e-15)
        everything = np.concatenate([1 - getattr(d, attribute) for d in documents])
        assert figures[f"p01[{form},"].value == pytest.approx(np.percentile(everything, 1), abs=1e-12)
    assert figures["kl[mean,interval=t+bootstrap-t:1000,"].value == pytest.approx(np.mean([d.kl.mean() for d in documents]))


def test_shares_and_domains(documents: list[Positions], figures: dict[str, Check]) -> None:
    hits = np.concatenate([d.top1 for d in documents])
    assert (figures["top1["].value, figures["top1["].n) == (hits.mean(), len(hits))
    assert (figures["top1["].lower, figures["top1["].upper) == wilson(int(hits.sum()), len(hits))
    change = np.concatenate([d.change for d in documents])
    assert figures["probability_change[rms,"].value == pytest.approx(np.sqrt((change**2).mean()))
    assert figures["domain[prose,kl,"].value == pytest.approx((documents[1].kl.mean() + documents[2].kl.mean()) / 2)
    assert {c.metric for c in figures.values()} == {*METRICS, "probability_change", "domain"}


def test_one_document_has_no_interval(documents: list[Positions]) -> None:
    check = fidelity_checks(documents[:1], TEXTS[:1], SIZE, 0)[0]
    assert (check.n, check.lower, check.detail) == (1, None, "one document has no interval")


def test_no_document_gives_no_figure() -> None:
    checks = fidelity_checks([], (), SIZE, 0)
    assert [(c.metric, c.value, c.n) for c in checks] == [(m, None, 0) for m in METRICS]
