"""`thinc chat`: a conversation in the terminal, or one scripted from standard input, line by line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from ...schemas.errors import UsageError
from ..terminal import tell
from .options import artifact_argument, emit, execution_of, execution_options, json_flag, warn
from .run_ import sampling_options


@click.command("chat")
@artifact_argument
@click.option("--system", help="A system message before the conversation.")
@sampling_options
@execution_options
@json_flag
def command(artifact: Path, system: str | None, as_json: bool, **flags: Any) -> None:
    """Talk with the model in ARTIFACT: one message a line; an empty line or end of input ends. With --json, one object a reply."""
    from ...runtime_min.chat import ChatTemplate, chat_ids
    from ..runner import Runner, decoding_of

    execution, decoding = execution_of(flags), decoding_of(**flags)
    runner = Runner.open(artifact, execution, warn)
    template = ChatTemplate.from_files(runner.files, runner.tokenizer.special)
    messages: list[dict[str, str]] = [] if system is None else [{"role": "system", "content": system}]
    while (line := _next_line()) is not None:
        messages.append({"role": "user", "content": line})
        ids = chat_ids(runner.tokenizer, template.render(messages))
        if len(ids) >= runner.model.options.context:
            room = runner.model.options.context
            raise UsageError(f"context: the conversation has {len(ids)} tokens, the plan has room for {room}; start a new one")
        with runner.model.session() as session:
            reply = runner.reply(session, ids, decoding)
            for piece in reply:
                if not as_json:
                    tell(piece, end="")
        messages.append({"role": "assistant", "content": reply.text})
        emit(as_json, {"prompt_tokens": len(ids), **reply.report()}, [""])


def _next_line() -> str | None:
    """The user's next message; None at an empty line or the end of input. UsageError for bytes that are no text."""
    if sys.stdin is None:  # closed by the caller
        return None
    if sys.stdin.isatty():
        tell("> ", end="", err=True)
    try:
        line = sys.stdin.readline().strip()
    except UnicodeDecodeError as e:
        raise UsageError(f"standard input: can't be read as UTF-8 text ({e})") from e
    return line or None
