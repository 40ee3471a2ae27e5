"""Greedy continuations of several texts in step: where decoding the weights costs more than multiplying by them, one pass serves all texts.

In: a model, texts as ids. Out: per text what `Model.generate` gives at temperature 0 (float32 rounding aside). The texts get a cache of their own, as
long as the longest of them needs. Refused as by `generate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from .model import Model, Session
from .sample import SamplingParams, sample


def continue_texts(model: Model, texts: Sequence[Sequence[int]], max_new_tokens: int) -> list[list[int]]:
    """New ids of every text: greedy, the end-of-sequence id included, up to `max_new_tokens` or the context's end."""
    if not texts or max_new_tokens < 1:
        return [[] for _ in texts]
    options = model.options
    need = min(options.context, max(map(len, texts)) + max_new_tokens)
    own = model.running(replace(options, batch=len(texts), context=need))
    new: list[list[int]] = [[] for _ in texts]
    with ExitStack() as stack:
        sessions = [stack.enter_context(own.session()) for _ in texts]
        live, logits = list(range(len(texts))), [session.advance(text) for session, text in zip(sessions, texts, strict=True)]
        while True:
            for n, row in zip(live, logits, strict=True):
                new[n].append(sample(row[: options.vocab], SamplingParams(), len(new[n])))
            live = [n for n in live if new[n][-1] not in options.eos and sessions[n].length < need and len(new[n]) < max_new_tokens]
            if not live:
                return new
            logits = Session.advance_all([sessions[n] for n in live], [new[n][-1] for n in live])
