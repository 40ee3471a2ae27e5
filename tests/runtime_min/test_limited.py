"""A call with a limit of processor time: its result, its errors as they may be shown, and its end."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time

import pytest

from thinlm.runtime_min.limited import limited
from thinlm.schemas.errors import InputError, UsageError

PANIC = """
import json, sys
from thinlm.runtime_min.limited import limited
from tokenizers import Tokenizer
step = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "x"}
raw = json.dumps({"version": "1.0", "added_tokens": [], "normalizer": step, "model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0}}})
tokenizer = Tokenizer.from_str(raw)
try:
    limited(lambda: tokenizer.encode_batch(["a" * 40 + "!"]), 5.0, "here")
except Exception as e:
    print(type(e).__name__, e)
print("still there", file=sys.stderr)
"""


def raising(error: BaseException) -> None:
    raise error


def test_result_and_time() -> None:
    ids, seconds = limited(lambda: [1, 2], 1.0, "x")
    assert ids == [1, 2]
    assert 0 <= seconds < 0.5
    _, seconds = limited(lambda: hashlib.pbkdf2_hmac("sha256", b"a", b"b", 200_000), 30.0, "x")
    assert 0.01 < seconds < 10


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (ValueError("odd\nand more"), InputError, "here: odd"),
        (Exception("plain"), InputError, "here: plain"),
        (OverflowError("x" * 9999), InputError, "here: x{300}$"),
        (UsageError("ours"), UsageError, "^ours"),
        (MemoryError("m"), MemoryError, "^m$"),
        (KeyboardInterrupt("k"), KeyboardInterrupt, "^k$"),
    ],
)
def test_errors(error: BaseException, kind: type[BaseException], message: str) -> None:
    with pytest.raises(kind, match=message) as raised:
        limited(lambda: raising(error), 1.0, "here")
    assert raised.value.__cause__ is (None if raised.value is error else error)


def test_the_end_comes_by_processor_time() -> None:
    start = time.monotonic()
    with pytest.raises(InputError, match=r"slow: more than 0\.2 s of processor time"):
        limited(lambda: hashlib.pbkdf2_hmac("sha256", b"a", b"b", 5_000_000), 0.2, "slow")
    assert time.monotonic() - start < 20
    assert limited(lambda: time.sleep(0.6), 0.2, "idle")[1] < 0.2, "waiting costs nothing"


def test_a_panic_is_one_error_and_no_noise() -> None:
    done = subprocess.run([sys.executable, "-c", PANIC], capture_output=True, text=True, check=True, env={**os.environ, "RUST_BACKTRACE": "1"})
    assert done.stdout.startswith("InputError here: the tokenizers library gave up: Onig: Regex search error")
    assert done.stderr == "still there\n"
