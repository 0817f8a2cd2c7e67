"""The plots of the report, as SVG: everything over the time of the run, one below the other, faults as
bands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from chaos.checker.engine import Row
from chaos.checker.reporting.figures import BINS, OUTCOMES, STEPS_PER_DECADE, Figures
from chaos.trace.schema import ENDING

_WIDTH, _LEFT, _RIGHT = 1000, 132, 12
_LANE, _PLOT, _GAP = 24, 90, 26
#: Faults of a process during which it does nothing.
_PAUSED = ("stop", "pause", "hang")
#: Characters that fit into so many units of width.
_CHARACTER = 6.5
#: Ends of being master, and of being leader.
_ENDS = ("demoted", "follower", "candidate", "recover", "down")
LEGEND = (
    ("leader", "leader"),
    ("master_ready", "writable master"),
    ("candidate", "candidate"),
    ("follower", "follower"),
    ("down", "dead"),
    ("paused", "paused"),
    ("band", "a fault is in force"),
    ("violation", "a promise was broken"),
)


class Mark(NamedTuple):
    """A broken promise: when (ns, by the clock of the run), which check found it, what happened."""

    mono: int
    check: str
    said: str


@dataclass(frozen=True, slots=True)
class _Scale:
    """From times to places."""

    begin: int
    end: int

    def x(self, mono: object) -> float:
        span = max(1, self.end - self.begin)
        share = (mono - self.begin) / span if isinstance(mono, int) else 0.0
        return _LEFT + min(1.0, max(0.0, share)) * (_WIDTH - _LEFT - _RIGHT)

    def of_part(self, part: int) -> float:
        return _LEFT + part * (_WIDTH - _LEFT - _RIGHT) / BINS


def draw(figures: Figures, marks: Sequence[Mark] = ()) -> str:
    """The SVG; empty if nothing happened. `marks`: what is to be seen across all plots."""
    if figures.end <= figures.begin:
        return ""
    scale = _Scale(figures.begin, figures.end)
    parts: list[str] = []
    top = 24
    for node, events in _lanes(figures):
        parts += _lane(node, events, top, scale, figures.faults)
        top += _LANE
    if figures.roles:
        parts += _masters(figures, top, scale)
        top += _LANE
    for plot in (_commits, _rates, _latencies):
        if drawn := plot(figures, top + _GAP, scale):
            parts += drawn
            top += _GAP + _PLOT
    bands = list(_bands(figures.faults, scale, top))
    axis = _axis(scale, top)
    body = "".join([*bands, *parts, *axis, *_violations(marks, scale, top)])
    size = f'viewBox="0 0 {_WIDTH} {top + (42 if marks else 26)}"'
    return f'<svg class=plots {size} role=img aria-label="The run over time">{body}</svg>'


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
        # Where many follow each other, the hint of a band has to do.
        if left >= free and left + _CHARACTER * len(name) < _WIDTH:
            free = left + _CHARACTER * len(name) + 4
            yield _text(left, 13, name, "fault", name)


def _violations(marks: Sequence[Mark], scale: _Scale, bottom: float) -> Iterator[str]:
    """A line across everything, with the checks below; those of one place share it."""
    at: dict[float, list[Mark]] = {}
    for mark in marks:
        at.setdefault(round(scale.x(mark.mono)), []).append(mark)
    free = 0.0
    for x, here in sorted(at.items()):
        said = "\n".join(f"{mark.check}: {mark.said}" for mark in here)
        yield (
            f'<line class=violation x1="{x:.1f}" x2="{x:.1f}" y1="18" y2="{bottom + 22:.1f}">'
            f"<title>{escape(said)}</title></line>"
        )
        names = " ".join(sorted({mark.check for mark in here}))
        if x >= free:
            free = x + _CHARACTER * len(names) + 8
            yield _text(x + 3, bottom + 34, names, "violated", said)


def _axis(scale: _Scale, bottom: float) -> Iterator[str]:
    seconds = (scale.end - scale.begin) / 1e9
    step = next(step for step in _round_steps() if seconds / step <= 12)
    at = 0.0
    while at <= seconds:
        x = scale.x(scale.begin + int(at * 1e9))
        yield f'<line class=tick x1="{x:.1f}" x2="{x:.1f}" y1="18" y2="{bottom + 4:.1f}"/>'
        yield _text(x, bottom + 18, f"{at:g} s", "time")
        at += step


def _round_steps() -> Iterator[float]:
    """..., 0.1, 0.2, 0.5, 1, 2, 5, ..."""
    power = 1e-6
    while True:
        yield from (power, 2 * power, 5 * power)
        power *= 10


# -- the cluster ---------------------------------------------------------------------------------------------


def _lanes(figures: Figures) -> Iterator[tuple[str, list[Row]]]:
    """(node, what became of it) in the order of time; with its deaths, which it could not tell of itself."""
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


def _masters(figures: Figures, top: float, scale: _Scale) -> Iterator[str]:
    """Who may be written to: from its event to the one that ends it."""
    begin = "master_ready" if any(row["e"] == "master_ready" for row in figures.roles) else "leader"
    yield _text(8, top + 16, "master" if begin == "master_ready" else "leader")
    for node, events in _lanes(figures):
        since: Row | None = None
        for row in [*events, {"e": "down", "mono": figures.end, "term": None}]:
            if row["e"] == begin:
                since = row
            elif row["e"] in _ENDS and since is not None:
                left, right = scale.x(since["mono"]), scale.x(row["mono"])
                title = f"{node}, term {since['term']}"
                yield _rect(left, top, right - left, _LANE - 4, begin, title)
                if right - left > _CHARACTER * len(node) + 6:
                    yield _text(left + 4, top + 14, node, f"in {begin}")
                since = None


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


def _commits(figures: Figures, top: float, scale: _Scale) -> list[str]:
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


def _rates(figures: Figures, top: float, scale: _Scale) -> list[str]:
    """Sends that ended, by outcome, in events per second."""
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


def _latencies(figures: Figures, top: float, scale: _Scale) -> list[str]:
    """How many sends took how long: the darker, the more; the scale is logarithmic."""
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
