"""The writer: determinism, what it refuses, force, rejected, resume after a kill anywhere, and what other tools make of its files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

import tiny_artifact
from thinlm.artifacts import ArtifactWriter, PagePlan, open_artifact, plan_pages, verify_artifact
from thinlm.artifacts.journal import Journal
from thinlm.artifacts.layouts import fill_pages
from thinlm.schemas.errors import ArtifactError, InputError, UsageError
from thinlm.schemas.manifest import Claims
from tiny_artifact import SHARD_BYTES, build, claims, tensors, write


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def left_behind(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


@pytest.fixture
def plan() -> PagePlan:
    return plan_pages(tensors())


def new(target: Path, plan: PagePlan, **options: bool) -> ArtifactWriter:
    return ArtifactWriter(target, plan, shard_bytes=SHARD_BYTES, **options)  # pyright: ignore[reportArgumentType]


def test_same_input_same_bytes(tmp_path: Path) -> None:
    assert contents(build(tmp_path / "a.thin")) == contents(build(tmp_path / "b.thin"))
    assert left_behind(tmp_path) == []


def test_order_of_writing_does_not_matter(tmp_path: Path, plan: PagePlan) -> None:
    writer = new(tmp_path / "b.thin", plan)
    for path, data in reversed(tiny_artifact.files(plan).items()):
        writer.add_file(path, data)
    for group in reversed(plan.groups):
        writer.add_page_kind(group.name, fill_pages(group, tiny_artifact.random_slab))
    writer.finish(claims(plan))
    assert contents(writer.publish()) == contents(build(tmp_path / "a.thin"))


def test_safetensors_reads_the_pages(tmp_path: Path, plan: PagePlan) -> None:
    folder = build(tmp_path / "a.thin")
    found = {}
    for path in sorted((folder / "weights").iterdir()):
        head = 8 + int.from_bytes(path.read_bytes()[:8], "little")
        assert head % 16384 == 0
        with safe_open(path, "numpy") as file:
            found |= {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118
    want = {group.name: b"".join(fill_pages(group, tiny_artifact.random_slab)) for group in plan.groups}
    assert found == want
    assert len(list((folder / "weights").iterdir())) == 3


def test_an_existing_target_is_refused_and_force_replaces_it(tmp_path: Path) -> None:
    target = build(tmp_path / "a.thin")
    (target / "attest").mkdir()
    (target / "attest" / "old").write_bytes(b"")
    with pytest.raises(UsageError, match="--force"):
        build(target)
    assert (target / "attest" / "old").exists()
    build(target, force=True)
    assert not (target / "attest").exists()
    assert verify_artifact(target) == []
    assert left_behind(tmp_path) == []


def test_targets_have_one_spelling(tmp_path: Path, plan: PagePlan) -> None:
    with pytest.raises(UsageError, match=r"\.thin"):
        new(tmp_path / "a.bin", plan)


def test_rejected_goes_beside_the_target(tmp_path: Path, plan: PagePlan) -> None:
    for _ in range(2):
        writer = new(tmp_path / "a.thin", plan)
        write(writer)
        writer.finish(claims(plan))
        assert writer.publish(rejected=True) == tmp_path / "a.thin.rejected"
    assert verify_artifact(tmp_path / "a.thin.rejected") == []
    assert [path.name for path in tmp_path.iterdir()] == ["a.thin.rejected"]


def test_the_unpublished_folder_can_be_opened_and_attested(tmp_path: Path, plan: PagePlan) -> None:
    writer = new(tmp_path / "a.thin", plan)
    write(writer)
    manifest = writer.finish(claims(plan))
    artifact = open_artifact(writer.folder)
    artifact.attest.add("certificate.json", b"{}")
    path = writer.publish()
    assert open_artifact(path).attest.read("certificate.json") == b"{}"
    assert open_artifact(path).manifest == manifest


def test_what_is_missing_is_named(tmp_path: Path, plan: PagePlan) -> None:
    writer = new(tmp_path / "a.thin", plan)
    write(writer, kinds=len(plan.groups))
    with pytest.raises(InputError, match=r"graph\.json"):
        writer.finish(claims(plan))
    writer.discard()
    assert list(tmp_path.iterdir()) == []


def test_pages_and_files_that_were_not_planned_are_refused(tmp_path: Path, plan: PagePlan) -> None:
    writer, group = new(tmp_path / "a.thin", plan), plan.groups[0]
    pages = list(fill_pages(group, tiny_artifact.random_slab))
    for name, bad in (("nothing", pages), (group.name, [pages[0][:-1]])):
        with pytest.raises(InputError):
            writer.add_page_kind(name, bad)
    for bad in (pages[:-1], [*pages, b""]):
        with pytest.raises(InputError, match="planned"):
            writer.add_page_kind(group.name, bad)
    writer.add_page_kind(group.name, pages)
    with pytest.raises(InputError, match="written already"):
        writer.add_page_kind(group.name, pages)
    writer.add_file("graph.json", b"{}")
    for path in ("graph.json", "manifest.json", "pages.idx", "attest/x", "weights/x"):
        with pytest.raises(InputError):
            writer.add_file(path, b"")
    with pytest.raises(ArtifactError, match="A-02"):
        writer.add_file("../x", b"")


def test_what_changed_on_the_disk_is_never_published(tmp_path: Path, plan: PagePlan) -> None:
    writer = new(tmp_path / "a.thin", plan)
    write(writer)
    writer.finish(claims(plan))
    weights = writer.folder / "weights" / "00000.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\7")
    with pytest.raises(ArtifactError, match="page 0 of embed"):
        writer.publish()
    assert not (tmp_path / "a.thin").exists()


def test_claims_that_do_not_add_up_are_never_published(tmp_path: Path, plan: PagePlan) -> None:
    import msgspec

    good = claims(plan)
    bad: Claims = msgspec.structs.replace(good, ledger=msgspec.structs.replace(good.ledger, budgets={"budget": 1}))
    writer = new(tmp_path / "a.thin", plan)
    write(writer)
    writer.finish(bad)
    with pytest.raises(ArtifactError, match="A-17"):
        writer.publish()


@pytest.mark.parametrize("kinds", [0, 1, 4, 10])
def test_resume_gives_the_same_bytes(tmp_path: Path, plan: PagePlan, kinds: int) -> None:
    write(new(tmp_path / "b.thin", plan), kinds)
    writer = new(tmp_path / "b.thin", plan, resume=True)
    assert writer.done == {group.name for group in plan.groups[:kinds]}
    write(writer)
    writer.finish(claims(plan))
    assert contents(writer.publish()) == contents(build(tmp_path / "a.thin"))
    assert left_behind(tmp_path) == []


def test_resume_after_finish_and_after_a_torn_journal(tmp_path: Path, plan: PagePlan) -> None:
    writer = new(tmp_path / "b.thin", plan)
    write(writer)
    writer.finish(claims(plan))
    open_artifact(writer.folder).attest.add("old", b"")
    journal = tmp_path / ".b.thin.journal"
    journal.write_bytes(journal.read_bytes()[:-30])
    writer = new(tmp_path / "b.thin", plan, resume=True)
    assert len(writer.done) == len(plan.groups) - 1
    write(writer)
    writer.finish(claims(plan))
    assert contents(writer.publish()) == contents(build(tmp_path / "a.thin"))


def test_resume_trusts_pages_not_the_journal(tmp_path: Path, plan: PagePlan) -> None:
    """As after a power failure: the journal reached the disk, a page did not."""
    writer = new(tmp_path / "b.thin", plan)
    write(writer, 2)
    weights = writer.folder / "weights" / "00000.safetensors"
    weights.write_bytes(weights.read_bytes()[:20000] + bytes(weights.stat().st_size - 20000))
    assert new(tmp_path / "b.thin", plan, resume=True).done == {plan.groups[1].name}


def test_another_build_is_not_resumed(tmp_path: Path, plan: PagePlan) -> None:
    write(new(tmp_path / "b.thin", plan), 3)
    assert ArtifactWriter(tmp_path / "b.thin", plan, resume=True, key="other", shard_bytes=SHARD_BYTES).done == set()
    write(new(tmp_path / "b.thin", plan), 3)
    assert ArtifactWriter(tmp_path / "b.thin", plan, resume=True).done == set()
    assert Journal(tmp_path / "none", "x").finished() is None


KILLED = """
import sys, os, signal
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import tiny_artifact as t
plan = t.plan_pages(t.tensors())
writer = t.ArtifactWriter(Path(sys.argv[1]), plan, resume=True, shard_bytes=t.SHARD_BYTES)
group = [g for g in plan.groups if g.name not in writer.done][0]
pages = list(t.fill_pages(group, t.random_slab))
writer.add_page_kind(group.name, pages)
group = [g for g in plan.groups if g.name not in writer.done][0]
def half():
    yield next(iter(t.fill_pages(group, t.random_slab)))
    os.kill(os.getpid(), signal.SIGKILL)
writer.add_page_kind(group.name, half())
"""


def test_killed_writers_leave_nothing_that_looks_finished(tmp_path: Path, plan: PagePlan) -> None:
    target = tmp_path / "b.thin"
    for _ in range(3):
        command = [sys.executable, "-c", KILLED, str(target), os.path.dirname(tiny_artifact.__file__)]
        assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
        assert not target.exists()
    writer = new(target, plan, resume=True)
    assert len(writer.done) == 3
    write(writer)
    writer.finish(claims(plan))
    assert contents(writer.publish()) == contents(build(tmp_path / "a.thin"))
