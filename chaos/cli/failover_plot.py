"""How times are distributed, as bars."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

PLOT_FILE = "failover.svg"
_BARS = 12
_WIDTH, _HEIGHT, _MARGIN = 640, 320, 40


def histogram(times: Sequence[int]) -> list[tuple[int, int]]:
    """(where a bar begins, how many times lie in it), of bars of equal width; not empty. ns."""
    least, most = min(times), max(times)
    width = max(1, -(-(most - least + 1) // _BARS))
    counts = [0] * _BARS
    for one in times:
        counts[(one - least) // width] += 1
    return [(least + number * width, count) for number, count in enumerate(counts)]


def svg_plot(times: Sequence[int], title: str) -> str:
    """A picture of the histogram; not empty. ns, shown in ms."""
    bars = histogram(times)
    most = max(count for _, count in bars)
    step = (_WIDTH - 2 * _MARGIN) / len(bars)
    parts = [f'<text x="{_MARGIN}" y="20" font-weight="bold">{escape(title)}</text>']
    for number, (begin, count) in enumerate(bars):
        height = count / most * (_HEIGHT - 3 * _MARGIN)
        x, y = _MARGIN + number * step, _HEIGHT - _MARGIN - height
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{step - 2:.1f}" height="{height:.1f}" fill="#48c"/>'
        )
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - _MARGIN + 16}">{begin / 1e6:.0f}</text>')
        if count:
            parts.append(f'<text x="{x:.1f}" y="{y - 4:.1f}">{count}</text>')
    parts.append(f'<text x="{_WIDTH - _MARGIN}" y="{_HEIGHT - 6}">ms</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'font-family="sans-serif" font-size="11">\n' + "\n".join(parts) + "\n</svg>\n"
    )
