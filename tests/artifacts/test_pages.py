"""Pages are compared with their digests when they are first touched, once, whoever touches them; CRCs of parts make that of the whole."""

from __future__ import annotations

import shutil
import time
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

import tiny_artifact
from thinlm.artifacts import check_pages, open_artifact, pages
from thinlm.artifacts.crc import combined, crc32
from thinlm.artifacts.verify import require_intact, verify_open
from thinlm.runtime_min import load
from thinlm.schemas.errors import ArtifactError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_artifact.build(tmp_path / "good.thin")


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How often each record of the index was hashed."""
    counts: Counter[int] = Counter()

    def count(store, manifest, table, number: int) -> None:
        counts[number] += 1
        time.sleep(0.001)  # long enough for others to come
        check_pages.a19_page_digest(store, manifest, table, number)

    monkeypatch.setattr(pages, "a19_page_digest", count)
    return counts


def damage(folder: Path, tensor: str, k: int) -> None:
    """Flip a bit in the page that holds slab `k` of a tensor."""
    artifact = open_artifact(folder)
    record = artifact.table.pages[artifact.tensors[tensor].layout.first_page + k]
    path = folder / artifact.table.files[record["file"]].path
    data = bytearray(path.read_bytes())
    data[int(record["offset"]) + 5] ^= 1
    path.write_bytes(data)


def test_a_page_is_hashed_once_by_many_threads(folder: Path, hashed: Counter[int]) -> None:
    artifact = open_artifact(folder)
    assert hashed == {}, "opening touches no weight"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(artifact.f32, [name for name in artifact.tensors for _ in range(8)]))
    assert set(hashed) == set(range(len(artifact.table.files), len(artifact.table.records)))
    assert set(hashed.values()) == {1}


def test_only_touched_pages_are_hashed(folder: Path, hashed: Counter[int]) -> None:
    artifact = open_artifact(folder)
    artifact.block("blk.0.ffn.gate", slice(130, 140))
    assert list(hashed) == [len(artifact.table.files) + artifact.tensors["blk.0.ffn.gate"].layout.first_page + 1]


def test_what_verify_found_intact_is_not_hashed_again(folder: Path, hashed: Counter[int]) -> None:
    artifact = open_artifact(folder)
    require_intact(artifact)
    before = hashed.copy()
    for name in artifact.tensors:
        artifact.f32(name)
    assert hashed == before
    assert verify_open(artifact) == []
    assert set(hashed.values()) == {2}, "verify trusts nothing that was hashed before"


def test_damaged_pages_are_never_handed_out(folder: Path) -> None:
    damage(folder, "blk.0.ffn.down", 2)
    artifact = open_artifact(folder)
    artifact.block("blk.0.ffn.down", cols=slice(0, 256))
    for read in (artifact.f32, lambda name: artifact.block(name, cols=slice(256, 257)), lambda name: list(artifact.slabs(name))):
        for _ in range(2):  # a page that failed does not pass the second time
            with pytest.raises(ArtifactError, match=r"A-19.*page 2 of blk\.0\.ffn.*weights/00001"):
                read("blk.0.ffn.down")


@pytest.mark.parametrize("device", ["cpu", "interp"])
def test_load_verifies_what_it_touches_or_all(device: str, folder: Path) -> None:
    assert np.isfinite(load(folder, device, verify="full").forward([1, 2, 3])).all()
    damage(folder, "blk.1.attn.o", 0)
    with pytest.raises(ArtifactError, match="A-19"):
        load(folder, device).forward([1, 2, 3])
    with pytest.raises(ArtifactError, match="A-19"):
        load(folder, device, verify="full")


def test_padding_between_slabs_is_part_of_a_full_verify(folder: Path, tmp_path: Path) -> None:
    from attacks import pages as attacks

    copy = tmp_path / "copy.thin"
    shutil.copytree(folder, copy)
    attacks.bytes_hidden_between_slabs(copy)
    assert np.isfinite(load(copy).forward([1])).all(), "the digest is right, no weight is touched"
    with pytest.raises(ArtifactError, match="A-20"):
        load(copy, verify="full")


@given(st.lists(st.binary(max_size=300), max_size=6), st.integers(0, 1 << 34))
def test_crcs_of_parts_make_that_of_the_whole(parts: list[bytes], zeros: int) -> None:
    whole = b"".join(parts)
    assert combined((zlib.crc32(part), len(part)) for part in parts) == zlib.crc32(whole) == crc32(np.frombuffer(whole, np.uint8))
    halves = combined([(zlib.crc32(whole), len(whole)), (0, 0)])
    assert halves == zlib.crc32(whole)
    assert combined([(1, 1), (combined([(2, zeros), (3, 4)]), zeros + 4)]) == combined([(1, 1), (2, zeros), (3, 4)])
