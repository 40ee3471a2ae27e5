"""Attacks on the packed file: rules A-02 to A-04."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from attacks.tamper import grow, poke
from thinlm.artifacts.packed import Member, _directory, write_packed
from thinlm.artifacts.packing import pack
from thinlm.artifacts.store import FolderStore, open_folder


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


def _other_crc(name: str) -> Callable[[Path], Path]:
    """Both headers of a member agree on a CRC-32 that is not its data's."""

    def attack(folder: Path) -> Path:
        path = pack(folder)
        data, crc = path.read_bytes(), struct.pack("<I", zlib.crc32((folder / name).read_bytes()))
        assert data.count(crc) == 2
        path.write_bytes(data.replace(crc, b"\1\2\3\4"))
        return path

    return attack


zip_crc_of_a_small_file = _other_crc("tokenizer.json")
zip_crc_of_weights = _other_crc("weights/00001.safetensors")


def zip_names_differ_by_case(folder: Path) -> Path:
    return _renamed(folder, "chat_template.jinja", "TOKENIZER.json")


def zip_file_and_folder_of_one_name(folder: Path) -> Path:
    return _renamed(folder, "chat_template.jinja", "tokenizer.json/x")


ATTACKS: dict[str, tuple[Callable[[Path], Path | None], ...]] = {
    "A-02": (zip_climbs_out, zip_absolute_name, zip_names_differ_by_case, zip_file_and_folder_of_one_name),
    "A-03": (
        *(zip_compressed, zip_stored_by_another_tool, zip_truncated, zip_empty, zip_bytes_before, zip_bytes_after),
        *(zip_hidden_bytes_in_padding, zip_other_local_name, zip_wrong_local_size, zip_same_member_twice, zip_unsorted),
        *(zip_member_left_out, zip_members_overlap, zip_size_beyond_the_file, zip_endless_directory),
        *(zip_crc_of_a_small_file, zip_crc_of_weights),
    ),
    "A-04": (zip_too_many_members,),
}
