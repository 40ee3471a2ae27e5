"""Attacks by links, devices and names: what a model folder may not hold under the names that are read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from attacks_hf.folder import WEIGHTS, Attack, instead

LEAVES, NONE = "out of the folder", "can't be read"


def _to(target: str) -> Callable[[Path], object]:
    return lambda path: path.symlink_to(target)


def _outside(name: str) -> Attack:
    """The very file, but beside the folder, behind a link."""

    def attack(folder: Path) -> None:
        shutil.move(folder / name, folder.parent / "elsewhere")
        (folder / name).symlink_to("../elsewhere")

    return attack


def _through(folder: Path) -> None:
    """A link to a link inside, which leads outside."""
    (folder / "inner").symlink_to("/etc/passwd")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").symlink_to("inner")


def _folder_out(folder: Path) -> None:
    """A folder inside is a link to the folder above."""
    (folder / "up").symlink_to("..")
    shutil.move(folder / "tokenizer.json", folder.parent / "t.json")
    (folder / "tokenizer.json").symlink_to("up/t.json")


def _false_cache(folder: Path) -> Path:
    """A snapshot whose blobs are a link to anywhere."""
    snapshot = folder.parent / "cache" / "snapshots" / "1"
    snapshot.parent.mkdir(parents=True)
    shutil.move(folder, snapshot)
    (snapshot.parents[1] / "blobs").symlink_to("/etc")
    (snapshot / "tokenizer.json").unlink()
    (snapshot / "tokenizer.json").symlink_to("../../blobs/passwd")
    return snapshot


def _out_of_cache(folder: Path) -> Path:
    """A real cache's snapshot with a link into another model's blobs."""
    snapshot, other = folder.parent / "a" / "snapshots" / "1", folder.parent / "b" / "blobs"
    snapshot.parent.mkdir(parents=True)
    other.mkdir(parents=True)
    (folder.parent / "a" / "blobs").mkdir()
    shutil.move(folder, snapshot)
    shutil.move(snapshot / "tokenizer.json", other / "x")
    (snapshot / "tokenizer.json").symlink_to("../../../b/blobs/x")
    return snapshot


def _twin(name: str, other: str) -> Attack:
    return lambda folder: shutil.copy(folder / name, folder / other)


def _crowd(folder: Path) -> None:
    for n in range(100_001):
        os.close(os.open(folder / f"{n}", os.O_CREAT))


FILES = (
    *("config.json", WEIGHTS, "tokenizer.json", "tokenizer_config.json", "generation_config.json"),
    *("chat_template.jinja", "special_tokens_map.json"),
)
ATTACKS: dict[str, tuple[Attack, str]] = {
    **{f"{name} is a link to /etc/passwd": (instead(name, _to("/etc/passwd")), LEAVES) for name in FILES},
    **{f"{name} is a link to /dev/zero": (instead(name, _to("/dev/zero")), LEAVES) for name in FILES},
    **{f"{name} lies outside": (_outside(name), LEAVES) for name in FILES[:5]},
    "a link to nothing": (instead("tokenizer.json", _to("nowhere")), NONE),
    "a link to itself": (instead("config.json", _to("config.json")), NONE),
    "a link to the folder": (instead("tokenizer.json", _to(".")), "not a regular file"),
    "a link to a link that leaves": (_through, LEAVES),
    "a link through a linked folder": (_folder_out, LEAVES),
    "blobs that are a link": (_false_cache, LEAVES),
    "another model's blobs": (_out_of_cache, LEAVES),
    "weights are a pipe": (instead(WEIGHTS, os.mkfifo), "not a regular file"),
    "the tokenizer is a pipe": (instead("tokenizer.json", os.mkfifo), "not a regular file"),
    "the template is a folder": (instead("chat_template.jinja", Path.mkdir), "not a regular file"),
    "two configs by case": (_twin("config.json", "Config.json"), "does not count"),
    "two tokenizers by case": (_twin("tokenizer.json", "TOKENIZER.json"), "does not count"),
    "two weight files by case": (_twin(WEIGHTS, "model.SAFETENSORS"), "does not count"),
    "two configs by a ligature": (_twin("config.json", "con\ufb01g.json"), "does not count"),
    "100,001 files": (_crowd, "more than 100000 files"),
}
