"""A chart of the named figures as SVG: how each compares with its target, and the rates of the durable systems."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape

_WIDTH: Final = 900
_LEFT: Final = 290
_ROW: Final = 22
_BAR: Final = 14
_PLOT: Final = _WIDTH - _LEFT - 130
_MET, _MISSED, _OTHER, _OURS = "#2f7d4f", "#b5482f", "#8a94a6", "#2b5d9b"
_SPAN: Final = math.log10(64)
"""The scale goes from 1/8 to 8 times the target, logarithmically."""


def chart(figures: Sequence[tuple[str, float, str]], systems: Sequence[tuple[str, float]], caption: str) -> str:
    """The whole chart.

    Args:
        figures: name, how much better than its target (1: just met, 2: twice as good), and the text beside the bar.
        systems: name and rate per second of each system with durable tasks; ours first.
    """
    lines: list[str] = []
    y = _title(lines, 26, "Named figures, as multiples of their targets (logarithmic; right of the line: met)")
    begin = y
    for name, times, text in figures:
        y = _figure(lines, y, name, times, text)
    middle = _LEFT + _PLOT / 2
    lines.append(f'<line x1="{middle}" y1="{begin - 4}" x2="{middle}" y2="{y}" stroke="#333" stroke-width="1"/>')
    if systems:
        y = _title(
            lines, y + 34, "Durable tasks: submitted to done, no-op, results off, one worker process, per second"
        )
        most = max(rate for _, rate in systems)
        for number, (name, rate) in enumerate(systems):
            y = _row(lines, y, name, _LEFT, _PLOT * rate / most, f"{rate:,.0f}", _OURS if number == 0 else _OTHER)
    lines.append(_text(20, y + 24, caption, size=11, colour="#555"))
    height = y + 40
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'font-family="system-ui, sans-serif"><rect width="{_WIDTH}" height="{height}" fill="#fff"/>'
    )
    return "\n".join([head, *lines, "</svg>", ""])


def _figure(lines: list[str], y: float, name: str, times: float, text: str) -> float:
    share = max(-1.0, min(1.0, math.log10(max(times, 1e-9)) / (_SPAN / 2)))
    half = _PLOT / 2
    start = _LEFT + half + min(0.0, share) * half
    return _row(lines, y, name, start, abs(share) * half, text, _MET if times >= 1 else _MISSED)


def _row(lines: list[str], y: float, name: str, start: float, width: float, text: str, colour: str) -> float:
    lines.append(_text(_LEFT - 10, y + 11, name, anchor="end"))
    lines.append(
        f'<rect x="{start:.1f}" y="{y}" width="{max(1.0, width):.1f}" height="{_BAR}" rx="2" fill="{colour}"/>'
    )
    lines.append(_text(_LEFT + _PLOT + 8, y + 11, text))
    return y + _ROW


def _title(lines: list[str], y: float, text: str) -> float:
    lines.append(_text(20, y, text, size=14, weight="600"))
    return y + 18


def _text(
    x: float, y: float, text: str, *, size: int = 12, colour: str = "#111", anchor: str = "start", weight: str = "400"
) -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{escape(text)}</text>'
    )
