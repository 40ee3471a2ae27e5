"""Text from ids as they are generated: whole characters only, with the spaces that the whole sequence has, and stop strings.

In: ids one at a time (`Detokenizer`), then pieces of text (`StopStrings`). Out: pieces whose concatenation is the text.
A decoder may treat the start of a sequence in its own way (SentencePiece drops a leading space) and a character may span tokens, so an
id has no text of its own. The piece is what an id adds: decode(last piece's ids + new ids) without decode(last piece's ids).
1. While the text ends in U+FFFD a character may be incomplete: at most 3 ids are held back, as it lacks at least one of 4 bytes.
2. Ids without text (special, outside the vocabulary) add nothing.
3. Bytes that never become a character come out as U+FFFD; nothing is lost or raised.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..schemas.errors import UsageError
from .tokenizer import Tokenizer

UNFINISHED = "\ufffd"
HELD = 3  # ids: an unfinished UTF-8 character has at most 3 bytes, an id at least 1


class Detokenizer:
    """Streams the text of ids. `before`: ids that the new ones follow (a prompt), whose text is not repeated."""

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        # The decoder needs to see that something came before, not what: 8 ids are enough to hold a visible character.
        self._tail = [token for token in before if tokenizer.shows(token)][-8:]
        self._told = len(self._tail)  # ids of the tail whose text is out

    def push(self, token: int) -> str:
        """The text that is certain once `token` follows; often "", never half a character."""
        if not self._tokenizer.shows(token):
            return ""
        self._tail.append(token)
        unfinished = self._tokenizer.decode(self._tail).endswith(UNFINISHED)
        return self._tell(len(self._tail) - (HELD if unfinished else 0))

    def finish(self) -> str:
        """What is still held back, at the end of the sequence."""
        return self._tell(len(self._tail))

    def _tell(self, end: int) -> str:
        """The text of the tail up to `end` that is not out yet; from then on those ids are the context of the next piece."""
        if end <= self._told:
            return ""
        old, new = self._tokenizer.decode(self._tail[: self._told]), self._tokenizer.decode(self._tail[:end])
        text = new[_common(old, new) :]
        if text:  # ids without text stay in front: alone they would look like the start of a sequence
            self._tail, self._told = self._tail[self._told :], end - self._told
        return text


def _common(a: str, b: str) -> int:
    """The length of the beginning that both texts share: all of `a`, unless new bytes changed what a decoder made of old ones."""
    if b.startswith(a):
        return len(a)
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


class StopStrings:
    """Cuts a stream of text at the first of several strings, wherever the pieces end. `stopped` says whether one came."""

    def __init__(self, stops: Iterable[str]) -> None:
        """Raises UsageError for an empty stop string."""
        self._stops = tuple(stops)
        if "" in self._stops:
            raise UsageError("a stop string is empty: it would end every text at once")
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """The text that can be shown: everything before a stop string, without an end that may become one."""
        if self.stopped:
            return ""
        text = self._held + text
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        self.stopped = bool(found)
        cut = min(found) if found else len(text) - max((_overhang(text, stop) for stop in self._stops), default=0)
        self._held = "" if found else text[cut:]
        return text[:cut]

    def finish(self) -> str:
        """What is still held back, at the end of the stream: a beginning that became no stop string."""
        held, self._held = self._held, ""
        return held


def _overhang(text: str, stop: str) -> int:
    """The length of the longest end of `text` that begins `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
