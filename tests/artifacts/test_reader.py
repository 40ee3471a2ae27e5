"""The reader: tensors, files and attestations of folders and packed files, damage found anywhere, errors that help."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tiny_artifact
from thinlm.artifacts import artifact_id, open_artifact, pack, plan_pages, unpack, verify_artifact
from thinlm.artifacts.identity import sha256_hex
from thinlm.artifacts.index import parse_index
from thinlm.schemas.errors import ArtifactError, InputError, UsageError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_artifact.build(tmp_path_factory.mktemp("reader") / "good.thin")


@pytest.fixture(scope="module")
def packed(folder: Path) -> Path:
    return pack(folder)


@pytest.mark.parametrize("form", ["folder", "packed"])
def test_tensors_are_what_was_written(form: str, request: pytest.FixtureRequest) -> None:
    artifact = open_artifact(request.getfixturevalue(form))
    for slot in plan_pages(tiny_artifact.tensors()).slots():
        tensor, slabs = slot.tensor, list(artifact.slabs(slot.tensor.name))
        want = np.full(tensor.shape, np.nan, np.float32).reshape(-1, tensor.shape[-1])
        for k, slab in enumerate(slabs):
            region = slot.region(k)
            assert (slab.row0, slab.row1, slab.col0, slab.col1) == (region.row0, region.row1, region.col0, region.col1)
            raw = tiny_artifact.random_slab(tensor, region)
            np.testing.assert_array_equal(slab.raw, raw)
            assert not slab.raw.flags.writeable
            want[region.row0 : region.row1, region.col0 : region.col1] = tensor.format.decode(raw, region.cols)
        got = artifact.f32(tensor.name)
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, want.reshape(tensor.shape))
        assert (artifact.shape(tensor.name), artifact.encoding(tensor.name)) == (tensor.shape, tensor.format.name)


def test_identity_and_small_files(folder: Path, packed: Path) -> None:
    a, b = open_artifact(folder), open_artifact(packed)
    assert (a.identity, a.artifact_id, a.kind) == (b.identity, b.artifact_id, "artifact")
    assert a.artifact_id == sha256_hex((folder / "manifest.json").read_bytes()) == artifact_id(a.manifest)
    files = tiny_artifact.files(plan_pages(tiny_artifact.tensors()))
    assert (a.graph_bytes, a.plan_bytes) == (files["graph.json"], files["plan.json"])
    assert a.file("tokenizer.json") == b.file("tokenizer.json") == b"tokens"
    assert a.bytes_on_disk == b.bytes_on_disk == sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert b.manifest.ledger.encoded_weight_bytes == plan_pages(tiny_artifact.tensors()).page_bytes


def test_identities_are_settled(folder: Path) -> None:
    """The bytes of version 1: a change here breaks every artifact out there."""
    artifact = open_artifact(folder)
    assert artifact.identity == "170b75d8288dc6b463961b862cfe32a6d236136e441917d3ae449100d0efed02"
    assert artifact.artifact_id == "33141b53a499696482b5c6f4ae43afc5a6b111ddaadad571a970a33a57af544a"


def test_absent_things_are_named(folder: Path, tmp_path: Path) -> None:
    artifact = open_artifact(folder)
    for action, words in (
        (lambda: artifact.f32("blk.9.attn.q"), "thinc inspect"),
        (lambda: artifact.file("vocab.txt"), "tokenizer.json"),
        (lambda: artifact.attest.read("x"), "no attestation"),
        (lambda: open_artifact(tmp_path / "nothing.thin"), "no such file"),
    ):
        with pytest.raises(InputError, match=words):
            action()
    with pytest.raises(ArtifactError, match="A-05"):
        open_artifact(tmp_path)


def test_attestations_live_outside_the_identity(folder: Path, packed: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.thin"
    shutil.copytree(folder, copy)
    artifact = open_artifact(copy)
    artifact.attest.add("cpu/certificate.json", b"{}")
    artifact.attest.add("cpu/certificate.json", b"[]")
    assert artifact.attest.names() == [f"cpu/certificate.{sha256_hex(b'[]')}.json"]
    assert artifact.attest.read("cpu/certificate.json") == b"[]"
    assert verify_artifact(copy) == []
    assert open_artifact(copy).artifact_id == artifact.artifact_id
    for name in ("../x", "/x", "a/../b", ""):
        with pytest.raises(ArtifactError, match="A-02"):
            artifact.attest.add(name, b"")
    with pytest.raises(InputError, match="unpack"):
        open_artifact(packed).attest.add("x", b"")


def test_pack_and_unpack_are_inverse(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.thin"
    shutil.copytree(folder, copy)
    open_artifact(copy).attest.add("a/b", b"signed")
    first = pack(copy)
    assert first.name == "copy.thin.zip"
    again = unpack(first, tmp_path / "again.thin")
    names = [path.relative_to(copy) for path in sorted(copy.rglob("*"))]
    assert names == [path.relative_to(again) for path in sorted(again.rglob("*"))]
    assert all((copy / n).read_bytes() == (again / n).read_bytes() for n in names if (copy / n).is_file())
    assert pack(again, tmp_path / "second.zip").read_bytes() == first.read_bytes()
    for action in (lambda: pack(copy), lambda: unpack(first), lambda: pack(first), lambda: unpack(copy)):
        with pytest.raises(UsageError):
            action()
    unpack(first, force=True)
    pack(copy, force=True)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_any_unzip_opens_it(packed: Path, folder: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(packed) as archive:
        assert archive.testzip() is None
        assert {(i.compress_type, i.date_time) for i in archive.infolist()} == {(zipfile.ZIP_STORED, (1980, 1, 1, 0, 0, 0))}
        archive.extractall(tmp_path)
    assert verify_artifact(tmp_path) == []
    data = packed.read_bytes()
    for path in folder.rglob("*"):
        if path.is_file():
            assert any(data[at : at + path.stat().st_size] == path.read_bytes() for at in range(0, len(data), 16384))


@pytest.fixture(scope="module")
def flat(packed: Path) -> bytearray:
    return bytearray(packed.read_bytes())


def intact(path: Path) -> bool:
    try:
        return verify_artifact(path) == []
    except ArtifactError:
        return False


@settings(max_examples=150, deadline=None)
@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_any_flipped_bit_is_found(where: float, bit: int, flat: bytearray, packed: Path) -> None:
    """CRC fields are for other tools: a flip there leaves directory and local header in disagreement, which A-03 sees."""
    at = int(where * len(flat))
    bad = packed.with_name("flipped.zip")
    changed = bytearray(flat)
    changed[at] ^= 1 << bit
    bad.write_bytes(changed)
    assert not intact(bad)


def test_index_round_trip(folder: Path) -> None:
    data = (folder / "pages.idx").read_bytes()
    table = parse_index(data)
    assert table.to_bytes() == data
    assert len(table.pages) == open_artifact(folder).manifest.page_index.pages
    assert sum(record["length"] for record in table.records) == sum(file.bytes for file in table.files)
