"""The public API is `__all__` of the six packages: every name exists and says what it is, and functions take no nameless options."""

from __future__ import annotations

import importlib
import inspect

import pytest

from source import FLOORS

MAX_PARAMETERS = 6


@pytest.mark.parametrize("folder", FLOORS)
def test_public_names(folder: str) -> None:
    package = importlib.import_module(f"thinlm.{folder}")
    assert (package.__doc__ or "").strip(), f"{folder}/__init__.py has no docstring"
    names = package.__all__
    assert sorted(set(names)) == sorted(names)
    assert [name for name in names if not hasattr(package, name)] == []
    problems = [f"{folder}.{name}: {text}" for name in names for text in api_problems(getattr(package, name))]
    assert problems == []


def api_problems(thing: object) -> list[str]:
    """What is wrong with one public object: no docstring of its own, `**kwargs`, or too many parameters."""
    if not (inspect.isclass(thing) or inspect.isfunction(thing)):
        return []
    problems = [] if (thing.__doc__ or "").strip() else ["no docstring"]
    functions = [thing] if inspect.isfunction(thing) else [f for f in vars(thing).values() if inspect.isfunction(f) and f.__name__[0] != "_"]
    for function in functions:
        parameters = inspect.signature(function).parameters.values()
        if any(p.kind is p.VAR_KEYWORD for p in parameters):
            problems.append(f"{function.__name__} takes **kwargs")
        if sum(p.name != "self" for p in parameters) > MAX_PARAMETERS:
            problems.append(f"{function.__name__} takes more than {MAX_PARAMETERS} parameters")
    return problems


def test_api_problems_are_found() -> None:
    def bare() -> None: ...

    def loose(**options: int) -> None:
        """Says something."""

    def long(a, b, c, d, e, f, g) -> None:
        """Says something."""

    assert [api_problems(f) for f in (bare, loose, long)] == [["no docstring"], ["loose takes **kwargs"], ["long takes more than 6 parameters"]]
