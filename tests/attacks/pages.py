"""Attacks on the page index, the weight files and the layouts: rules A-11 to A-14, A-16, A-19, A-20."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from attacks.tamper import edit, edit_index, grow, manifest, poke, put, rehash, seal, table, write_index

WEIGHTS = "weights/00001.safetensors"


def _index_bytes(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda folder: write_index(folder, change((folder / "pages.idx").read_bytes()))


bad_magic = _index_bytes(lambda data: b"THINCIDY" + data[8:])
other_version = _index_bytes(lambda data: data[:8] + b"\2" + data[9:])
cut_off = _index_bytes(lambda data: data[:-56])
trailing_bytes = _index_bytes(lambda data: data + bytes(56))
endless_files = _index_bytes(lambda data: data[:12] + b"\xff\xff\xff\xff" + data[16:])
endless_pages = _index_bytes(lambda data: data[:16] + b"\xff" * 8 + data[24:])
no_head = _index_bytes(lambda data: data[:10])


def other_number_of_pages(folder: Path) -> None:
    edit(folder, lambda m: m["page_index"].update(pages=m["page_index"]["pages"] + 1))


def other_file_size(folder: Path) -> None:
    grow(folder / WEIGHTS, 1 << 20)
    edit(folder, put("weights", 1, "bytes", to=1 << 20))


def _records(change: Callable[[np.ndarray, int], object]) -> Callable[[Path], None]:
    return lambda folder: edit_index(folder, change)


def _set(page: int, **fields: int) -> Callable[[Path], None]:
    def change(records: np.ndarray, files: int) -> None:
        for name, value in fields.items():
            records[files + page][name] = value

    return _records(change)


page_beyond_the_file = _set(0, offset=1 << 40)
page_longer_than_the_file = _set(0, length=1 << 62)
page_of_no_bytes = _set(0, length=0)
page_of_odd_bytes = _set(0, length=100)
page_in_no_file = _set(3, file=7)
page_wraps_around = _set(0, offset=(1 << 64) - 128)


def pages_overlap(folder: Path) -> None:
    edit_index(folder, lambda records, files: records[files + 4].__setitem__("offset", records[files + 3]["offset"]))


def pages_exchanged(folder: Path) -> None:
    def change(records: np.ndarray, files: int) -> None:
        first, second = records[files + 4].copy(), records[files + 5].copy()
        records[files + 4], records[files + 5] = second, first

    edit_index(folder, change)


def lengths_that_wrap_around(folder: Path) -> None:
    def change(records: np.ndarray, files: int) -> None:
        mine = records[files:][records[files:]["file"] == 1]
        for n, k in enumerate(np.flatnonzero(records["file"] == 1)[1:3]):
            records[k]["length"] = (1 << 62) + 128 * n
        assert len(mine) > 2

    edit_index(folder, change)


def bytes_after_the_last_page(folder: Path) -> None:
    size = (folder / WEIGHTS).stat().st_size + 128
    grow(folder / WEIGHTS, size)
    old = table(folder)
    files = tuple(f if f.path != WEIGHTS else type(f)(path=f.path, bytes=size) for f in old.files)
    (folder / "pages.idx").write_bytes(type(old)(files, old.records).to_bytes())
    edit(folder, put("weights", 1, "bytes", to=size))
    seal(folder)


def kinds_overlap(folder: Path) -> None:
    edit(folder, lambda m: m["page_kinds"][1].update(first_page=0))


def kind_left_out(folder: Path) -> None:
    edit(folder, lambda m: m["page_kinds"].pop())


def kind_without_pages(folder: Path) -> None:
    edit(folder, lambda m: m["page_kinds"].insert(0, {"name": "none", "file": 0, "first_page": 0, "count": 0}))


def kinds_of_one_name(folder: Path) -> None:
    edit(folder, lambda m: m["page_kinds"][1].update(name=m["page_kinds"][2]["name"]))


def kind_in_another_file(folder: Path) -> None:
    edit(folder, put("page_kinds", 1, "file", to=0))


def kind_beyond_the_index(folder: Path) -> None:
    edit(folder, lambda m: m["page_kinds"][-1].update(count=1 << 40))


def header_names_another_tensor(folder: Path) -> None:
    data = (folder / WEIGHTS).read_bytes()
    poke(folder / WEIGHTS, 0, data[:16384].replace(b"attn.q", b"attn.x"))
    rehash(folder)


def header_hides_bytes(folder: Path) -> None:
    poke(folder / WEIGHTS, 10000, b"secret")
    rehash(folder)


def header_length_beyond_the_file(folder: Path) -> None:
    poke(folder / WEIGHTS, 0, b"\xff" * 8)
    rehash(folder)


def _tensor(folder: Path, name: str) -> int:
    return [tensor["name"] for tensor in manifest(folder)["tensors"]].index(name)


def _layout(name: str, **fields: int) -> Callable[[Path], None]:
    return lambda folder: edit(folder, lambda m: m["tensors"][_tensor(folder, name)]["layout"].update(fields))


slab_beyond_its_page = _layout("blk.0.ffn.down", offset=1 << 30)
slab_over_another = _layout("blk.0.ffn.up", offset=0)
last_slab_over_another = _layout("blk.0.ffn.up", tail_offset=0)
slab_not_aligned = _layout("blk.0.ffn.down", offset=1)
pages_of_another_kind = _layout("blk.0.attn.q", first_page=0)
pages_beyond_the_index = _layout("blk.0.ffn.down", first_page=1 << 40)
step_of_zero = _layout("blk.0.ffn.gate", step=0)
another_step = _layout("blk.0.ffn.gate", step=64)
another_axis = _layout("blk.0.ffn.down", axis=0)
single_page_two_offsets = _layout("embed", offset=128)


def shape_without_dims(folder: Path) -> None:
    edit(folder, put("tensors", 0, "shape", to=[]))


def shape_with_a_zero(folder: Path) -> None:
    edit(folder, put("tensors", 0, "shape", to=[0, 72]))


def gigantic_shape(folder: Path) -> None:
    edit(folder, put("tensors", 0, "shape", to=[1 << 60, 1 << 60]))


def fewer_rows(folder: Path) -> None:
    edit(folder, put("tensors", 0, "shape", to=[1400, 72]))


def pages_without_a_tensor(folder: Path) -> None:
    edit(folder, lambda m: m["tensors"].pop(_tensor(folder, "blk.0.attn.q")))


def flipped_bit_in_a_page(folder: Path) -> None:
    at = int(table(folder).pages[0]["offset"]) + 77
    data = (folder / "weights/00000.safetensors").read_bytes()[at]
    poke(folder / "weights/00000.safetensors", at, bytes([data ^ 1]))


def last_byte_of_the_last_page(folder: Path) -> None:
    path = folder / "weights/00002.safetensors"
    poke(path, path.stat().st_size - 1, b"\1")


def digest_of_another_page(folder: Path) -> None:
    edit_index(folder, lambda records, files: records[files].__setitem__("sha256", records[files + 1]["sha256"]))


def bytes_hidden_in_padding(folder: Path) -> None:
    page = next(k for k in manifest(folder)["page_kinds"] if k["name"] == "blk.0.vectors.0")["first_page"]
    record = table(folder).pages[page]
    poke(folder / WEIGHTS, int(record["offset"] + record["length"]) - 1, b"\1")
    rehash(folder)


def bytes_hidden_between_slabs(folder: Path) -> None:
    page = next(k for k in manifest(folder)["page_kinds"] if k["name"] == "blk.0.vectors.0")["first_page"]
    poke(folder / WEIGHTS, int(table(folder).pages[page]["offset"]) + 150, b"\1")
    rehash(folder)


ATTACKS: dict[str, tuple[Callable[[Path], Path | None], ...]] = {
    "A-11": (
        *(bad_magic, other_version, cut_off, trailing_bytes, endless_files, endless_pages, no_head),
        *(other_number_of_pages, other_file_size),
    ),
    "A-12": (
        *(page_beyond_the_file, page_longer_than_the_file, page_of_no_bytes, page_of_odd_bytes, page_in_no_file, page_wraps_around),
        *(pages_overlap, pages_exchanged, lengths_that_wrap_around, bytes_after_the_last_page),
    ),
    "A-13": (kinds_overlap, kind_left_out, kind_without_pages, kinds_of_one_name, kind_in_another_file, kind_beyond_the_index),
    "A-14": (header_names_another_tensor, header_hides_bytes, header_length_beyond_the_file),
    "A-16": (
        *(slab_beyond_its_page, slab_over_another, last_slab_over_another, slab_not_aligned, pages_of_another_kind),
        *(pages_beyond_the_index, step_of_zero, another_step, another_axis, single_page_two_offsets, shape_without_dims),
        *(shape_with_a_zero, gigantic_shape, fewer_rows, pages_without_a_tensor),
    ),
    "A-19": (flipped_bit_in_a_page, last_byte_of_the_last_page, digest_of_another_page),
    "A-20": (bytes_hidden_in_padding, bytes_hidden_between_slabs),
}
