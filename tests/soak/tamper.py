"""Change an artifact in every place, one change at a time: `verify` must exit 6 and name the place, and damaged weights must never run.

    python -m tests.soak.tamper ARTIFACT --flips 200 --cuts 50 --seed 0

ARTIFACT (a folder with at least one attestation) is copied and packed; both copies are changed in place and restored. For each kind of place
(each small file, headers and pages of weight files, attestations; in the packed file the members' data, local headers and padding, the directory and
the end records): single flipped bits, and bytes cut off, added, taken out or put in between. Places of a packed file are found with zipfile, not
with our reader. Every change of weights is also loaded and run, which must end with an ArtifactError. The first change that is not found ends it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import random
import shutil
import struct
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from thinlm.artifacts import pack
from thinlm.compiler.cli import run
from thinlm.runtime_min import load
from thinlm.schemas.errors import ArtifactError

END_RECORDS = 98  # ZIP64 end record, its locator, end record
SMALL = ("manifest.json", "graph.json", "plan.json", "pages.idx", "artifact_id")
Change = Callable[[bytes, "Span", random.Random], bytes]


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes [start, stop) of a file; a change there must be told with the word `name`. `runs`: they are weights."""

    file: Path
    start: int
    stop: int
    name: str
    runs: bool = False

    @property
    def size(self) -> int:
        return self.stop - self.start


def folder_kinds(folder: Path) -> dict[str, list[Span]]:
    """Kind -> places of an artifact's folder."""
    kinds: dict[str, list[Span]] = {}
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        name, size = file.relative_to(folder).as_posix(), file.stat().st_size
        if name.startswith("weights/"):
            head = 8 + int.from_bytes(file.read_bytes()[:8], "little")
            kinds.setdefault("weights header", []).append(Span(file, 0, head, name, True))
            kinds.setdefault("weights pages", []).append(Span(file, head, size, name, True))
        else:
            kind = name if name in SMALL else "attestation" if name.startswith("attest/") else "tokenizer files"
            kinds.setdefault(kind, []).append(Span(file, 0, size, name))
    return kinds


def packed_kinds(path: Path) -> dict[str, list[Span]]:
    """Kind -> places of a packed artifact."""
    kinds: dict[str, list[Span]] = {}
    with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
        for info in archive.infolist():
            file.seek(info.header_offset + 26)
            name, extra = struct.unpack("<HH", file.read(4))
            padding, data = info.header_offset + 30 + name + 24, info.header_offset + 30 + name + extra  # 24: the ZIP64 field, the padding's head
            weights = info.filename.startswith("weights/")
            for kind, start, stop, runs in (
                ("local headers", info.header_offset, padding, False),
                ("padding", padding, data, False),
                ("weights data" if weights else "small members' data", data, data + info.file_size, weights),
            ):
                kinds.setdefault(f"packed: {kind}", []).append(Span(path, start, stop, info.filename, runs))
        end = path.stat().st_size - END_RECORDS
        kinds["packed: directory"] = [Span(path, archive.start_dir, end, path.name)]
        kinds["packed: end records"] = [Span(path, end, end + END_RECORDS, path.name)]
    return kinds


def flip(data: bytes, span: Span, rng: random.Random) -> bytes:
    """One bit."""
    at = rng.randrange(span.start, span.stop)
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def cut_off(data: bytes, span: Span, rng: random.Random) -> bytes:
    """The file ends somewhere in the span."""
    return data[: rng.randrange(span.start, span.stop)]


def add(data: bytes, span: Span, rng: random.Random) -> bytes:
    """More bytes at the end of the file, zeros or noise."""
    return data + (rng.randbytes if rng.random() < 0.5 else bytes)(rng.choice((1, 2, 56, 128, 16384)))


def take_out(data: bytes, span: Span, rng: random.Random) -> bytes:
    """Some bytes of the span are missing."""
    at = rng.randrange(span.start, span.stop)
    return data[:at] + data[min(span.stop, at + rng.choice((1, 56, 128, 4096))) :]


def put_in(data: bytes, span: Span, rng: random.Random) -> bytes:
    """Some bytes of the span come twice."""
    at = rng.randrange(span.start, span.stop)
    return data[:at] + data[at : min(span.stop, at + rng.choice((1, 56, 128, 4096)))] + data[at:]


LENGTHS: tuple[Change, ...] = (cut_off, add, take_out, put_in)


def verify(path: Path) -> tuple[int, str]:
    """Exit code and message of `thinc verify`, in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(["verify", str(path)])
    return code, err.getvalue().strip()


def runs(path: Path, device: str) -> str:
    """The rule that stops a damaged artifact from running; AssertionError when it runs."""
    try:
        load(path, device).forward([1, 2, 3])
    except ArtifactError as e:
        return e.code
    raise AssertionError(f"{device}: damaged weights were executed")


@dataclass(slots=True)
class Tampering:
    """One artifact, folder or packed, that is changed again and again."""

    artifact: Path
    rng: random.Random
    devices: tuple[str, ...] = ("cpu", "interp")

    def kind(self, spans: list[Span], flips: int, cuts: int) -> Counter[str]:
        """Changes of one kind of place; how often each rule found one."""
        found: Counter[str] = Counter()
        spans = [span for span in spans if span.size]
        changes: list[Change] = [flip] * flips + [LENGTHS[n % len(LENGTHS)] for n in range(cuts)]
        for change in changes:
            (span,) = self.rng.choices(spans, [span.size for span in spans])
            found[self.once(change, span)] += 1
        return found

    def once(self, change: Change, span: Span) -> str:
        """Make one change, have it found, take it back; the rule's code."""
        right = span.file.read_bytes()
        wrong = change(right, span, self.rng)
        where = f"{change.__name__} in {span.name} bytes [{span.start}, {span.stop})"
        assert wrong != right, where
        span.file.write_bytes(wrong)
        try:
            code, message = verify(self.artifact)
            # In a packed file a change of length moves everything, so only the file itself can be named.
            named = span.name if change is flip or span.file != self.artifact else self.artifact.name
            assert code == 6 and named in message and "\n" not in message, f"{where}: exit {code}: {message!r}"
            if span.runs:
                runs(self.artifact, self.rng.choice(self.devices))
        finally:
            span.file.write_bytes(right)
        return message.removeprefix("thinc: ").partition(":")[0]


def tamper(artifact: Path, work: Path, flips: int, cuts: int, seed: int) -> Iterator[tuple[str, Counter[str]]]:
    """(kind of place, how often each rule found a change); AssertionError for a change that nobody noticed. `work` is an empty folder."""
    folder = work / "copy.thin"
    shutil.copytree(artifact, folder)
    packed = pack(folder)
    rng = random.Random(seed)
    for path, kinds in ((folder, folder_kinds(folder)), (packed, packed_kinds(packed))):
        tampering = Tampering(path, rng)
        for kind, spans in kinds.items():
            yield kind, tampering.kind(spans, flips, cuts)
        code, message = verify(path)
        assert code == 0, f"{path} was not restored: {message}"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--flips", type=int, default=200)
    parser.add_argument("--cuts", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        for kind, found in tamper(args.artifact, Path(work), args.flips, args.cuts, args.seed):
            rules = ", ".join(f"{code} {count}" for code, count in found.most_common())
            sys.stdout.write(f"{kind:<28} {found.total()} of {args.flips + args.cuts} found: {rules}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
