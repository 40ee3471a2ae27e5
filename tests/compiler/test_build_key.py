"""The build key: one bit or one value of every ingredient changes it (what does not: test_build_key_constant.py)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import tiny_source
from thinlm.certify import device as certify_device
from thinlm.certify.data import load_documents
from thinlm.compiler import ingredients as module
from thinlm.compiler.claims import key_of
from thinlm.compiler.ingredients import LIBRARIES, ingredients
from thinlm.compiler.prepare import prepare
from thinlm.compiler.text_data import read_documents
from thinlm.passes.calibrate import InputMoments, Stats, TableMoments
from thinlm.passes.calibrate.stats import StatsHeader
from thinlm.schemas.recipe import Gate, Recipe
from thinlm.schemas.texts import documents_digest

RECIPE = Recipe(weights_budget="60%", context=100)
TEXT = "a" * 64


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_source.write(tmp_path_factory.mktemp("source") / "model")
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    return folder


@pytest.fixture
def model(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "model")


@pytest.fixture(scope="module")
def key(original: Path) -> str:
    return key_in(original)


def key_in(folder: Path, recipe: Recipe = RECIPE, text: str = TEXT, recorded: Stats | None = None) -> str:
    return key_of(prepare(folder, recipe), text, recorded)


def edit_json(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


FILES: dict[str, Callable[[Path], Any]] = {
    "first weight": lambda f: tiny_source.flip(f / "model.safetensors", 8 + int.from_bytes((f / "model.safetensors").read_bytes()[:8], "little")),
    "last weight": lambda f: tiny_source.flip(f / "model.safetensors"),
    "config value": lambda f: edit_json(f / "config.json", rms_norm_eps=2e-6),
    "tokenizer": lambda f: (f / "tokenizer.json").write_text((f / "tokenizer.json").read_text() + "\n"),
    "template in tokenizer_config.json": lambda f: edit_json(f / "tokenizer_config.json", chat_template="{{ bos_token }}"),
    "end token in tokenizer_config.json": lambda f: edit_json(f / "tokenizer_config.json", eos_token="<|im_end|>"),
    "chat_template.jinja": lambda f: tiny_source.flip(f / "chat_template.jinja", 5),
    "no chat_template.jinja": lambda f: (f / "chat_template.jinja").unlink(),
    "generation config": lambda f: edit_json(f / "generation_config.json", eos_token_id=3),
    "special tokens": lambda f: edit_json(f / "special_tokens_map.json", bos_token="<pad>"),
}
GATE = {name: (3.0 if name == "kl" else 0.123) for name in Gate.__struct_fields__}
SETTINGS: dict[str, Any] = {
    "budget": "1GiB",
    "weights_budget": "61%",
    "max_artifact": "1GB",
    "context": 99,
    "batch": 2,
    "kv_dtype": "f16",
    "block": 32,
    "prefill_chunk": 32,
    "candidates": ("int8-sym-g64/1", "f16/1"),
    "calibration_tokens": 8191,
    "certificate_tokens": 16383,
    "seed": 1,
}
ONE_VALUE = ("schema", "target", "relayout")  # settings that can't have another value yet


@pytest.mark.parametrize("what", FILES)
def test_every_file_counts(what: str, model: Path, key: str) -> None:
    FILES[what](model)
    assert key_in(model) != key


def test_every_setting_counts(original: Path, key: str) -> None:
    recipes = [msgspec.structs.replace(RECIPE, **{name: value}) for name, value in SETTINGS.items()]
    recipes += [msgspec.structs.replace(RECIPE, gate=msgspec.structs.replace(RECIPE.gate, **{name: value})) for name, value in GATE.items()]
    keys = [key_in(original, recipe) for recipe in recipes]
    assert len({key, *keys}) == 1 + len(recipes)
    assert {*SETTINGS, *ONE_VALUE, "gate"} == set(Recipe.__struct_fields__), "each setting has its row"


def test_settings_without_another_value_are_in_it(original: Path) -> None:
    recipe = ingredients(prepare(original, RECIPE), TEXT, None)["recipe"]
    assert recipe["schema"] == "thinc.recipe/1" and recipe["target"] == "cpu" and recipe["relayout"] == "identity"


def test_a_calibration_byte_counts(original: Path, tmp_path: Path, key: str) -> None:
    path = tmp_path / "own.txt"
    path.write_text("Some text of one's own, long enough.\n")
    before = key_in(original, text=documents_digest(read_documents(path)))
    tiny_source.flip(path, 3)
    shipped = documents_digest(load_documents("calibration"))
    keys = {key, before, key_in(original, text=documents_digest(read_documents(path))), key_in(original, text=shipped), key_in(original, text="")}
    assert len(keys) == 5


def recorded() -> Stats:
    header = StatsHeader(source="s", text="t", tokens=8, gradient_tokens=4, seed=0, inputs={"w": "w"})
    moments = {"w": InputMoments(np.arange(3.0), np.eye(3, dtype=np.float32))}
    return Stats(header, moments, {"w": np.ones(2)}, {"e": TableMoments(np.arange(4), np.ones(3))})


def _stats_of(**header: Any) -> Callable[[Stats], Stats]:
    return lambda s: replace(s, header=msgspec.structs.replace(s.header, **header))


def _bit(array: np.ndarray) -> np.ndarray:
    """One bit of the last element changed."""
    out = np.frombuffer(bytearray(array.tobytes()), np.uint8).copy()
    out[-array.itemsize] ^= 1
    return out.view(array.dtype).reshape(array.shape)


STATS: dict[str, Callable[[Stats], Stats]] = {
    "mean": lambda s: replace(s, moments={"w": InputMoments(_bit(s.moments["w"].mean), s.moments["w"].second)}),
    "second": lambda s: replace(s, moments={"w": InputMoments(s.moments["w"].mean, _bit(s.moments["w"].second))}),
    "output": lambda s: replace(s, outputs={"w": _bit(s.outputs["w"])}),
    "counts": lambda s: replace(s, tables={"e": TableMoments(_bit(s.tables["e"].counts), s.tables["e"].gradient)}),
    "gradient": lambda s: replace(s, tables={"e": TableMoments(s.tables["e"].counts, _bit(s.tables["e"].gradient))}),
    "header.source": _stats_of(source="x"),
    "header.text": _stats_of(text="x"),
    "header.tokens": _stats_of(tokens=9),
    "header.gradient_tokens": _stats_of(gradient_tokens=5),
    "header.seed": _stats_of(seed=1),
    "header.inputs": _stats_of(inputs={"w": "v"}),
}


def test_recorded_statistics_count(original: Path, key: str) -> None:
    keys = [key_in(original, recorded=change(recorded())) for change in STATS.values()]
    assert len({key, key_in(original, recorded=recorded()), *keys}) == 2 + len(STATS)
    named = {name.removeprefix("header.") for name in STATS if name.startswith("header.")}
    assert named == set(StatsHeader.__struct_fields__) - {"schema", "arrays"}


def test_text_counts_only_where_it_is_read(original: Path) -> None:
    assert key_in(original, text="b" * 64, recorded=recorded()) == key_in(original, recorded=recorded())


@pytest.mark.parametrize("name", LIBRARIES)
def test_library_versions_count(name: str, original: Path, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = module.library_version
    monkeypatch.setattr(module, "library_version", lambda n: real(n) + ".post1" if n == name else real(n))
    assert key_in(original) != key


def test_the_processor_class_counts(original: Path, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [key]
    for where, name, value in (
        (module.platform, "machine", lambda: "riscv64"),
        (module, "processor_field", lambda field: "another vendor"),
        (module.np, "show_config", lambda mode: {"SIMD Extensions": {"baseline": ["X"], "found": ["Y"]}}),
    ):
        module.device_class.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(where, name, value)
            found.append(key_in(original))
        module.device_class.cache_clear()
    assert len(set(found)) == 4 and key_in(original) == key


def test_the_code_counts(original: Path, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {key}
    for field in module.code_version():
        with monkeypatch.context() as patch:
            changed = module.code_version() | {field: "other"}
            patch.setattr(module, "code_version", lambda changed=changed: changed)
            found.add(key_in(original))
    assert len(found) == 3


def test_every_ingredient_has_its_test(original: Path) -> None:
    """A new one is to get its rows above."""
    table = ingredients(prepare(original, RECIPE), TEXT, None)
    assert set(table) == {"source", "tokenizer", "recipe", "calibration", "stats", "code", "libraries", "device"}
    assert set(table["tokenizer"]) == {
        *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
        *("special_tokens_map.json", "generation_config.json"),
    }


def test_fine_tunes_of_one_shape_never_share_a_key(tmp_path: Path) -> None:
    folders = [tiny_source.write(tmp_path / f"model{seed}", seed) for seed in (0, 1)]
    sizes = [{path.name: path.stat().st_size for path in folder.iterdir()} for folder in folders]
    assert sizes[0] == sizes[1]
    assert key_in(folders[0]) != key_in(folders[1])


def test_versions_are_those_of_this_environment() -> None:
    versions = module.library_versions()
    assert versions["numpy"] == np.__version__ and set(versions) == set(LIBRARIES) and certify_device.library_version("no-such-thing") == ""
