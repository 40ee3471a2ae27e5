"""Text in, text out: an artifact's model, tokenizer and chat template together, behind `thinc run` and `thinc chat`.

What no passing certificate covers is warned about or refused (trust.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..artifacts import Artifact, open_artifact
from ..artifacts.verify import require_intact
from ..runtime_min import ModelOptions, SamplingParams, Session, Verify, load_artifact, options_of
from ..runtime_min.detokenize import Detokenizer, StopStrings
from ..runtime_min.model import Model
from ..runtime_min.tokenizer import Tokenizer
from ..schemas.errors import UsageError
from ..schemas.kv import KVDtype
from .trust import warning_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """How a reply is generated and where it ends."""

    max_new_tokens: int = 128
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False


def decoding_of(*, max_new_tokens: int, stop: Sequence[str], ignore_eos: bool = False, **sampling: Any) -> Decoding:
    """A Decoding from the command line's flags; UsageError for values out of range."""
    StopStrings(stop)  # refuses an empty stop string
    return Decoding(max_new_tokens=max_new_tokens, sampling=SamplingParams(**sampling), stop=tuple(stop), ignore_eos=ignore_eos)


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """Where and how an artifact runs; None leaves a setting to the artifact's plan. `verify` as in `load`."""

    device: str = "cpu"
    uncertified: bool = False
    context: int | None = None
    kv_dtype: KVDtype | None = None
    verify: Verify = "touched"

    def applied(self, options: ModelOptions) -> ModelOptions:
        """`options` with this run's switches."""
        return replace(options, context=options.context if self.context is None else self.context, kv_dtype=self.kv_dtype or options.kv_dtype)


@dataclass(slots=True)
class Reply:
    """A reply as it comes: iterate for pieces of text; afterwards `ids`, `text`, `ended` ("eos", "stop" or "length") and `seconds` are complete."""

    tokens: Iterator[int]
    tokenizer: Tokenizer
    prompt: Sequence[int]
    decoding: Decoding
    eos: tuple[int, ...]
    ids: list[int] = field(default_factory=list)
    text: str = ""
    ended: str = "length"
    seconds: float = 0.0

    def __iter__(self) -> Iterator[str]:
        start = time.monotonic()
        words, stops = Detokenizer(self.tokenizer, self.prompt), StopStrings(self.decoding.stop)
        for token in self.tokens:
            self.ids.append(token)
            if token in self.eos and not self.decoding.ignore_eos:
                self.ended = "eos"
                break
            if piece := stops.push(words.push(token)):
                yield self._told(piece)
            if stops.stopped:
                self.ended = "stop"
                break
        else:
            if piece := stops.push(words.finish()):
                yield self._told(piece)
        if piece := stops.finish():
            yield self._told(piece)
        self.seconds = time.monotonic() - start

    def report(self) -> dict[str, Any]:
        """JSON-ready: what came out once iterated."""
        return {"text": self.text, "ids": self.ids, "ended": self.ended, "seconds": round(self.seconds, 3)}

    def _told(self, piece: str) -> str:
        self.text += piece
        return piece


@dataclass(frozen=True, slots=True)
class Runner:
    """An open artifact, ready to write."""

    artifact: Artifact
    model: Model
    tokenizer: Tokenizer
    files: dict[str, bytes]

    @classmethod
    def open(cls, path: Path, how: Execution, warn: Callable[[str], None]) -> Runner:
        """Load the artifact; `warn` receives what the user should know. GateError for a mode that no certificate covers."""
        artifact = open_artifact(path)
        if how.verify == "full":
            require_intact(artifact)
        options = how.applied(options_of(artifact))
        if options.context > (most := artifact.manifest.model.context):
            raise UsageError(f"context: {options.context} asked for, the model has {most} positions")
        if message := warning_for(artifact, how.device, options, how.uncertified):
            warn(message)
        files = {entry.path: artifact.file(entry.path) for entry in artifact.manifest.files}
        names = {Path(p).name: data for p, data in files.items()}
        return cls(artifact, load_artifact(artifact, how.device, options), Tokenizer.from_files(names), names)

    def reply(self, session: Session, ids: Sequence[int], decoding: Decoding) -> Reply:
        """Append `ids` to the session and generate."""
        tokens = session.stream(ids, decoding.max_new_tokens, decoding.sampling, decoding.ignore_eos)
        return Reply(tokens, self.tokenizer, ids, decoding, self.model.options.eos)
