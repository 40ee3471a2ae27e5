"""Every error that a user can cause, with the exit code that the command line returns for it (design.md section 8).

ThincError                  1  our bug, unless a subclass says otherwise
├── UsageError              2  wrong flags or values
├── InfeasibleError         3  a byte budget that no allocation meets
├── GateError               4  the artifact exists but fell below its gate
├── InputError              5  a file or model that we refuse
│   └── FrontendError       5  a checkpoint that no adapter expresses
├── ArtifactError           6  integrity: bytes that are not what they claim; carries the SPEC rule's code
├── BackendError            7  device, driver or an extra is missing
├── DiskError               7  no room on the disk, before or in the middle of the work
├── VerifyError             1  a graph that breaks the IR's rules (carries all violations)
├── PassError               1  a pass that broke its contract
├── CertifyError            1  a certificate that can't be made honestly
└── Interrupted           130  stopped by the user; the state on disk can be resumed

A message says where, what was got and expected, and what to do, in one line. What it quotes may come from a hostile file: line ends become
spaces, other control characters are escaped, and the middle of a message beyond MAX_MESSAGE characters is left out.
"""

from __future__ import annotations

from typing import ClassVar

MAX_MESSAGE = 1500


def one_line(text: str) -> str:
    """`text` as a message may show it: see the module."""
    if len(text) > MAX_MESSAGE:
        text = f"{text[: MAX_MESSAGE // 2]} ... {text[-MAX_MESSAGE // 2 :]}"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in " ".join(text.splitlines()))

class ThincError(Exception):
    """Base of all expected errors; `exit_code` is what `thinc` exits with."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class UsageError(ThincError):
    """Wrong flags or values on the command line or in a recipe."""

    exit_code = 2


class InfeasibleError(ThincError):
    """No allocation meets a budget; the message names the budget and the smallest feasible figure."""

    exit_code = 3


class GateError(ThincError):
    """A certificate exists and its verdict is below the gate."""

    exit_code = 4


class InputError(ThincError):
    """An input file that is refused."""

    exit_code = 5


class FrontendError(InputError):
    """A checkpoint that can't be expressed exactly."""


class ArtifactError(ThincError):
    """An artifact breaks rule `code` of artifacts/SPEC.md."""

    exit_code = 6

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class BackendError(ThincError):
    """A device, driver or optional dependency is missing or fails."""

    exit_code = 7


class DiskError(ThincError):
    """The disk is full, or too small for what was asked for; what is on it can be resumed."""

    exit_code = 7


class VerifyError(ThincError):
    """A graph breaks the IR's rules; `violations` lists all of them."""

    def __init__(self, violations: tuple[str, ...]) -> None:
        super().__init__("; ".join(violations))
        self.violations = violations


class PassError(ThincError):
    """A pass broke its contract, or lacks an optional dependency."""


class CertifyError(ThincError):
    """A certificate can't be made honestly (for example: the reference is the candidate)."""


class Interrupted(ThincError):
    """Stopped by the user; what is on disk can be resumed."""

    exit_code = 130
