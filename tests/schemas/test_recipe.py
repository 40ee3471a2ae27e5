"""Recipes: amounts of bytes, refusals, resolution, and the bytes that enter the build key."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, strategies as st

from thinlm.schemas.errors import UsageError
from thinlm.schemas.recipe import Gate, Recipe, canonical, limits_of, parse_bytes, read_recipe, recipe_from_dict, resolve

AMOUNTS = {
    "0": 0,
    "123456": 123456,
    "123456B": 123456,
    "6.6GiB": 7086696038,  # floor(6.6 * 2^30)
    "1GB": 10**9,
    "1.5 KiB": 1536,
    "2MiB": 2**21,
    "0.1MB": 100000,
    "1TiB": 2**40,
}


@pytest.mark.parametrize(("text", "value"), AMOUNTS.items())
def test_amounts(text: str, value: int) -> None:
    assert parse_bytes(text) == value


@given(st.integers(0, 10**4), st.integers(0, 10**12))
def test_percentages_are_exact(hundredths: int, parameters: int) -> None:
    assert parse_bytes(f"{hundredths / 100:.2f}%", parameters) == hundredths * parameters * 2 // 10**4


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1e9", "1 gib", "1gb", "1G", "36 %%", "1.GiB", "inf", "0x10", "١GiB"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a number of bytes"):
        parse_bytes(text, 10)


def test_a_percentage_needs_parameters() -> None:
    with pytest.raises(UsageError, match="only the weights budget"):
        parse_bytes("36%")


REFUSED = {
    "unknown key": ({"budgets": 1}, "budgets"),
    "unknown gate key": ({"gate": {"cosine": 0.9}}, "cosine"),
    "wrong type": ({"context": "many"}, "context"),
    "other schema": ({"schema": "thinc.recipe/2"}, "schema"),
    "a number for a target": ({"target": 1}, "target"),
    "other dtype": ({"kv_dtype": "int8"}, "kv_dtype"),
    "zero": ({"block": 0}, "block: 0 must be at least 1"),
    "negative budget": ({"max_artifact": -1}, "max_artifact: -1"),
    "text that is no amount": ({"budget": "lots"}, "'lots' is not a number of bytes"),
    "percentage of a device": ({"budget": "36%"}, "only the weights budget"),
    "candidate twice": ({"candidates": ["a/1", "a/1"]}, "twice"),
    "gate beyond its range": ({"gate": {"top1": 1.5}}, "gate top1: 1.5"),
    "gate not a number": ({"gate": {"kl": "low"}}, "kl"),
}


@pytest.mark.parametrize(("data", "message"), REFUSED.values(), ids=list(REFUSED))
def test_refusals_name_the_place(data: dict, message: str) -> None:
    with pytest.raises(UsageError, match=r"^here: ") as caught:
        recipe_from_dict(data, "here")
    assert message in str(caught.value)


def test_defaults_are_the_design() -> None:
    assert recipe_from_dict({}) == Recipe()
    gate = Gate()
    assert (gate.logits_cosine_raw, gate.logits_cosine_centred, gate.worst_domain, gate.p01) == (0.995, 0.995, 0.99, 0.97)
    assert (gate.kl, gate.top1, gate.greedy) == (0.05, 0.88, 0.95)


def test_files_of_both_kinds(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text('{"weights_budget": "36%", "gate": {"top1": 0.9}}')
    (tmp_path / "r.yaml").write_text("weights_budget: 36%\ngate:\n  top1: 0.9\n")
    one, two = (read_recipe(tmp_path / name) for name in ("r.json", "r.yaml"))
    assert one == two == Recipe(weights_budget="36%", gate=Gate(top1=0.9))


NO_RECIPES = [("r.json", "{"), ("r.json", "[1]"), ("r.yaml", "a: [1"), ("r.yaml", "- 1"), ("r.toml", ""), ("no.json", None)]


@pytest.mark.parametrize(("name", "text"), NO_RECIPES)
def test_files_that_are_no_recipe(tmp_path: Path, name: str, text: str | None) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=name):
        read_recipe(tmp_path / name)


def test_resolve_fills_in_what_the_model_knows() -> None:
    recipe = Recipe(budget="1MiB", weights_budget="25%", context=100)
    full = resolve(recipe, logical_parameters=1000, context=512, candidates=("x/1",))
    assert full == Recipe(budget=2**20, weights_budget=500, context=100, candidates=("x/1",))
    assert limits_of(full) == {"budget": 2**20, "weights_budget": 500}
    assert resolve(Recipe(candidates=("y/1",)), logical_parameters=1, context=512, candidates=("x/1",)) == Recipe(context=512, candidates=("y/1",))
    with pytest.raises(UsageError, match="513 asked for, the model has 512"):
        resolve(Recipe(context=513), logical_parameters=1, context=512, candidates=())


def test_canonical_bytes_hold_every_field() -> None:
    raw = canonical(Recipe())
    assert msgspec.json.decode(raw).keys() == set(Recipe.__struct_fields__)
    assert msgspec.json.decode(raw, type=Recipe) == Recipe()
    assert canonical(Recipe(seed=1)) != raw
    assert list(msgspec.json.decode(raw)) == sorted(Recipe.__struct_fields__)
