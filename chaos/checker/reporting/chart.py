"""The chart of a run, as SVG: plots stacked over the time of the run, with faults as vertical bands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from chaos.checker.engine import Row
from chaos.checker.reporting.figures import BINS, OUTCOMES, STEPS_PER_DECADE, Measurements
from chaos.trace.schema import ENDING

_WIDTH, _LEFT, _RIGHT = 1000, 132, 12
_LANE, _PLOT, _GAP = 24, 90, 26
#: Faults that suspend a process.
_PAUSED = ("stop", "pause", "hang")
#: Width of a character, in SVG units.
_CHARACTER = 6.5
#: Events that end a mastership or a leadership.
_ENDS = ("demoted", "follower", "candidate", "recover", "down")
LEGEND = (
    ("leader", "leader"),
    ("master_ready", "writable master"),
    ("candidate", "candidate"),
    ("follower", "follower"),
    ("down", "dead"),
    ("paused", "paused"),
    ("band", "a fault is in force"),
    ("violation", "violation"),
)


class ViolationMark(NamedTuple):
    """A violation: its time (ns, by the clock of the run), the id of the check, and a description."""

    mono: int
    check: str
    said: str


@dataclass(frozen=True, slots=True)
class _Scale:
    """Map times to x coordinates."""

    begin: int
    end: int

    def x(self, mono: object) -> float:
        span = max(1, self.end - self.begin)
        share = (mono - self.begin) / span if isinstance(mono, int) else 0.0
        return _LEFT + min(1.0, max(0.0, share)) * (_WIDTH - _LEFT - _RIGHT)

    def of_part(self, part: int) -> float:
        return _LEFT + part * (_WIDTH - _LEFT - _RIGHT) / BINS


def draw(figures: Measurements, marks: Sequence[ViolationMark] = ()) -> str:
    """Return the SVG, or an empty text if the run has no events. `marks` are drawn across all charts."""
    if figures.end <= figures.begin:
        return ""
    scale = _Scale(figures.begin, figures.end)
    parts: list[str] = []
    top = 24
    for node, events in _lanes(figures):
        parts += _lane(node, events, top, scale, figures.faults)
        top += _LANE
    if figures.roles:
        masters, lanes = _masters(figures, top, scale)
        parts += masters
        top += lanes * _LANE
    for plot in (_commits, _rates, _latencies):
        if drawn := plot(figures, top + _GAP, scale):
            parts += drawn
            top += _GAP + _PLOT
    bands = list(_bands(figures.faults, scale, top))
    axis = _axis(scale, top)
    body = "".join([*bands, *parts, *axis, *_violations(marks, scale, top)])
    size = f'viewBox="0 0 {_WIDTH} {top + (42 if marks else 26)}"'
    return (
        f'<svg class=plots {size} role=img aria-label="The run over time, also in words below">{body}</svg>'
    )


def _text(x: float, y: float, text: object, kind: str = "label", title: str = "") -> str:
    hint = f"<title>{escape(title)}</title>" if title else ""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(str(text))}{hint}</text>'


def _rect(x: float, y: float, width: float, height: float, kind: str, title: str = "") -> str:
    hint = f"<title>{escape(title)}</title>" if title else ""
    size = f'width="{max(0.5, width):.1f}" height="{height:.1f}"'
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" {size}>{hint}</rect>'


# -- faults and time ---------------------------------------------------------------------------------------


def _bands(faults: Sequence[Row], scale: _Scale, bottom: float) -> Iterator[str]:
    free = 0.0
    for row in faults:
        left, right = scale.x(row["begun"]), scale.x(row["ended"])
        name = f"{row['f']} {row['targets']}"
        yield _rect(left, 18, right - left, bottom - 18, "band", name)
        # If faults follow closely, only the tooltip of the band names them.
        if left >= free and left + _CHARACTER * len(name) < _WIDTH:
            free = left + _CHARACTER * len(name) + 4
            yield _text(left, 13, name, "fault", name)


def _violations(marks: Sequence[ViolationMark], scale: _Scale, bottom: float) -> Iterator[str]:
    """Yield a vertical line for each violation, labeled with the ids of the checks at that position."""
    by_position: dict[float, list[ViolationMark]] = {}
    for mark in marks:
        by_position.setdefault(round(scale.x(mark.mono)), []).append(mark)
    free = 0.0
    for x, marks_here in sorted(by_position.items()):
        tooltip = "\n".join(f"{mark.check}: {mark.said}" for mark in marks_here)
        yield (
            f'<line class=violation x1="{x:.1f}" x2="{x:.1f}" y1="18" y2="{bottom + 22:.1f}">'
            f"<title>{escape(tooltip)}</title></line>"
        )
        names = " ".join(sorted({mark.check for mark in marks_here}))
        if x >= free:
            free = x + _CHARACTER * len(names) + 8
            yield _text(x + 3, bottom + 34, names, "violated", tooltip)


def _axis(scale: _Scale, bottom: float) -> Iterator[str]:
    seconds = (scale.end - scale.begin) / 1e9
    step = next(step for step in _round_steps() if seconds / step <= 12)
    time = 0.0
    while time <= seconds:
        x = scale.x(scale.begin + int(time * 1e9))
        yield f'<line class=tick x1="{x:.1f}" x2="{x:.1f}" y1="18" y2="{bottom + 4:.1f}"/>'
        yield _text(x, bottom + 18, f"{time:g} s", "time")
        time += step


def _round_steps() -> Iterator[float]:
    """Yield 1, 2 and 5 times each power of ten, from 1e-6."""
    power = 1e-6
    while True:
        yield from (power, 2 * power, 5 * power)
        power *= 10


# -- the cluster ---------------------------------------------------------------------------------------------


def _lanes(figures: Measurements) -> Iterator[tuple[str, list[Row]]]:
    """Yield (node, events) in order of time. The events include the deaths of the node, which it cannot
    report itself."""
    for node in sorted({str(row["node"]) for row in figures.roles}):
        deaths: list[Row] = [
            {"node": node, "e": "down", "term": None, "mono": row["begun"]}
            for row in figures.faults
            if row["f"] in ENDING and node in str(row["targets"]).split(",")
        ]
        events = [row for row in figures.roles if row["node"] == node] + deaths
        yield node, sorted(events, key=lambda row: _int(row["mono"]))


def _lane(
    node: str, events: Sequence[Row], top: float, scale: _Scale, faults: Sequence[Row]
) -> Iterator[str]:
    yield _text(8, top + 16, node)
    for row, following in zip(events, [*events[1:], None], strict=True):
        left, right = scale.x(row["mono"]), scale.x(following["mono"] if following else scale.end)
        kind = "follower" if row["e"] in ("recover", "demoted") else str(row["e"])
        term = f"term {row['term']}" if row["term"] is not None else ""
        yield _rect(left, top, right - left, _LANE - 4, kind, f"{node}: {row['e']} {term}")
        if term and right - left > _CHARACTER * len(term) + 6:
            yield _text(left + 4, top + 14, term, f"in {kind}")
    for row in faults:
        if row["f"] in _PAUSED and node in str(row["targets"]).split(","):
            left, right = scale.x(row["begun"]), scale.x(row["ended"])
            yield _rect(left, top + 7, right - left, _LANE - 18, "paused", f"{node}: {row['f']}")


class Mastership(NamedTuple):
    """A period (ns) in which a node considered itself master or leader."""

    begin: int
    end: int
    node: str
    term: object


def masterships(figures: Measurements) -> list[Mastership]:
    """Return the periods in which a node was the writable master, or the leader in a run without brokers, in
    order of their starts.

    They can overlap: an isolated node remains master in its own view while others have elected a new one.
    """
    kind = _master_kind(figures)
    found: list[Mastership] = []
    for node, events in _lanes(figures):
        ends = [row for row in events if row["e"] in _ENDS or row["e"] == kind]
        for row, following in zip(ends, [*ends[1:], None], strict=True):
            if row["e"] == kind:
                end = figures.end if following is None else _int(following["mono"])
                found.append(Mastership(_int(row["mono"]), end, node, row["term"]))
    return sorted(found)


def _master_kind(figures: Measurements) -> str:
    return "master_ready" if any(row["e"] == "master_ready" for row in figures.roles) else "leader"


def _masters(figures: Measurements, top: float, scale: _Scale) -> tuple[list[str], int]:
    """Return the drawn masterships, each beside those that it overlaps, and the number of lanes."""
    kind = _master_kind(figures)
    drawn = [_text(8, top + 16, "master" if kind == "master_ready" else "leader")]
    ends: list[int] = []  # of the last mastership in each lane
    for one in masterships(figures):
        lane = next((number for number, end in enumerate(ends) if end <= one.begin), len(ends))
        ends[lane : lane + 1] = [one.end]
        left, right, y = scale.x(one.begin), scale.x(one.end), top + lane * _LANE
        drawn.append(_rect(left, y, right - left, _LANE - 4, kind, f"{one.node}, term {one.term}"))
        if right - left > _CHARACTER * len(one.node) + 6:
            drawn.append(_text(left + 4, y + 14, one.node, f"in {kind}"))
    return drawn, max(1, len(ends))


# -- curves --------------------------------------------------------------------------------------------------


def _frame(top: float, name: str, unit: str, most: str, least: str = "0") -> Iterator[str]:
    yield _rect(_LEFT, top, _WIDTH - _LEFT - _RIGHT, _PLOT, "frame")
    yield _text(8, top + 14, name)
    yield _text(8, top + 30, unit, "unit")
    yield _text(_LEFT - 6, top + 10, most, "value")
    yield _text(_LEFT - 6, top + _PLOT, least, "value")


def _line(points: Sequence[tuple[float, float]], kind: str, title: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline class="{kind}" points="{path}"><title>{escape(title)}</title></polyline>'


def _commits(figures: Measurements, top: float, scale: _Scale) -> list[str]:
    most = max((index for parts in figures.committed.values() for index in parts.values()), default=0)
    if not most:
        return []
    drawn = list(_frame(top, "committed", "index", f"{most:,}"))
    for number, (node, parts) in enumerate(sorted(figures.committed.items())):
        points = [
            (scale.of_part(part + 1), top + _PLOT * (1 - index / most))
            for part, index in sorted(parts.items())
        ]
        drawn.append(_line(points, f"curve node{number % 5}", node))
        x, y = points[-1]
        drawn.append(
            _text(min(x, _WIDTH - 40), max(top + 12, y - 4) + 12 * number, node, f"key node{number % 5}")
        )
    return drawn


def _rates(figures: Measurements, top: float, scale: _Scale) -> list[str]:
    """Return the chart of completed sends per second, by outcome."""
    seconds = (figures.end - figures.begin) / 1e9 / BINS
    most = max(max(counts) for counts in figures.ended.values())
    if not most:
        return []
    drawn = list(_frame(top, "rate", "sends/s", f"{most / seconds:,.0f}"))
    for outcome in OUTCOMES:
        counts = figures.ended[outcome]
        if any(counts):
            points = [
                (scale.of_part(part) + 2, top + _PLOT * (1 - count / most))
                for part, count in enumerate(counts)
            ]
            drawn.append(_line(points, f"curve {outcome}", outcome))
    return drawn


def _latencies(figures: Measurements, top: float, scale: _Scale) -> list[str]:
    """Return a heat map of send latencies on a logarithmic scale."""
    if not figures.spread:
        return []
    least = min(step for _, _, step, _ in figures.spread)
    steps = max(step for _, _, step, _ in figures.spread) - least + 1
    most: dict[str, int] = {}
    for outcome, _, _, n in figures.spread:
        most[outcome] = max(most.get(outcome, 0), n)
    drawn = list(_frame(top, "latency", "log scale", _duration(least + steps), _duration(least)))
    height, width = _PLOT / steps, scale.of_part(1) - scale.of_part(0)
    for outcome, part, step, n in figures.spread:
        y = top + _PLOT - (step - least + 1) * height
        opacity = 0.25 + 0.75 * (n / most[outcome]) ** 0.5
        drawn.append(
            f'<rect class="dot {outcome}" x="{scale.of_part(part):.1f}" y="{y:.1f}" width="{width:.1f}" '
            f'height="{height:.1f}" opacity="{opacity:.2f}"/>'
        )
    return drawn


def _duration(step: int) -> str:
    microseconds = 10 ** (step / STEPS_PER_DECADE)
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if microseconds >= size:
            return f"{microseconds / size:.3g} {unit}"
    return f"{microseconds:.3g} µs"


def _int(cell: object) -> int:
    return cell if isinstance(cell, int) else 0
