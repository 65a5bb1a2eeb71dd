"""Small charts as SVG text, for a page that must need nothing else: lines and points on linear or logarithmic axes, and a stacked bar."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

COLOURS = (
    "#1b6ca8",
    "#d1495b",
    "#2e933c",
    "#8d6a9f",
    "#e08e1b",
    "#5c6b73",
    "#00798c",
    "#a44a3f",
    "#6a994e",
    "#3d405b",
    "#b56576",
    "#457b9d",
)
WIDTH, HEIGHT = 560, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 14, 34, 48


@dataclass(frozen=True, slots=True)
class Series:
    """One set of points, joined by a line or not; `title` is shown on hovering over each."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    line: bool = True
    titles: Sequence[str] = ()
    marked: bool = False  # larger points, on top


def chart(
    title: str,
    x_label: str,
    y_label: str,
    series: Sequence[Series],
    *,
    log_x: bool = False,
    log_y: bool = False,
    limit_y: float | None = None,
) -> str:
    """An SVG chart of WIDTH x HEIGHT; `limit_y` draws a dashed line. Points that an axis cannot show are left out."""
    series = [_kept(s, log_x, log_y) for s in series]
    xs, ys = [x for s in series for x in s.xs], [y for s in series for y in s.ys]
    if not xs:
        return f'<p class="note">{escape(title)}: nothing to show</p>'
    x_axis, y_axis = _Axis(xs, log_x), _Axis([*ys, *([limit_y] if limit_y else [])], log_y)
    px = [_LEFT, WIDTH - _RIGHT]
    py = [HEIGHT - _BOTTOM, _TOP]
    parts = [f'<text x="{_LEFT}" y="18" class="title">{escape(title)}</text>']
    for value in x_axis.ticks():
        x = x_axis.at(value, *px)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{py[0]}" y2="{py[1]}" class="grid"/>')
        parts.append(f'<text x="{x:.1f}" y="{py[0] + 16}" class="tick" text-anchor="middle">{_short(value)}</text>')
    for value in y_axis.ticks():
        y = y_axis.at(value, *py)
        parts.append(f'<line x1="{px[0]}" x2="{px[1]}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(f'<text x="{px[0] - 6}" y="{y + 4:.1f}" class="tick" text-anchor="end">{_short(value)}</text>')
    if limit_y:
        y = y_axis.at(limit_y, *py)
        parts.append(f'<line x1="{px[0]}" x2="{px[1]}" y1="{y:.1f}" y2="{y:.1f}" class="limit"/>')
    for i, s in enumerate(series):
        parts += _drawn(s, COLOURS[i % len(COLOURS)], x_axis, y_axis, px, py)
    middle = (px[0] + px[1]) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 10}" class="label" text-anchor="middle">{escape(x_label)}</text>')
    across = f"rotate(-90 14 {(py[0] + py[1]) / 2})"
    parts.append(f'<text x="14" y="{(py[0] + py[1]) / 2}" class="label" text-anchor="middle" transform="{across}">{escape(y_label)}</text>')
    picture = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
    return f"<figure>{picture}{legend([s.name for s in series])}</figure>"


def stacked_bar(title: str, entries: Sequence[tuple[str, float]], unit: str) -> str:
    """One horizontal bar whose parts are the entries, in proportion; negative ones are named in the legend only."""
    total = sum(value for _, value in entries if value > 0)
    parts, x = [f'<text x="0" y="18" class="title">{escape(title)}</text>'], 0.0
    for i, (name, value) in enumerate(entries):
        width = max(value, 0.0) / total * WIDTH
        label = f"{escape(name)}: {value:.2f} {unit}"
        colour = COLOURS[i % len(COLOURS)]
        parts.append(f'<rect x="{x:.1f}" y="30" width="{width:.1f}" height="44" fill="{colour}"><title>{label}</title></rect>')
        x += width
    picture = f'<svg viewBox="0 0 {WIDTH} 80" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
    return f"<figure>{picture}{legend([f'{name} {value:.2f} {unit}' for name, value in entries])}</figure>"


def legend(names: Sequence[str]) -> str:
    """Coloured names, in the order of COLOURS."""
    items = [f'<span><i style="background:{COLOURS[i % len(COLOURS)]}"></i>{escape(name)}</span>' for i, name in enumerate(names)]
    return f"<figcaption>{''.join(items)}</figcaption>"


def _kept(s: Series, log_x: bool, log_y: bool) -> Series:
    good = [
        i
        for i, (x, y) in enumerate(zip(s.xs, s.ys, strict=True))
        if math.isfinite(x) and math.isfinite(y) and (x > 0 or not log_x) and (y > 0 or not log_y)
    ]
    titles = [s.titles[i] for i in good] if s.titles else ()
    return Series(s.name, [float(s.xs[i]) for i in good], [float(s.ys[i]) for i in good], s.line, titles, s.marked)


def _drawn(s: Series, colour: str, x_axis: _Axis, y_axis: _Axis, px: Sequence[float], py: Sequence[float]) -> list[str]:
    points = [(x_axis.at(x, px[0], px[1]), y_axis.at(y, py[0], py[1])) for x, y in zip(s.xs, s.ys, strict=True)]
    parts = []
    if s.line and len(points) > 1:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
    radius = 6 if s.marked else 2.0
    for i, (x, y) in enumerate(points):
        title = f"<title>{escape(s.titles[i])}</title>" if s.titles else ""
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}">{title}</circle>')
    return parts


class _Axis:
    """A linear or logarithmic scale from the least to the largest value, with ticks at round numbers."""

    def __init__(self, values: Sequence[float], log: bool) -> None:
        self.log = log
        low, high = min(values), max(values)
        if log:
            self.low, self.high = math.log10(low) - 0.03, math.log10(high) + 0.03
        else:
            self.low, self.high = min(0.0, low), high * 1.05 if high > 0 else 1.0

    def at(self, value: float, start: float, end: float) -> float:
        x = math.log10(value) if self.log else value
        span = self.high - self.low or 1.0
        return start + (x - self.low) / span * (end - start)

    def ticks(self) -> list[float]:
        if self.log:
            steps = (1, 2, 5) if self.high - self.low < 2.2 else (1,)
            found = [s * 10.0**e for e in range(math.floor(self.low), math.ceil(self.high) + 1) for s in steps]
            return [t for t in found if self.low <= math.log10(t) <= self.high]
        step = 10 ** math.floor(math.log10((self.high - self.low) / 5))
        step = next(step * m for m in (1, 2, 5, 10) if (self.high - self.low) / (step * m) <= 7)
        return [i * step for i in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10 or value == int(value) else f"{value:g}"
