"""Attacks on the folder and the set of small files: rules A-01, A-02, A-04, A-08 to A-10."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from attacks.tamper import edit, grow, manifest, poke, put, seal


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
    poke(folder / "graph.json", 0, b"[")


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


def name_differs_by_case(folder: Path) -> None:
    (folder / "Tokenizer.json").write_bytes(b"tokens")
    edit(folder, lambda m: m["files"].insert(0, m["files"][1] | {"path": "Tokenizer.json"}))


def name_differs_by_accent(folder: Path) -> None:
    for name in ("caf\u00e9", "cafe\u0301"):
        (folder / name).write_bytes(b"")


def folder_differs_by_case(folder: Path) -> None:
    (folder / "Weights").mkdir()
    (folder / "Weights" / "x").write_bytes(b"")


def manifest_lists_another_case(folder: Path) -> None:
    edit(folder, lambda m: m["files"].insert(0, m["files"][1] | {"path": "MANIFEST.json"}))


ATTACKS: dict[str, tuple[Callable[[Path], Path | None], ...]] = {
    "A-01": (link_to_a_file, link_to_a_folder, pipe),
    "A-02": (
        *(backslash_name, control_character_name, name_not_utf8, manifest_leaves_the_folder, manifest_absolute_path),
        *(name_differs_by_case, name_differs_by_accent, folder_differs_by_case, manifest_lists_another_case),
    ),
    "A-04": (huge_manifest, huge_graph, huge_index, huge_tokenizer),
    "A-08": (
        *(extra_file, missing_weights, missing_graph, missing_tokenizer, truncated_weights, longer_tokenizer, file_listed_twice),
        *(files_not_in_order, graph_elsewhere, weights_elsewhere, manifest_lists_attestations, manifest_lists_itself),
    ),
    "A-09": (changed_graph, changed_tokenizer, changed_index, changed_plan_digest),
    "A-10": (graph_not_canonical, plan_not_an_object),
}
