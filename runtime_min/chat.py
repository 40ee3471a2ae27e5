"""Chat templates: messages to the text that a model was trained on.

In: the template and special tokens of a checkpoint or artifact, messages as {"role", "content", ...}. Out: text, or its ids.
1. `chat_template.jinja` wins over `chat_template` in tokenizer_config.json, which is text or a list of named templates: "default",
   and "tool_use" when tools are given.
2. The text holds its own special tokens, so it is encoded without any more: a second BOS would change what the model reads.
3. A template is a program that came with the model. It runs in jinja2's sandbox, in a process of its own that the system ends after
   0.8 s of processor time, that gets 512 MiB of address space, and that may write 4 Mi characters. Nested loops, huge numbers, doubling
   strings and backtracking filters all end there; a list of forbidden constructs would always be one short. The limits hold the
   template, not an escape from the sandbox: such a bug in jinja2 (fixed ones: use 3.1.6 or newer) would run with the user's rights.
   A rendering takes about 0.1 s for starting that process.
Refused (InputError): no template; one that is malformed, breaks a limit or the sandbox, or refuses the messages (raise_exception).
"""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from ..schemas.errors import BackendError, InputError
from .tokenizer import Tokenizer, read_json

SECONDS = 0.8  # of processor time; starting takes 0.1 s, published templates 0.02 s
MEMORY = 512 << 20
CHARACTERS = 4 << 20
PATIENCE = 30.0  # seconds of wall time, for a machine too busy to give the process its second
WORKER = Path(__file__).with_name("chat_worker.py")


class _Named(msgspec.Struct, frozen=True):
    name: str
    template: str


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """The templates of a model by name ("default", perhaps "tool_use"), and the special tokens they may write."""

    templates: Mapping[str, str]
    special: Mapping[str, str]

    @classmethod
    def from_files(cls, files: Mapping[str, bytes], special: Mapping[str, str]) -> ChatTemplate:
        """The templates among a model's tokenizer files (tokenizer.FILES). Raises InputError when there are none."""
        found = cls.find(files, special)
        if found is None:
            raise InputError("the model has no chat template, so it is no chat model: give it text to continue with `thinc run`")
        return found

    @classmethod
    def find(cls, files: Mapping[str, bytes], special: Mapping[str, str]) -> ChatTemplate | None:
        """As from_files, but None when there are none; malformed ones are still refused."""
        found = _templates(files)
        return cls(MappingProxyType(found), special) if found else None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
        now: datetime | None = None,
    ) -> str:
        """The text for `messages` (keys with value None are left out). `variables`: further names that the template reads, such as
        enable_thinking; `now`: what strftime_now tells, default the local time. All values must be plain JSON."""
        name = "tool_use" if tools is not None and "tool_use" in self.templates else "default"
        if name not in self.templates:
            raise InputError(f"the chat templates are named {', '.join(sorted(self.templates))}; there is no {name!r}")
        plain = [{key: value for key, value in message.items() if value is not None} for message in messages]
        names = {"messages": plain, "tools": tools, "documents": None, "add_generation_prompt": add_generation_prompt}
        return _run(self.templates[name], {**names, **self.special, **(variables or {})}, now or datetime.now())


def chat_ids(tokenizer: Tokenizer, rendered: str) -> list[int]:
    """The ids of a rendered chat: special tokens as the template wrote them, none added."""
    return tokenizer.encode(rendered, add_special_tokens=False)


def _templates(files: Mapping[str, bytes]) -> dict[str, str]:
    if "chat_template.jinja" in files:
        raw = files["chat_template.jinja"]
        try:
            return {"default": raw.decode("utf-8")}
        except UnicodeDecodeError as error:
            raise InputError(f"chat_template.jinja: not UTF-8: {error}") from error
    listed = read_json(files, "tokenizer_config.json").get("chat_template") or []
    if isinstance(listed, str):
        return {"default": listed}
    try:
        return {named.name: named.template for named in msgspec.convert(listed, type=list[_Named])}
    except msgspec.ValidationError as error:
        raise InputError(f"tokenizer_config.json: chat_template is neither text nor a list of {{name, template}}: {error}") from error


def _run(template: str, variables: Mapping[str, Any], now: datetime) -> str:
    """Render in a fresh process. Raises InputError with what the template, or its limits, had to say."""
    request = {"template": template, "variables": variables, "now": now.isoformat(), "seconds": SECONDS, "bytes": MEMORY, "characters": CHARACTERS}
    # -I -S: neither the environment, nor the current folder, nor site hooks decide what the process loads.
    command = [sys.executable, "-I", "-S", str(WORKER), json.dumps(_library_folders())]
    try:
        done = subprocess.run(command, input=json.dumps(request, default=dict).encode(), capture_output=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired as error:
        raise InputError(f"chat template: no text within {PATIENCE:.0f} s") from error
    if done.returncode == -signal.SIGPROF:
        raise InputError(f"chat template: ran longer than {SECONDS} s")
    if done.returncode != 0:
        reason = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2] or f"its process ended with status {done.returncode}"
        raise InputError(f"chat template: {reason}")
    return done.stdout.decode("utf-8")


def _library_folders() -> list[str]:
    """Where jinja2 and what it needs are installed."""
    specs = [importlib.util.find_spec(name) for name in ("jinja2", "markupsafe")]
    if any(spec is None or spec.origin is None for spec in specs):
        raise BackendError("jinja2 is not installed; chat templates need it: pip install jinja2")
    return sorted({str(Path(spec.origin).parent.parent) for spec in specs if spec is not None and spec.origin is not None})
