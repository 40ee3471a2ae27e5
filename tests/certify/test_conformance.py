"""Chunkings and lengths of the cached-decode check; whether it sees damage is in test_damage.py."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from thinlm.certify.checks.conformance import LONGEST, SHORTEST, chunkings, text_length, texts_of
from tiny import Dims, tiny_graph


@given(st.integers(1, 400), st.integers(1, 80), st.lists(st.integers(0, 400), max_size=6))
def test_chunkings_tile_the_text(length: int, block: int, edges: list[int]) -> None:
    for sizes in chunkings(length, block, edges).values():
        assert sum(sizes) == length
        assert min(sizes) > 0


@given(st.integers(20, 300), st.integers(4, 64))
def test_tokens_around_an_edge_go_one_at_a_time(length: int, block: int) -> None:
    edges = range(block, length, block)
    starts = np.cumsum([0, *chunkings(length, block, list(edges))["edges"]]).tolist()
    for edge in edges:
        for position in (edge - 2, edge - 1, edge, edge + 1):
            if 0 <= position < length:
                assert position in starts
                assert position + 1 in starts


def test_some_pieces_cross_a_boundary() -> None:
    starts = np.cumsum(chunkings(200, 64, [])["across"]).tolist()
    assert starts[:3] == [65, 128, 129]


@pytest.mark.parametrize(
    ("windows", "context", "block", "length"),
    [
        ((0, 0, 0), 4096, 16, SHORTEST),
        ((0, 0, 0), 64, 16, 64),
        ((0, 200, 0), 4096, 64, 331),
        ((0, 0, 0), 4096, 64, 131),
        ((9999, 0, 0), 9999, 64, LONGEST),
    ],
)
def test_texts_leave_every_window(windows: tuple[int, ...], context: int, block: int, length: int) -> None:
    assert text_length(tiny_graph(replace(Dims(), windows=windows)), context, block) == length


def test_two_texts_of_any_run_of_ids() -> None:
    first, second = texts_of(np.arange(5), 4)
    assert (first.tolist(), second.tolist()) == ([0, 1, 2, 3], [4, 0, 1, 2])
