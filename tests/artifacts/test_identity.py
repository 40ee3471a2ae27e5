"""Merkle tree hash against known vectors and the RFC's recursive definition; payload_root, artifact_id, build_key."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, strategies as st

from thinlm.artifacts.identity import artifact_id, build_key, merkle_root, payload_root
from thinlm.schemas.errors import InputError

# The leaves and roots that implementations of RFC 6962 share as test vectors (certificate-transparency-go, 0 to 8 leaves).
LEAVES = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


@pytest.mark.parametrize("count", range(9))
def test_known_vectors(count: int) -> None:
    assert merkle_root(bytes.fromhex(leaf) for leaf in LEAVES[:count]).hex() == ROOTS[count]


def recursive(entries: list[bytes]) -> bytes:
    """RFC 6962, section 2.1, word for word."""
    if not entries:
        return hashlib.sha256(b"").digest()
    if len(entries) == 1:
        return hashlib.sha256(b"\0" + entries[0]).digest()
    k = 1
    while k * 2 < len(entries):
        k *= 2
    return hashlib.sha256(b"\1" + recursive(entries[:k]) + recursive(entries[k:])).digest()


@given(st.lists(st.binary(max_size=3), max_size=40))
def test_equal_to_the_definition(entries: list[bytes]) -> None:
    assert merkle_root(entries) == recursive(entries)


def test_payload_root_is_sorted_and_bound_to_places() -> None:
    a, b = bytes(32), bytes([1] * 32)
    root = payload_root({"x": [a, b], "y": [a]})
    entries = [b"x\0" + bytes(8) + a, b"x\0" + b"\1" + bytes(7) + b, b"y\0" + bytes(8) + a]
    assert root == recursive(entries).hex()
    assert payload_root({"y": [a], "x": [a, b]}) == root
    others = [{"x": [b, a], "y": [a]}, {"x": [a], "y": [b, a]}, {"x": [a, b, a]}, {"x": [a, b], "z": [a]}]
    assert root not in {payload_root(other) for other in others}
    # UTF-8 order, not UTF-16: U+FF5E sorts before U+1F600
    emoji, tilde = "\U0001f600", "\uff5e"
    assert payload_root({emoji: [a], tilde: [b]}) == recursive([p.encode() + b"\0" + bytes(8) + d for p, d in ((tilde, b), (emoji, a))]).hex()


def test_build_key_is_of_values_not_of_spelling() -> None:
    key = build_key({"source": "ab", "recipe": {"b": 1, "a": [1.5, None]}})
    assert key == build_key({"recipe": {"a": (1.5, None), "b": 1}, "source": "ab"})
    assert key != build_key({"recipe": {"a": [1.5, None], "b": 2}, "source": "ab"})
    with pytest.raises(InputError):
        build_key({"x": float("nan")})


def test_artifact_id_is_of_the_bytes() -> None:
    assert artifact_id(b"{}") == hashlib.sha256(b"{}").hexdigest()
