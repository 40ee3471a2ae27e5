"""Flags that several verbs share (one vocabulary, design.md section 8) and the two ways to print a result."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ...schemas.errors import UsageError
from ..terminal import tell

json_flag = click.option("--json", "as_json", is_flag=True, help="Print one JSON object to standard output.")
device_option = click.option("--device", default="cpu", show_default=True, metavar="DEVICE", help="cpu (torch), interp (numpy, slow).")
_EXECUTION = (
    device_option,
    click.option("--context", type=click.IntRange(1), help="Positions to make room for [the plan's]."),
    click.option("--kv-dtype", type=click.Choice(["f32", "f16", "bf16"]), help="How keys and values are stored [the plan's]."),
    click.option("--uncertified", is_flag=True, help="Run in a mode that no certificate covers."),
    click.option(
        "--verify",
        type=click.Choice(["touched", "full"]),
        default="touched",
        show_default=True,
        help="Compare pages with their digests as they are first used, or every byte before the first token.",
    ),
)
artifact_argument = click.argument("artifact", type=click.Path(path_type=Path))
model_argument = click.argument("model", type=click.Path(path_type=Path))
force_flag = click.option("--force", is_flag=True, help="Replace an existing target.")
output_option = click.option("-o", "--output", type=click.Path(path_type=Path), help="Where to write.")

class _Bytes(click.ParamType):
    """A number of bytes as recipes write it: 4GiB, 900MB, 123456."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from ...schemas.recipe import parse_bytes

        try:
            return value if isinstance(value, int) else parse_bytes(value)
        except UsageError as e:
            self.fail(str(e), param, ctx)


max_ram_option = click.option("--max-ram", type=_Bytes(), metavar="BYTES", help="Memory that this command may take (4GiB) [what the machine has].")

_BUDGETS = (
    click.option("--budget", metavar="BYTES", help="Peak device bytes: weights + KV + workspace (6.6GiB, 900MB)."),
    click.option("--weights-budget", metavar="BYTES|P%", help="Encoded weight bytes; P% of 2 bytes per parameter."),
    click.option("--max-artifact", metavar="BYTES", help="Bytes of the artifact's files."),
)
_RECIPE = (
    *_BUDGETS,
    click.option("--context", type=click.IntRange(1), help="Positions of a text [the model's own]."),
    click.option("--batch", type=click.IntRange(1), help="Texts at a time [1]."),
    click.option("--target", metavar="TARGET", help="What will run it [cpu]."),
    click.option("--recipe", "recipe_file", type=click.Path(path_type=Path), help="Recipe file (.yaml, .json); flags win over it."),
)


def execution_options(f: Callable[..., Any]) -> Callable[..., Any]:
    """--device and the switches of a run."""
    for option in reversed(_EXECUTION):
        f = option(f)
    return f


def execution_of(flags: dict[str, Any]) -> Any:
    """Takes those flags out of `flags`; an Execution."""
    from ..runner import Execution

    return Execution(**{name: flags.pop(name) for name in ("device", "context", "kv_dtype", "uncertified", "verify")})


def warn(message: str) -> None:
    """A warning on standard error."""
    tell(f"warning: {message}", err=True)


def recipe_options(f: Callable[..., Any]) -> Callable[..., Any]:
    """The budgets, --context, --batch, --target and --recipe."""
    for option in reversed(_RECIPE):
        f = option(f)
    return f


def recipe_from_flags(recipe_file: Path | None, **flags: Any) -> Any:
    """The Recipe of a file (or the default) with the given flags laid over it; UsageError."""
    import msgspec

    from ...schemas.recipe import Recipe, read_recipe, recipe_from_dict

    base = msgspec.to_builtins(read_recipe(recipe_file) if recipe_file else Recipe())
    given = {k: v for k, v in flags.items() if v is not None and v != ()}
    return recipe_from_dict({**base, **given}, "flags" if recipe_file is None else f"flags over {recipe_file}")


def emit(as_json: bool, data: dict[str, Any], lines: list[str]) -> None:
    """The result of a verb: one JSON object, or lines for people."""
    tell(json.dumps(data, sort_keys=True) if as_json else "\n".join(lines))


def is_artifact(path: Path) -> bool:
    """Whether PATH holds an artifact (folder or packed file) rather than a model."""
    return path.suffix == ".zip" or (path / "manifest.json").exists()


def human(n: float) -> str:
    """Bytes for people: 6.60 GiB, 2.43 MiB, 512 B."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n >= size:
            return f"{n / size:.2f} {unit}"
    return f"{int(n)} B"


def read_text_argument(text: str | None, file: Path | None) -> str:
    """A prompt given in words or by file; UsageError when neither or both."""
    if (text is None) == (file is None):
        raise UsageError("give the prompt with --prompt TEXT or --prompt-file FILE")
    if text is not None:
        return text
    assert file is not None
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"{file}: can't be read as UTF-8 text ({e})") from e
