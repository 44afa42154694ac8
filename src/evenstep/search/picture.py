"""Draw a search: loss over learning rate, the rate that was found, and its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from evenstep.errors import InputError

if TYPE_CHECKING:
    from evenstep.search.result import LRSearch

MEAN, SEED, LOST = "#1b6ca8", "#9bb8d3", "#c9702b"
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 460.0, 240.0, 56.0, 12.0, 22.0, 36.0


def plot_search(search: LRSearch, axes: Any = None) -> Any:
    """Draw a search on matplotlib axes, new ones if none are given, and return them."""
    if axes is None:
        try:
            from matplotlib import pyplot  # here: it takes a second, and few calls draw
        except ImportError:
            raise InputError(
                "plot() draws with matplotlib, which is not installed; install it with pip install 'evenstep[pictures]'"
            ) from None
        axes = pyplot.subplots(figsize=(6.4, 4.2), layout="constrained")[1]
    for rate, seeds in zip(search.grid, search.losses, strict=True):
        finite = [loss for loss in seeds if math.isfinite(loss)]
        axes.plot([rate] * len(finite), finite, "o", color=SEED, markersize=3)
        if len(finite) < len(seeds):
            axes.plot([rate], [1.0], "x", color=LOST, transform=axes.get_xaxis_transform(), clip_on=False)
    points = _means(search)
    if points:
        axes.plot(*zip(*points, strict=True), "o-", color=MEAN, label="mean over seeds")
        axes.axvline(search.rate, color=MEAN, linestyle=":", label=f"rate {search.rate:.3g}")
        if search.interval is not None:
            axes.axvspan(*search.interval, color=MEAN, alpha=0.12, linewidth=0, label="its interval (95%)")
        axes.legend(frameon=False)
    axes.set(xscale="log", xlabel="learning rate", ylabel="training loss")
    axes.set_title("x above the frame: diverged", fontsize=9, loc="left")
    return axes


def search_html(search: LRSearch) -> str:
    """Return a search as HTML for notebooks, without scripts: the rate, the curve, and a table of losses."""
    words = "<br>".join(escape(line) for line in str(search).splitlines())
    rows = "".join(
        f"<tr><td>{rate:.4g}</td><td>{_loss(mean)}</td><td>{', '.join(map(_loss, seeds))}</td></tr>"
        for rate, mean, seeds in zip(search.grid, search.mean_losses, search.losses, strict=True)
    )
    table = f"<table><tr><th>rate</th><th>mean loss</th><th>seeds</th></tr>{rows}</table>"
    tried = f"{len(search.grid)} rates tried, {len(search.losses[0])} seeds each, {search.diverged} trials diverged"
    return f"<div><p>{words}</p>{_svg(search)}<details><summary>{tried}</summary>{table}</details></div>"


def _svg(search: LRSearch) -> str:
    """Return the curve as an SVG; text and axes take the page's colours."""
    points = _means(search)
    if not points:
        return ""
    x = _scale([math.log(rate) for rate in search.grid], _LEFT, _WIDTH - _RIGHT)
    shown = [loss for seeds in search.losses for loss in seeds if math.isfinite(loss)]
    is_steep = min(shown) > 0 and max(shown) > 10 * min(shown)
    height = math.log if is_steep else float
    y = _scale([height(loss) for loss in shown], _HEIGHT - _BOTTOM, _TOP)
    parts = []
    if search.interval is not None:
        low, high = (min(max(x(math.log(end)), _LEFT), _WIDTH - _RIGHT) for end in search.interval)
        parts.append(_box(low, high - low, MEAN, 0.12))
    for rate, seeds in zip(search.grid, search.losses, strict=True):
        at = x(math.log(rate))
        parts += [_dot(at, y(height(loss)), 2, SEED) for loss in seeds if math.isfinite(loss)]
        if not all(map(math.isfinite, seeds)):
            parts.append(_text(at, _TOP - 6, "×", "middle", LOST))
    line = " ".join(f"{x(math.log(rate)):.1f},{y(height(loss)):.1f}" for rate, loss in points)
    parts.append(f'<polyline points="{line}" fill="none" stroke="{MEAN}" stroke-width="1.5"/>')
    parts += [_dot(x(math.log(rate)), y(height(loss)), 3, MEAN) for rate, loss in points]
    at = x(math.log(search.rate))
    bottom = _HEIGHT - _BOTTOM
    parts.append(f'<path d="M{at:.1f} {_TOP}V{bottom}" stroke="{MEAN}" stroke-dasharray="2 3"/>')
    parts.append(f'<path d="M{_LEFT} {_TOP}V{bottom}H{_WIDTH - _RIGHT}" fill="none" stroke="currentColor"/>')
    for rate in (search.grid[0], search.rate, search.grid[-1]):
        parts.append(_text(x(math.log(rate)), bottom + 14, f"{rate:.3g}", "middle"))
    for loss in (min(shown), max(shown)):
        parts.append(_text(_LEFT - 4, y(height(loss)) + 4, f"{loss:.3g}", "end"))
    parts.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 6, "learning rate (×: diverged)", "middle"))
    label = f"Training loss over learning rate, smallest near {search.rate:.3g}"
    return (
        f'<svg role="img" aria-label="{label}" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" width="{_WIDTH:g}" '
        f'style="max-width:100%;font:11px sans-serif">{"".join(parts)}</svg>'
    )


def _means(search: LRSearch) -> list[tuple[float, float]]:
    return [(rate, mean) for rate, mean in zip(search.grid, search.mean_losses, strict=True) if math.isfinite(mean)]


def _scale(values: Sequence[float], start: float, end: float) -> Any:
    """Return a function from values to positions between `start` and `end`."""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return lambda value: start + (end - start) * (value - low) / span


def _box(left: float, width: float, colour: str, opacity: float) -> str:
    height = _HEIGHT - _BOTTOM - _TOP
    return (
        f'<rect x="{left:.1f}" y="{_TOP}" width="{width:.1f}" height="{height}" fill="{colour}" opacity="{opacity}"/>'
    )


def _dot(x: float, y: float, radius: int, colour: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}"/>'


def _text(x: float, y: float, words: str, anchor: str, colour: str = "currentColor") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(words)}</text>'


def _loss(loss: float) -> str:
    return f"{loss:.4g}" if math.isfinite(loss) else "diverged"
