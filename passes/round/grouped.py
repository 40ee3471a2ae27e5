"""Integer codes under an f16 scale (and minimum) per group of columns: weighted scale search, then least squares.

For each group of one row, with column weights h, minimise sum_j h_j (w_j - value(code_j))^2:
1. for every scale of a grid (shrunk and stretched from the one that just covers the group; symmetric codes also with the other sign,
   because they reach one step further on one side) take the nearest codes; their best scale (and minimum) has a closed form, so each
   grid point is judged by the error after that fit
2. twice: round the best scale (and minimum) to f16, take the nearest codes, fit again
3. keep whichever is better of the result and plain rounding
Names: R rows, K groups, G columns of a group; arrays are [R, K, G]; a short last group is padded with zeros of weight 0.
A scale is at least the smallest f16 above 0, except for weights far below it, and at most 65504 in magnitude.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...artifacts.formats import Format, Parts

BLOCK = 1 << 16  # weights worked on at a time: temporaries stay in a core's cache
F16_MAX, F16_TINY = np.float32(65504), np.float32(2**-24)
REACH = F16_MAX * 256  # no format reaches further; squares of larger weights would overflow
REFITS = 2
# bits -> how much of the covering range the codes span; below 1 leaves head room, above 1 clips the largest weights
GRID = {
    8: (1.0,),
    6: (0.97, 1.0, 1.04),
    4: (0.9, 0.97, 1.04, 1.12, 1.2),
    3: (0.85, 0.95, 1.05, 1.15, 1.25, 1.4),
    2: (0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0),
}


@dataclass(frozen=True, slots=True)
class Codes:
    """The levels of a format: lowest, highest, and the fraction that every level carries (0.5 for int2's -1.5 .. 1.5)."""

    low: float
    high: float
    shift: float
    affine: bool

    def nearest(self, x: np.ndarray) -> np.ndarray:
        """The nearest levels, in place."""
        if self.shift:
            x -= self.shift
        np.rint(x, out=x)
        if self.shift:
            x += self.shift
        return np.clip(x, self.low, self.high, out=x)


def codes_of(fmt: Format) -> Codes:
    """Levels of an integer format: unsigned codes for affine ones, codes minus the centre for symmetric ones."""
    top = 2**fmt.bits - 1
    if fmt.affine:
        return Codes(0, top, 0, True)
    centre = 1.5 if fmt.bits == 2 else 2 ** (fmt.bits - 1)
    return Codes(-centre, top - centre, centre % 1, False)


def round_groups(fmt: Format, w: np.ndarray, h: np.ndarray) -> Parts:
    """Parts of `fmt`; see module docstring."""
    rows, cols = w.shape
    width = fmt.group
    groups = -(-cols // width)
    levels = codes_of(fmt)
    h_KG = np.zeros(groups * width, np.float32)
    h_KG[:cols] = h
    h_KG = h_KG.reshape(groups, width)
    parts: Parts = {"codes": np.empty((rows, cols), np.uint8), "scale": np.empty((rows, groups), np.float16)}
    if fmt.affine:
        parts["min"] = np.empty((rows, groups), np.float16)
    step = max(1, BLOCK // cols)
    for r in range(0, rows, step):
        x = np.zeros((min(step, rows - r), groups * width), np.float32)
        np.clip(w[r : r + step], -REACH, REACH, out=x[:, :cols])
        found = _search(x.reshape(-1, groups, width), h_KG, levels, GRID[fmt.bits])
        levels_RC = found.codes.reshape(len(x), -1)[:, :cols] - levels.low
        parts["codes"][r : r + step] = levels_RC.astype(np.uint8)
        parts["scale"][r : r + step] = found.scale[..., 0]
        if fmt.affine:
            parts["min"][r : r + step] = found.base[..., 0]
    return parts


@dataclass(slots=True)
class _Choice:
    """value = codes * scale + base; codes [R, K, G], scale and base [R, K, 1] (f16 numbers held as float32), error [R, K, 1]."""

    codes: np.ndarray
    scale: np.ndarray
    base: np.ndarray
    error: np.ndarray


def _search(x: np.ndarray, h: np.ndarray, levels: Codes, grid: tuple[float, ...]) -> _Choice:
    fit = _Fit(x, h, levels)
    scale, base = fit.best_of_grid(grid)
    best = fit.judge(*fit.plain())
    for _ in range(REFITS):
        found = fit.judge(scale, base)
        better = found.error < best.error
        best = _Choice(*(np.where(better, a, b) for a, b in zip(_fields(found), _fields(best), strict=True)))
        scale, base = fit.solve(found.codes)
    return best


def _fields(choice: _Choice) -> Iterator[np.ndarray]:
    return iter((choice.codes, choice.scale, choice.base, choice.error))


class _Fit:
    """Least squares of one block of groups: what depends only on the weights is computed once."""

    def __init__(self, x: np.ndarray, h: np.ndarray, levels: Codes) -> None:
        self.x, self.h, self.levels = x, h, levels
        self.total = h.sum(-1)[:, None]  # [K, 1]; > 0, every column has weight
        self.mean = _dot(x, h) / self.total if levels.affine else np.zeros((*x.shape[:2], 1), np.float32)
        self.hx = h * (x - self.mean)
        self.low, self.high = self._range() if levels.affine else _around_zero(np.abs(x).max(-1, keepdims=True))
        self.alive = self.high - self.low > F16_TINY / 2  # smaller weights are nearer to their base than to any other number

    def plain(self) -> tuple[np.ndarray, np.ndarray]:
        """Scale and base of round-to-nearest over the group's range."""
        if self.levels.affine:
            return (self.high - self.low) / self.levels.high, self.low
        return self.high / self.levels.high, np.zeros_like(self.mean)

    def best_of_grid(self, grid: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
        """The fitted scale and base of the best grid point: [R, K, 1] each."""
        best = np.full_like(self.mean, -1)
        scale, base = np.zeros_like(best), self.mean.copy()
        for inverse, offset in self._starts(grid):
            codes = self.x * inverse
            if self.levels.affine:
                codes += offset
            fitted, fitted_base, gain = self._solve(self.levels.nearest(codes))
            better = gain > best
            np.copyto(best, gain, where=better)
            np.copyto(scale, fitted, where=better)
            np.copyto(base, fitted_base, where=better)
        return scale, base

    def _starts(self, grid: tuple[float, ...]) -> Iterator[tuple[np.ndarray, np.ndarray | float]]:
        """(1 / scale, offset) per grid point: codes are nearest(x / scale + offset)."""
        if self.levels.affine:
            middle, cover = (self.low + self.high) / 2, _inverse((self.high - self.low) / self.levels.high)
            yield from ((cover * t, self.levels.high / 2 - middle * cover * t) for t in grid)
            return
        cover = _inverse(self.high / -self.levels.low)
        signs = (1, -1) if self.levels.low + self.levels.high else (1,)
        yield from ((cover * np.float32(t * sign), 0.0) for t in grid for sign in signs)

    def _range(self) -> tuple[np.ndarray, np.ndarray]:
        """Least and greatest weight of each group; padding is weighed 0 and must not widen it."""
        pad = self.h == 0
        return (
            np.where(pad, np.inf, self.x).min(-1, keepdims=True).astype(np.float32),
            np.where(pad, -np.inf, self.x).max(-1, keepdims=True).astype(np.float32),
        )

    def solve(self, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The best scale and base for given codes."""
        return self._solve(codes)[:2]

    def _solve(self, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(scale, base, how much squared error it takes away)."""
        cross, power = _dot(self.hx, codes), _dot(codes * codes, self.h)
        if self.levels.affine:
            mean = _dot(codes, self.h) / self.total
            power = np.maximum(power - mean * mean * self.total, 0)
        else:
            mean = 0.0
        scale = np.divide(cross, power, out=np.zeros_like(cross), where=power > 1e-20)
        return scale, self.mean - scale * mean, cross * scale

    def judge(self, scale: np.ndarray, base: np.ndarray) -> _Choice:
        """The nearest codes under that scale and base as f16 holds them, and their error."""
        scale, base = self._f16_scale(scale), _f16(base)
        codes = self.x - base if self.levels.affine else self.x.copy()
        codes = self.levels.nearest(np.multiply(codes, _inverse(scale), out=codes))
        wrong = codes * scale
        if self.levels.affine:
            wrong += base
        wrong -= self.x
        return _Choice(codes, scale, base, _dot(np.multiply(wrong, wrong, out=wrong), self.h))

    def _f16_scale(self, scale: np.ndarray) -> np.ndarray:
        """Nearest f16; never infinite, and 0 only where the group holds nothing but its base."""
        sign = np.where(scale < 0, np.float32(-1), np.float32(1))
        return np.where(self.alive, sign * np.maximum(np.abs(_f16(scale)), F16_TINY), 0).astype(np.float32)


def _around_zero(reach: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return -reach, reach


def _f16(x: np.ndarray) -> np.ndarray:
    return np.clip(x, -F16_MAX, F16_MAX).astype(np.float16).astype(np.float32)


def _inverse(scale: np.ndarray) -> np.ndarray:
    """1 / scale, 0 where the scale is 0."""
    return np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=np.abs(scale) > 1e-38)


def _dot(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Sums over the columns of each group: [R, K, 1]; y is [R, K, G] or [K, G]."""
    return np.einsum("rkg,rkg->rk" if y.ndim == 3 else "rkg,kg->rk", x, y)[..., None]
