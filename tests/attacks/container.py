"""Attacks on the folder, the packed file, and the set of small files: rules A-01 to A-04, A-08 to A-10."""

from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

from attacks.tamper import edit, grow, manifest, poke, put, seal
from thinlm.artifacts.packed import Member, _directory, write_packed
from thinlm.artifacts.packing import pack
from thinlm.artifacts.store import FolderStore, open_folder


def link_to_a_file(folder: Path) -> None:
    target = folder.parent / "elsewhere"
    (folder / "tokenizer.json").rename(target)
    (folder / "tokenizer.json").symlink_to(target)


def link_to_a_folder(folder: Path) -> None:
    (folder / "attest").symlink_to(folder.parent)


def pipe(folder: Path) -> None:
    os.mkfifo(folder / "attest.fifo")


def backslash_name(folder: Path) -> None:
    (folder / "a\\b").write_bytes(b"")


def control_character_name(folder: Path) -> None:
    (folder / "attest").mkdir()
    (folder / "attest" / "a\nb").write_bytes(b"")


def name_not_utf8(folder: Path) -> None:
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff")).write_bytes(b"")


def manifest_leaves_the_folder(folder: Path) -> None:
    (folder.parent / "outside").write_bytes(b"tokens")
    edit(folder, lambda m: m["files"][1].update(path="../outside"))


def manifest_absolute_path(folder: Path) -> None:
    edit(folder, lambda m: m["files"][1].update(path="/etc/hostname"))


def _zip(folder: Path, change: Callable[[bytearray], object]) -> Path:
    """The packed artifact with its bytes changed."""
    path = pack(folder)
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)
    return path


def _renamed(folder: Path, old: str, new: str) -> Path:
    """A packed file in good form that calls a member by another name."""

    class Renamed(FolderStore):
        def view(self, path: str):
            return open_folder(folder).view(old if path == new else path)

    sizes = {new if path == old else path: size for path, size in open_folder(folder).sizes.items()}
    target = folder.with_name("renamed.zip")
    write_packed(Renamed(folder, sizes), target)
    return target


def zip_climbs_out(folder: Path) -> Path:
    return _renamed(folder, "tokenizer.json", "../tokenizer.json")


def zip_absolute_name(folder: Path) -> Path:
    return _renamed(folder, "tokenizer.json", "/etc/tokenizer.json")


def zip_compressed(folder: Path) -> Path:
    target = folder.with_name("deflated.zip")
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in open_folder(folder).sizes:
            archive.write(folder / path, path)
    return target


def zip_stored_by_another_tool(folder: Path) -> Path:
    target = folder.with_name("stored.zip")
    with zipfile.ZipFile(target, "w") as archive:
        for path in open_folder(folder).sizes:
            archive.write(folder / path, path)
    return target


def zip_truncated(folder: Path) -> Path:
    return _zip(folder, lambda data: data.__delitem__(slice(-200, None)))


def zip_empty(folder: Path) -> Path:
    return _zip(folder, lambda data: data.clear())


def zip_bytes_before(folder: Path) -> Path:
    return _zip(folder, lambda data: data.__setitem__(slice(0, 0), b"#!/bin/sh\n"))


def zip_bytes_after(folder: Path) -> Path:
    return _zip(folder, lambda data: data.extend(b"more"))


def zip_hidden_bytes_in_padding(folder: Path) -> Path:
    return _zip(folder, lambda data: data.__setitem__(slice(4000, 4006), b"secret"))


def zip_other_local_name(folder: Path) -> Path:
    return _zip(folder, lambda data: data.__setitem__(slice(30, 34), b"evil"))


def zip_wrong_local_size(folder: Path) -> Path:
    at = 30 + len("chat_template.jinja") + 4
    return _zip(folder, lambda data: data.__setitem__(slice(at, at + 8), struct.pack("<Q", 1 << 40)))


def _forged(folder: Path, change: Callable[[list[Member]], list[Member]]) -> Path:
    """A packed file whose directory and local headers agree with each other on members that were tampered with."""
    members, data = [], bytearray()
    for path in sorted(open_folder(folder).sizes):
        content = (folder / path).read_bytes()
        member = Member(path, len(content), 0, len(data))
        data += member.local_header() + content
        members.append(member)
    forged = change(members)
    target = folder.with_name("forged.zip")
    target.write_bytes(bytes(data) + _directory(forged))
    return target


def zip_same_member_twice(folder: Path) -> Path:
    return _forged(folder, lambda m: [m[0], *m])


def zip_unsorted(folder: Path) -> Path:
    return _forged(folder, lambda m: [m[1], m[0], *m[2:]])


def zip_member_left_out(folder: Path) -> Path:
    return _forged(folder, lambda m: [m[0], *m[2:]])


def zip_members_overlap(folder: Path) -> Path:
    return _forged(folder, lambda m: [m[0], Member(m[1].name, m[1].size, 0, m[0].at), *m[2:]])


def zip_size_beyond_the_file(folder: Path) -> Path:
    return _forged(folder, lambda m: [*m[:-1], Member(m[-1].name, 1 << 62, 0, m[-1].at)])


def zip_endless_directory(folder: Path) -> Path:
    path = pack(folder)
    data = path.read_bytes()
    size, start = struct.unpack_from("<QQ", data, len(data) - 98 + 40)
    path.write_bytes(b"")
    grow(path, size + (1 << 40))  # sparse
    tail = bytearray(data[-98:])
    struct.pack_into("<QQ", tail, 40, size + (1 << 40) - 98, 0)
    poke(path, size + (1 << 40) - 98, bytes(tail))
    assert start
    return path


def zip_too_many_members(folder: Path) -> Path:
    return _zip(folder, lambda data: struct.pack_into("<QQ", data, len(data) - 98 + 24, 1 << 20, 1 << 20))


def huge_manifest(folder: Path) -> None:
    grow(folder / "manifest.json", 1 << 40)


def huge_graph(folder: Path) -> None:
    grow(folder / "graph.json", 1 << 40)
    edit(folder, put("graph", "bytes", to=1 << 40))


def huge_index(folder: Path) -> None:
    grow(folder / "pages.idx", 1 << 40)
    edit(folder, put("page_index", "bytes", to=1 << 40))


def huge_tokenizer(folder: Path) -> None:
    grow(folder / "tokenizer.json", 1 << 40)
    edit(folder, put("files", 1, "bytes", to=1 << 40))


def extra_file(folder: Path) -> None:
    (folder / "weights" / "00009.safetensors").write_bytes(b"")


def missing_weights(folder: Path) -> None:
    (folder / "weights" / "00001.safetensors").unlink()


def missing_graph(folder: Path) -> None:
    (folder / "graph.json").unlink()


def missing_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def truncated_weights(folder: Path) -> None:
    grow(folder / "weights" / "00001.safetensors", 20000)


def longer_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_bytes(b"tokens and more")


def file_listed_twice(folder: Path) -> None:
    edit(folder, lambda m: m["files"].append(m["files"][1]))


def files_not_in_order(folder: Path) -> None:
    edit(folder, lambda m: m["files"].reverse())


def graph_elsewhere(folder: Path) -> None:
    (folder / "graph.json").rename(folder / "other.json")
    edit(folder, put("graph", "path", to="other.json"))


def weights_elsewhere(folder: Path) -> None:
    (folder / "weights" / "00000.safetensors").rename(folder / "w.safetensors")
    edit(folder, put("weights", 0, "path", to="w.safetensors"))


def manifest_lists_attestations(folder: Path) -> None:
    (folder / "attest").mkdir()
    (folder / "attest" / "x").write_bytes(b"")
    edit(folder, lambda m: m["files"].insert(0, {"path": "attest/x", "bytes": 0, "sha256": "0" * 64}))


def manifest_lists_itself(folder: Path) -> None:
    edit(folder, lambda m: m["files"].insert(1, {"path": "manifest.json", "bytes": 0, "sha256": "0" * 64}))


def changed_graph(folder: Path) -> None:
    (folder / "graph.json").write_bytes(b"[]")


def changed_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_bytes(b"tokenz")


def changed_index(folder: Path) -> None:
    poke(folder / "pages.idx", 400, b"\1\2\3")


def changed_plan_digest(folder: Path) -> None:
    edit(folder, put("plan", "sha256", to="0" * 64))


def graph_not_canonical(folder: Path) -> None:
    (folder / "graph.json").write_bytes(b'{"b":1,"a":2}')
    seal(folder)


def plan_not_an_object(folder: Path) -> None:
    (folder / "plan.json").write_bytes(b"[1]")
    seal(folder)
    assert manifest(folder)["plan"]["bytes"] == 3


ATTACKS: dict[str, tuple[Callable[[Path], Path | None], ...]] = {
    "A-01": (link_to_a_file, link_to_a_folder, pipe),
    "A-02": (
        *(backslash_name, control_character_name, name_not_utf8, manifest_leaves_the_folder, manifest_absolute_path),
        *(zip_climbs_out, zip_absolute_name),
    ),
    "A-03": (
        *(zip_compressed, zip_stored_by_another_tool, zip_truncated, zip_empty, zip_bytes_before, zip_bytes_after),
        *(zip_hidden_bytes_in_padding, zip_other_local_name, zip_wrong_local_size, zip_same_member_twice, zip_unsorted),
        *(zip_member_left_out, zip_members_overlap, zip_size_beyond_the_file, zip_endless_directory),
    ),
    "A-04": (zip_too_many_members, huge_manifest, huge_graph, huge_index, huge_tokenizer),
    "A-08": (
        *(extra_file, missing_weights, missing_graph, missing_tokenizer, truncated_weights, longer_tokenizer, file_listed_twice),
        *(files_not_in_order, graph_elsewhere, weights_elsewhere, manifest_lists_attestations, manifest_lists_itself),
    ),
    "A-09": (changed_graph, changed_tokenizer, changed_index, changed_plan_digest),
    "A-10": (graph_not_canonical, plan_not_an_object),
}
