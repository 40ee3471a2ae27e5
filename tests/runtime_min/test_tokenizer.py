"""Tokenizer files against transformers, what ends a generation, streaming against whole decoding, stop strings, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from thinlm.runtime_min.detokenize import HELD, UNFINISHED, Detokenizer, StopStrings
from thinlm.runtime_min.tokenizer import FILES, Tokenizer
from thinlm.schemas.errors import InputError, UsageError
from tiny_tokenizers import SPECIAL, Kind, build

PICO = Path(__file__).parents[2] / "examples" / "pico"
KINDS: tuple[Kind, ...] = ("byte-level", "sentencepiece", "metaspace")
BACKENDS = {kind: build(kind) for kind in KINDS}
NAMES = {"bos_token": "<s>", "eos_token": {"__type": "AddedToken", "content": "</s>"}, "pad_token": "<pad>"}
TEXTS = ["Hello, world!", " leading and  two   spaces\n\tand a tab", "東京 🙂 über", "<|im_start|>user\nhi<|im_end|>", "", " "]


def files(kind: Kind = "byte-level", **others: object) -> dict[str, bytes]:
    """Tokenizer files of one kind; `others` are JSON files by name with _ for the dot."""
    named = {"tokenizer_config": NAMES} | others
    raw = {f"{name}.json": json.dumps(value).encode() for name, value in named.items() if value is not None}
    return {"tokenizer.json": BACKENDS[kind].to_str().encode(), **raw}


TOKENIZERS = {kind: Tokenizer.from_files(files(kind)) for kind in KINDS}


def reference(folder: Path, given: dict[str, bytes]):
    """What transformers makes of the same files."""
    from transformers import PreTrainedTokenizerFast

    for name, raw in given.items():
        (folder / name).write_bytes(raw)
    return PreTrainedTokenizerFast.from_pretrained(folder)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flags", [{}, {"add_bos_token": True, "add_eos_token": True}, {"add_bos_token": False}, {"add_eos_token": True}])
def test_ids_and_text_equal_transformers(kind: Kind, flags: dict[str, bool], tmp_path: Path) -> None:
    given = files(kind, tokenizer_config=NAMES | flags)
    ours, theirs = Tokenizer.from_files(given), reference(tmp_path, given)
    for text in TEXTS:
        for special in (True, False):
            ids = ours.encode(text, add_special_tokens=special)
            assert ids == theirs(text, add_special_tokens=special)["input_ids"]
            assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
            assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(ids)


def test_names_ids_and_size() -> None:
    tok = TOKENIZERS["byte-level"]
    assert dict(tok.special) == {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    assert (tok.bos_id, tok.eos_ids, tok.vocab_size) == (1, (2,), BACKENDS["byte-level"].get_vocab_size())
    assert [tok.shows(i) for i in (-1, 0, len(SPECIAL), tok.vocab_size - 1, tok.vocab_size)] == [False, False, True, True, False]
    older = Tokenizer.from_files(files(tokenizer_config={"eos_token": None}, special_tokens_map=NAMES))
    assert (older.bos_id, older.eos_ids) == (1, ())


def test_pico() -> None:
    tok = Tokenizer.from_files({name: (PICO / name).read_bytes() for name in FILES if (PICO / name).exists()})
    assert (tok.vocab_size, tok.bos_id, tok.eos_ids) == (2048, None, (0, 2))
    assert tok.decode(tok.encode("def f(x):\n    return x")) == "def f(x):\n    return x"


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        (None, None, (2,)),
        ({"eos_token_id": 4}, None, (4, 2)),
        ({"eos_token_id": 4}, {"eos_token_id": [2, 0]}, (2, 0, 4)),
        ({"text_config": {"eos_token_id": [4]}}, {"eos_token_id": None}, (4, 2)),
        ({"eos_token_id": None, "text_config": None}, {"eos_token_id": 2}, (2,)),
    ],
)
def test_every_file_can_name_an_end(config: object, generation: object, expected: tuple[int, ...]) -> None:
    assert Tokenizer.from_files(files(config=config, generation_config=generation)).eos_ids == expected


def test_tokens_declared_outside_tokenizer_json() -> None:
    size = TOKENIZERS["byte-level"].vocab_size
    extra = NAMES | {"added_tokens_decoder": {str(size): {"content": "<tool>", "special": True}, "2": {"content": "</s>"}}}
    tok = Tokenizer.from_files(files(tokenizer_config=extra))
    assert tok.encode("a<tool>", add_special_tokens=False)[-1] == size
    assert tok.vocab_size == size + 1
    assert not tok.shows(size)
    wrong = NAMES | {"added_tokens_decoder": {"9999": {"content": "<tool>"}}}
    with pytest.raises(InputError, match="'<tool>' is declared as id 9999"):
        Tokenizer.from_files(files(tokenizer_config=wrong))


def test_padding_and_truncation_of_the_file_are_off() -> None:
    backend = build("byte-level")
    backend.enable_truncation(4)
    backend.enable_padding(length=50)
    tok = Tokenizer.from_files(files() | {"tokenizer.json": backend.to_str().encode()})
    assert tok.encode(CAT) == TOKENIZERS["byte-level"].encode(CAT)


CAT = "the cat sat on the mat and the dog ran over the hill"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "tokenizer.json is missing; there is no tokenizer at all"),
        ({"tokenizer.model": b""}, "there is only the older tokenizer.model.*save_pretrained"),
        ({"tokenizer.json": b"{}"}, "tokenizer.json: .*`model`"),
        ({"tokenizer.json": b'{"model":{}}'}, "tokenizer.json: Cannot instantiate"),
        ({"tokenizer.json": b"\xff"}, "tokenizer.json: "),
        (files() | {"tokenizer_config.json": b"[1]"}, "tokenizer_config.json: Expected `object`"),
        (files() | {"tokenizer_config.json": b'{"a":"\xff"}'}, "tokenizer_config.json: "),
        (files() | {"config.json": b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"}, "config.json: "),
        (files(generation_config={"eos_token_id": [1, "</s>"]}), "generation_config.json: eos_token_id"),
        (files(config={"eos_token_id": True}), "config.json: eos_token_id True"),
        (files(tokenizer_config={"added_tokens_decoder": {"x": 1}}), "added_tokens_decoder must map"),
    ],
)
def test_refusals(given: dict[str, bytes], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Tokenizer.from_files(given)


def test_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (("tokenizer", "tokenizer_config.json"), ("tokenizer_check", "tokenizer.json")):
        with monkeypatch.context() as patch:
            patch.setattr(f"thinlm.runtime_min.{module}.MAX_BYTES", 10)
            with pytest.raises(InputError, match=f"{name}: .*more than 10 allowed"):
                Tokenizer.from_files(files())


def test_text_that_is_not_unicode() -> None:
    with pytest.raises(InputError, match="surrogates"):
        TOKENIZERS["byte-level"].encode("a\ud800")


def stream(tok: Tokenizer, ids: list[int], before: list[int] | None = None) -> list[str]:
    """The pieces of a streamed decode."""
    detokenizer = Detokenizer(tok, before or ())
    return [*(detokenizer.push(i) for i in ids), detokenizer.finish()]


PROSE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=UNFINISHED) | st.sampled_from(" \nab東🙂é"), max_size=25)


@pytest.mark.parametrize("kind", KINDS)
@given(text=PROSE)
def test_streamed_text_equals_decoded_text(kind: Kind, text: str) -> None:
    tok = TOKENIZERS[kind]
    ids = tok.encode(text)
    pieces = stream(tok, ids)
    assert "".join(pieces) == tok.decode(ids)
    assert all(UNFINISHED not in piece for piece in pieces)


@given(st.lists(st.integers(0, TOKENIZERS["byte-level"].vocab_size + 3), max_size=30))
@settings(max_examples=200)
def test_streamed_bytes_that_are_no_text(ids: list[int]) -> None:
    tok = TOKENIZERS["byte-level"]
    assert "".join(stream(tok, ids)) == tok.decode(ids)


@pytest.mark.parametrize("kind", ["sentencepiece", "metaspace"])
@given(data=st.data())
def test_bytes_that_are_no_text_lose_nothing(kind: Kind, data: st.DataObject) -> None:
    """A byte-fallback decoder spoils a whole run of bytes at its first wrong one, which a stream can't take back: text after it counts."""
    tok = TOKENIZERS[kind]
    ids = data.draw(st.lists(st.integers(6, 260), max_size=12))  # byte tokens
    tail = tok.encode(" mat", add_special_tokens=False)
    text = "".join(stream(tok, ids + tail))
    assert text.endswith("mat")
    assert len(text) >= len(tok.decode(ids + tail)) - len(ids)


@pytest.mark.parametrize("kind", KINDS)
def test_text_after_a_prompt_keeps_its_space(kind: Kind) -> None:
    tok = TOKENIZERS[kind]
    whole = tok.encode("the cat sat on the mat")
    for cut in range(1, len(whole)):
        prompt, new = whole[:cut], whole[cut:]
        assert tok.decode(prompt) + "".join(stream(tok, new, prompt)) == "the cat sat on the mat"


def test_characters_come_whole_and_soon() -> None:
    tok = TOKENIZERS["byte-level"]
    gothic = tok.encode("𐍈", add_special_tokens=False)
    assert len(gothic) == 4
    assert stream(tok, gothic) == ["", "", "", "𐍈", ""]
    assert stream(tok, gothic[:2]) == ["", "", tok.decode(gothic[:2])]
    wrong = [gothic[0]] * 12  # twelve first bytes: never a character, but never held for long either
    pieces = stream(tok, wrong)
    assert "".join(pieces[:-1]) == UNFINISHED * (12 - HELD)


class Pieces:
    """A decoder that drops the first space of a text, over ids one of which has no text."""

    TEXTS = ("", " a", " b")

    def shows(self, token: int) -> bool:
        return True

    def decode(self, ids: list[int]) -> str:
        return "".join(self.TEXTS[i] for i in ids).removeprefix(" ")


def test_ids_without_text_do_not_start_a_sentence() -> None:
    detokenizer = Detokenizer(Pieces())  # pyright: ignore[reportArgumentType]
    assert [detokenizer.push(i) for i in (1, 0, 0, 2, 1)] == ["a", "", "", " b", " a"]


def test_a_character_begun_by_the_prompt() -> None:
    tok = TOKENIZERS["byte-level"]
    *begun, last = tok.encode("𐍈", add_special_tokens=False)
    assert stream(tok, [last], begun) == ["𐍈", ""]


def test_special_and_unknown_ids_say_nothing() -> None:
    tok = TOKENIZERS["sentencepiece"]
    ids = tok.encode("the cat", add_special_tokens=False)
    noisy = [j for i in ids for j in (0, 1, i, 4, tok.vocab_size + 7)]
    assert "".join(stream(tok, noisy)) == "the cat"


@given(
    st.lists(st.text("abc", max_size=4), max_size=12),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
)
def test_stop_strings_cut_where_the_whole_text_would_be_cut(pieces: list[str], stops: list[str]) -> None:
    matcher = StopStrings(stops)
    shown = ""
    for piece in pieces:
        shown += matcher.push(piece)
        assert not any(stop in shown for stop in stops)
    shown += matcher.finish()
    whole = "".join(pieces)
    ends = sorted((whole.find(stop) + len(stop), whole.find(stop)) for stop in stops if stop in whole)
    assert matcher.stopped == bool(ends)
    if not ends:
        assert shown == whole
    else:  # when several stops end within one piece, the one that begins first wins
        assert whole.startswith(shown)
        assert any(whole.startswith(stop, len(shown)) for stop in stops)


def test_stop_strings_by_hand() -> None:
    matcher = StopStrings(["\nUser:", "###"])
    assert [matcher.push(text) for text in ("Hi\n", "Us", "er", " x#", "#", "# rest")] == ["Hi", "", "", "\nUser x", "", ""]
    assert matcher.stopped
    assert matcher.push("more") + matcher.finish() == ""
    with pytest.raises(UsageError, match="empty"):
        StopStrings([""])
