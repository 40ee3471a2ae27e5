"""Page layouts: the cutting rules, exact inverses, sizes known in advance, and every byte of a page accounted for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tiny_artifact
from thinlm.artifacts.formats import get_format
from thinlm.artifacts.layouts import PAGE_MAX, SUPERBLOCK, PageGroup, StoredTensor, cut, fill_pages, gather, matrix_shape, plan_pages
from thinlm.artifacts.layouts.base import pieces
from thinlm.schemas.errors import InputError

INT4, INT8, BF16 = get_format("int4-sym-g64/1"), get_format("int8-sym-g32/1"), get_format("bf16/1")


def stored(name: str, shape: tuple[int, ...], role: str = "q", layer: int | None = 0, fmt=INT4) -> StoredTensor:
    return StoredTensor(name, shape, "bf16", role, layer, fmt)


def ffn(hidden: int, channels: int) -> list[StoredTensor]:
    return [
        stored("blk.0.ffn.gate", (channels, hidden), "gate"),
        stored("blk.0.ffn.up", (channels, hidden), "up"),
        stored("blk.0.ffn.down", (hidden, channels), "down", fmt=INT8),
    ]


@given(rows=st.integers(1, 40), cols=st.integers(1, 40), axis=st.sampled_from([0, 1]), step=st.integers(1, 50))
def test_gather_undoes_cut(rows: int, cols: int, axis: int, step: int) -> None:
    matrix = np.arange(rows * cols).reshape(rows, cols)
    parts = cut(matrix, axis, step)
    np.testing.assert_array_equal(gather(parts, axis), matrix)
    assert all(0 < part.shape[axis] <= step for part in parts)
    assert [part.shape[axis] for part in parts[:-1]] == [step] * (len(parts) - 1)


@settings(max_examples=40, deadline=None)
@given(hidden=st.integers(1, 150), channels=st.integers(1, 600), vocab=st.integers(1, 5000), wide=st.integers(1, 3))
def test_slabs_cover_every_tensor_once_and_never_touch(hidden: int, channels: int, vocab: int, wide: int) -> None:
    vectors = [stored(f"blk.0.b{n}", (hidden * (n + 1),), "bias", fmt=BF16) for n in range(wide)]
    plan = plan_pages([stored("embed", (vocab, hidden), "embed", None), *vectors, *ffn(hidden, channels), stored("x", (2, 3, hidden))])
    covered = {slot.tensor.name: np.zeros(matrix_shape(slot.tensor.shape), int) for slot in plan.slots()}
    page = 0
    for group in plan.groups:
        assert group.first_page == page
        page += group.count
        for k in range(group.count):
            end = 0
            for offset, slot, region in pieces(group, k):
                assert offset % 128 == 0
                assert offset >= end
                covered[slot.tensor.name][region.row0 : region.row1, region.col0 : region.col1] += 1
                end = offset + region.nbytes(slot.tensor.format)
            assert end <= group.length(k) < end + 128
    assert all((count == 1).all() for count in covered.values())
    lengths = [group.length(k) for group in plan.groups for k in range(group.count)]
    assert plan.page_bytes == sum(lengths)


def test_a_superblock_page_is_all_there_is_of_its_channels() -> None:
    (group,) = plan_pages(ffn(hidden=72, channels=300)).groups
    assert (group.name, group.count) == ("blk.0.ffn", 3)
    regions = [{slot.tensor.role: (r.row0, r.row1, r.col0, r.col1) for _, slot, r in pieces(group, k)} for k in range(3)]
    for k, (start, stop) in enumerate([(0, 128), (128, 256), (256, 300)]):
        assert regions[k] == {"gate": (start, stop, 0, 72), "up": (start, stop, 0, 72), "down": (0, 72, start, stop)}
    assert SUPERBLOCK == 128


def test_blocks_that_disagree_on_channels_are_cut_by_rows() -> None:
    odd = [stored("f.gate", (200, 8), "gate"), stored("f.down", (8, 201), "down")]
    assert [slot.layout.kind for slot in plan_pages(odd).slots()] == ["rows", "rows"]


def test_rows_fill_pages_up_to_the_limit() -> None:
    (group,) = plan_pages([stored("embed", (50_000, 256), "embed")]).groups
    step = group.slots[0].layout.step
    assert step % 16 == 0
    assert group.page_bytes <= PAGE_MAX < (step + 16) * INT4.row_bytes(256)
    (wide,) = plan_pages([stored("wide", (3, 5_000_000))]).groups
    assert (wide.count, wide.slots[0].layout.step) == (3, 1)
    assert wide.page_bytes > PAGE_MAX
    (whole,) = plan_pages([stored("small", (5, 7))]).groups
    assert (whole.count, whole.slots[0].layout.step) == (1, 5)


def test_vectors_of_a_layer_share_pages() -> None:
    vectors = [stored(f"v{n}", (200_000,), "bias", n // 4, BF16) for n in range(8)]
    groups = plan_pages(vectors).groups
    assert [(g.name, [s.tensor.name for s in g.slots]) for g in groups] == [
        ("blk.0.vectors.0", ["v0", "v1"]),
        ("blk.0.vectors.1", ["v2", "v3"]),
        ("blk.1.vectors.0", ["v4", "v5"]),
        ("blk.1.vectors.1", ["v6", "v7"]),
    ]


def test_shards_are_whole_layers() -> None:
    plan = plan_pages(tiny_artifact.tensors())
    for limit in (1, 50_000, 150_000, 1 << 30):
        shards = plan.shards(limit)
        assert [group for shard in shards for group in shard] == list(plan.groups)
        for shard in shards:
            layers = {group.layer for group in shard}
            assert len(layers) == 1 or sum(group.total_bytes for group in shard) <= limit
        homes: dict[object, set[int]] = {}
        for n, shard in enumerate(shards):
            for group in shard:
                homes.setdefault(group.layer, set()).add(n)
        assert all(len(where) == 1 for layer, where in homes.items() if layer is not None)


def test_pages_hold_slabs_and_zeros() -> None:
    group: PageGroup = plan_pages(ffn(hidden=72, channels=300)).groups[0]
    pages = list(fill_pages(group, tiny_artifact.random_slab))
    assert [len(page) for page in pages] == [group.length(k) for k in range(3)]
    for k, page in enumerate(pages):
        rest = bytearray(page)
        for offset, slot, region in pieces(group, k):
            raw = tiny_artifact.random_slab(slot.tensor, region).tobytes()
            assert page[offset : offset + len(raw)] == raw
            rest[offset : offset + len(raw)] = bytes(len(raw))
        assert not any(rest)


@pytest.mark.parametrize("bad", [[], [stored("a", ())], [stored("a", (3, 0))], [stored("a", (1,)), stored("a", (1,))]])
def test_what_cannot_be_stored_is_refused(bad: list[StoredTensor]) -> None:
    with pytest.raises(InputError):
        plan_pages(bad)


def test_slabs_of_the_wrong_size_are_refused() -> None:
    group = plan_pages(ffn(hidden=72, channels=300)).groups[0]
    with pytest.raises(InputError, match=r"blk\.0\.ffn\.gate"):
        next(fill_pages(group, lambda tensor, region: np.zeros((region.rows, 1), np.uint8)))
