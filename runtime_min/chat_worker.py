"""Renders one chat template; runs as a process of its own (see chat.py) because a template is a stranger's program.

In: argv[1], a JSON list of the folders that hold jinja2 and markupsafe; on stdin JSON {template, variables, now, seconds, bytes, characters}.
Out: the text on stdout as UTF-8 and status 0; or one line `Kind: message` on stderr and status 1; or death by SIGPROF at the time limit.
Cases: what chat templates of published models use: trim_blocks, lstrip_blocks, break and continue, `generation` blocks (their body is
kept), raise_exception, strftime_now, a tojson that keeps non-ASCII and HTML characters.
Refused: what ImmutableSandboxedEnvironment refuses, and names that begin with `_` in a namespace. This file imports nothing of thinlm.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from types import TracebackType
from typing import Any

if __name__ == "__main__":
    sys.path += json.loads(sys.argv[1])  # the process starts without site-packages

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


class Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks what the model wrote, for training; here its body is all there is."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Any) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)  # names set inside stay inside, as in transformers


class PlainNamespace(Namespace):
    """A namespace that stores no name which Python itself could read."""

    def __init__(self, /, *args: Any, **names: Any) -> None:
        super().__init__()
        for name, value in dict(*args, **names).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a namespace may not hold {name!r}")
        super().__setitem__(name, value)


def main() -> None:
    """Read the request, set the limits, write the text."""
    sys.excepthook = _one_line
    request = json.load(sys.stdin.buffer)
    _limit(request["seconds"], request["bytes"])
    pieces, characters = [], 0
    for piece in _compile(request["template"], datetime.fromisoformat(request["now"])).generate(request["variables"]):
        pieces.append(piece)
        characters += len(piece)
        if characters > request["characters"]:
            raise OverflowError(f"the text grew beyond {request['characters']} characters")
    sys.stdout.buffer.write("".join(pieces).encode("utf-8"))


def _limit(seconds: float, size: int) -> None:
    """End this process after so much processor time (user and system) and refuse memory beyond `size`."""
    import resource
    import signal

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)


def _compile(source: str, now: datetime) -> Any:
    def tojson(
        value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: tuple[str, str] | None = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def strftime_now(form: str) -> str:
        return now.strftime(form)

    def plain_dict(*args: Any, **names: Any) -> dict[str, Any]:  # not the class: a template could reach its methods
        return dict(*args, **names)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = tojson
    environment.globals |= {
        "raise_exception": raise_exception,
        "strftime_now": strftime_now,
        "namespace": PlainNamespace,
        "dict": plain_dict,
    }
    return environment.from_string(source)


def _one_line(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.stderr.write(f"{kind.__name__}: {error}".replace("\n", " ")[:500])


if __name__ == "__main__":
    main()
