"""`thinc run`: continue a prompt, streamed to standard output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...schemas.errors import UsageError
from ..terminal import tell
from .options import artifact_argument, emit, execution_of, execution_options, json_flag, read_text_argument, warn

_SAMPLING = (
    click.option("--max-new-tokens", type=click.IntRange(0), default=128, show_default=True),
    click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy."),
    click.option("--top-k", type=int, default=0, help="Keep the K most probable tokens; 0 keeps all."),
    click.option("--top-p", type=float, default=1.0, help="Keep the fewest tokens that reach this probability."),
    click.option("--min-p", type=float, default=0.0, help="Keep tokens of at least this share of the best one's probability."),
    click.option("--seed", type=int, default=0, show_default=True),
    click.option("--stop", multiple=True, metavar="TEXT", help="Stop before this text; may be repeated."),
)


def sampling_options(f: Any) -> Any:
    """The flags that choose tokens."""
    for option in reversed(_SAMPLING):
        f = option(f)
    return f


@click.command("run")
@artifact_argument
@click.option("--prompt", help="The text to continue.")
@click.option("--prompt-file", type=click.Path(path_type=Path), help="A UTF-8 file with the text to continue.")
@sampling_options
@click.option("--ignore-eos", is_flag=True, help="Go on after an end-of-text token.")
@execution_options
@json_flag
def command(artifact: Path, prompt: str | None, prompt_file: Path | None, as_json: bool, **flags: Any) -> None:
    """Continue a prompt with the model in ARTIFACT."""
    from ..runner import Runner, decoding_of

    text = read_text_argument(prompt, prompt_file)
    execution, decoding = execution_of(flags), decoding_of(**flags)
    runner = Runner.open(artifact, execution, warn)
    ids = runner.tokenizer.encode(text)
    if not ids:
        raise UsageError("the prompt is empty, and this tokenizer puts no start token before it; give at least one word")
    with runner.model.session() as session:
        reply = runner.reply(session, ids, decoding)
        for piece in reply:
            if not as_json and not tell(piece, end=""):
                break  # nobody reads
    emit(as_json, {"prompt": text, "prompt_tokens": len(ids), **reply.report()}, [""])
