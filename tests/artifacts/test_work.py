"""Kept steps: what comes back is what was put, and nothing else ever does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from thinlm.artifacts.work import Work

DTYPES = ("<f8", "<f4", "<f2", "<i8", "<i4", "u1", "<u2")
ARRAYS = st.dictionaries(
    st.text("abc/.0123é", min_size=1, max_size=8),
    st.sampled_from(DTYPES).flatmap(lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))),
    max_size=5,
)


@given(arrays=ARRAYS)
@settings(max_examples=40)
def test_what_was_put_comes_back(tmp_path_factory: pytest.TempPathFactory, arrays: dict[str, np.ndarray]) -> None:
    folder = tmp_path_factory.mktemp("work")
    for back in (Work(folder).stage("s", 1).put("x", arrays), Work(folder).stage("s", 1).get("x")):
        assert back is not None
        assert back.keys() == arrays.keys()
        for name, array in arrays.items():
            assert back[name].dtype == array.dtype
            assert back[name].shape == array.shape
            assert back[name].tobytes() == array.tobytes()
            assert not back[name].flags.writeable


def test_another_key_name_or_stage_counts_as_none(tmp_path: Path) -> None:
    work = Work(tmp_path)
    work.stage("s", "source 1").put("x", {"a": np.arange(3.0)})
    assert work.stage("s", "source 2").get("x") is None
    assert work.stage("t", "source 1").get("x") is None
    assert work.stage("s", "source 1").get("y") is None
    (tmp_path / "s.x").rename(tmp_path / "s.y")
    assert work.stage("s", "source 1").get("y") is None, "a step under another name"


def test_every_flipped_bit_and_every_cut_counts_as_none(tmp_path: Path) -> None:
    steps = Work(tmp_path).stage("s", "key")
    steps.put("x", {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.arange(3, dtype=np.int64)})
    path = tmp_path / "s.x"
    good = path.read_bytes()
    rng = np.random.default_rng(0)
    places = {*rng.integers(0, 8 * len(good), 300).tolist(), *range(8 * (len(good) - 48), 8 * len(good))}
    spaces = 0
    for at in sorted(places):
        bad = bytearray(good)
        bad[at // 8] ^= 1 << at % 8
        path.write_bytes(bad)
        found = steps.get("x")
        if found is not None:  # a blank that pads the header may become another blank: the arrays are the same
            spaces += 1
            assert found["a"].tobytes() == np.arange(6, dtype=np.float32).tobytes()
    assert spaces < len(places) // 10
    for size in (0, 7, 8, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:size])
        assert steps.get("x") is None
    path.write_bytes(good + b"\0")
    assert steps.get("x") is None
    path.write_bytes(good)
    assert steps.get("x") is not None


def test_json_drop_and_discard(tmp_path: Path) -> None:
    work = Work(tmp_path / "w")
    steps = work.stage("s", 1)
    assert steps.get_json("x") is None
    steps.put_json("x", {"b": [1, 2.5, None], "a": "ä"})
    assert steps.get_json("x") == {"a": "ä", "b": [1, 2.5, None]}
    steps.drop("x")
    steps.drop("x")
    assert steps.get_json("x") is None
    work.discard()
    assert not (tmp_path / "w").exists()


def test_without_a_folder_nothing_is_kept() -> None:
    steps = Work().stage("s", 1)
    arrays = {"a": np.zeros(2)}
    assert steps.put("x", arrays) is arrays
    assert steps.get("x") is None
    steps.drop("x")
    Work().discard()


def test_a_full_disk_leaves_no_half_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    steps = Work(tmp_path).stage("s", 1)
    with monkeypatch.context() as m:
        m.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space"):
            steps.put("x", {"a": np.zeros(2)})
    assert list(tmp_path.iterdir()) == []
