"""A message is one short line, whatever it quotes."""

from __future__ import annotations

import pytest

from thinlm.schemas.errors import MAX_MESSAGE, ArtifactError, InputError, ThincError, VerifyError


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("größe 東京 🙂 'x'", "größe 東京 🙂 'x'"),
        ("a\nb\r\nc\u2028d", "a b c d"),
        ("\x1b[31mred\x07\0", "\\x1b[31mred\\x07\\x00"),
        ("\u202egnp.exe \ufeff \udcff", "\\u202egnp.exe \\ufeff \\udcff"),
        ("", ""),
    ],
)
def test_what_a_message_shows(text: str, shown: str) -> None:
    for error in (ThincError(text), InputError(text), VerifyError((text,))):
        assert str(error) == shown
    assert str(ArtifactError("A-01", text)) == f"A-01: {shown}"


def test_a_long_message_keeps_both_ends() -> None:
    text = str(InputError("model.safetensors: " + "x" * 10_000_000 + ": download it again"))
    assert len(text) < MAX_MESSAGE + 10
    assert text.startswith("model.safetensors: xx")
    assert text.endswith("xx: download it again")
    assert str(InputError("x" * MAX_MESSAGE)) == "x" * MAX_MESSAGE
