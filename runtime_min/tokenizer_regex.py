"""What a regular expression of a stranger's tokenizer may look like, judged from its text before Oniguruma compiles it.

In: a pattern in Oniguruma's Ruby syntax, as `tokenizers` reads it. Out: its ways: how much of a choice its repetitions leave to the matcher.
The rule leaves out what can backtrack exponentially or fill the memory on its way; all published tokenizers keep it:
1. A repeated group holds a fixed sequence: no alternatives, no repetition but an exact one (`(?:\\p{N}{3})*`).
2. No back references, calls, conditions, callouts, named groups, free spacing, quoting; groups nest 16 deep; counts are at most 1,000;
   a repetition is not itself repeated, but may be lazy or possessive.
3. At most WAYS: the sum over repetitions in a row of log2 of the counts that each allows, an open one standing for OPEN. MAX_PATTERN characters.
What is left costs a power of the text's length; Tokenizer.encode bounds that by processor time. Refused: InputError, with the reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import log2
from typing import NoReturn

from ..schemas.errors import InputError

MAX_PATTERN = 4096
OPEN = 4.0
WAYS = 4 * OPEN  # published patterns reach 10: two open repetitions and two optional characters
DEPTH = 16
COUNT = 1000
_GROUP = re.compile(r"\(\?(?:[:=!>]|<[=!]|(?:[im]+(?:-[im]+)?|-[im]+)([:)]))")
_REPEAT = re.compile(r"([*+?]|\{(\d*)(,?)(\d*)\})([?+]?)")
_ESCAPE = re.compile(r"\\(?:[pP]\{\^?[\w ]+\}|x\{[0-9a-fA-F]+\}|[^0-9gkQcCMKRXyYNOo])|\\0")


@dataclass(slots=True)
class _Group:
    """An open group: ways of the alternative that is being read and of the worst before it; whether its text varies."""

    ways: float = 0.0
    worst: float = 0.0
    varies: bool = False

    def close(self) -> float:
        """Ways of its worst alternative."""
        return max(self.worst, self.ways)


def check_regex(pattern: str, where: str) -> float:
    """Its ways, at most WAYS; InputError as the module says, `where` starting its message."""
    if len(pattern) > MAX_PATTERN:
        _refuse(where, f"{len(pattern)} characters, at most {MAX_PATTERN} are read")
    groups, at = [_Group()], 0
    closed: _Group | None = None  # the group that ended just before `at`
    while at < len(pattern):
        here, closed_here = pattern[at], closed
        closed = None
        if here == "(":
            at = _open(pattern, at, groups, where)
        elif here == ")":
            at, closed = at + 1, _close(groups, where)
        elif here == "|":
            at, groups[-1].worst, groups[-1].ways, groups[-1].varies = at + 1, groups[-1].close(), 0.0, True
        elif (match := _REPEAT.match(pattern, at)) and _is_repeat(match):
            at = _repeat(match, groups[-1], closed_here, where)
        else:
            at = _atom(pattern, at, where)
    if len(groups) != 1:
        _refuse(where, "a group is not closed")
    return groups[0].close()


def _open(pattern: str, at: int, groups: list[_Group], where: str) -> int:
    if pattern[at + 1 : at + 2] not in ("?", "*"):
        groups.append(_Group())
        end = at + 1
    elif match := _GROUP.match(pattern, at):
        if match[1] != ")":  # `(?i)` is no group: it holds to the end of the one around it
            groups.append(_Group())
        end = match.end()
    else:
        _refuse(where, f"{pattern[at : at + 8]!r} is a construct that no published tokenizer uses")
    if len(groups) > DEPTH:
        _refuse(where, f"groups nest deeper than {DEPTH}")
    return end


def _close(groups: list[_Group], where: str) -> _Group:
    if len(groups) == 1:
        _refuse(where, "a group is closed that was never opened")
    inner = groups.pop()
    _add(groups[-1], inner.close(), where)
    groups[-1].varies |= inner.varies
    return inner


def _is_repeat(match: re.Match[str]) -> bool:
    """`{` alone, `{}` and `{,}` are text."""
    return match[1][0] != "{" or bool(match[2] or match[4])


def _repeat(match: re.Match[str], group: _Group, closed: _Group | None, where: str) -> int:
    """A repetition of the thing before it; where it goes on."""
    low, high = _bounds(match)
    if max(low, high or 0) > COUNT:
        _refuse(where, f"{match[0]!r} counts beyond {COUNT}")
    twice = match[1][0] == "{" and (match[5] == "+" or (match[5] == "?" and not match[3]))  # elsewhere a suffix says how, not how often
    if twice or ((after := _REPEAT.match(match.string, match.end())) and _is_repeat(after)):
        _refuse(where, f"{match.string[match.start() : match.end() + 4]!r} repeats a repetition")
    if closed is not None and closed.varies and high != 1:
        _refuse(where, "a group is repeated that holds alternatives or a repetition; that can take for ever")
    if low != high:
        group.varies = True
        _add(group, OPEN if high is None or match[5] == "+" else min(OPEN, log2(max(2, high - low + 1))), where)
    return match.end()


def _bounds(match: re.Match[str]) -> tuple[int, int | None]:
    """The least and the most times; None is without end."""
    if match[1][0] != "{":
        return {"*": (0, None), "+": (1, None), "?": (0, 1)}[match[1]]
    low = int(match[2][:9] or 0)
    return low, (int(match[4][:9]) if match[4] else None) if match[3] else low


def _add(group: _Group, ways: float, where: str) -> None:
    group.ways += ways
    if group.ways > WAYS:
        _refuse(where, "too many repetitions in a row")


def _atom(pattern: str, at: int, where: str) -> int:
    """Past a character, an escape or a class."""
    depth, start = 0, at
    while True:
        here = pattern[at : at + 1]
        if here == "\\":
            if not (match := _ESCAPE.match(pattern, at)):
                _refuse(where, f"{pattern[at : at + 4]!r} is an escape that no published tokenizer uses")
            at = match.end()
        elif here == "[":
            if re.compile(r"\[\^?\]").match(pattern, at):
                _refuse(where, f"{pattern[at : at + 3]!r} is ambiguous")
            depth, at = depth + 1, at + 1
        else:
            depth, at = depth - (here == "]" and depth > 0), at + 1
        if depth == 0:
            return at
        if at >= len(pattern):
            _refuse(where, f"the class {pattern[start : start + 8]!r} is not closed")


def _refuse(where: str, why: str) -> NoReturn:
    raise InputError(f"{where}: a regular expression: {why}")
