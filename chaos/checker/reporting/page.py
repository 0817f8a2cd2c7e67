"""The HTML page of the report: one self-contained file without scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from chaos.checker.engine import Row
from chaos.checker.judge import CheckVerdict, Finding, RunJudgment, broken, line_of, sentence
from chaos.checker.reporting.figures import BINS, OUTCOMES, STEPS_PER_DECADE, Measurements
from chaos.checker.witness_times import MONO
from chaos.trace.schema import ENDING

#: Marks the page as a report, which may be replaced by another report.
MARK = "<title>dledger-check</title>"
#: CSS classes.
_KINDS = {
    CheckVerdict.VALID: "valid",
    CheckVerdict.INVALID: "invalid",
    CheckVerdict.UNKNOWN: "unknown",
    CheckVerdict.ABSENT: "absent",
}
_OUTCOMES = (("ok", "acknowledged"), ("fail", "failed"), ("info", "of unknown outcome"))
_COUNTS = (
    ("lines", "lines"),
    ("ops", "operations"),
    ("oks", "acknowledged sends"),
    ("failed", "failed sends"),
    ("indeterminate", "sends of unknown outcome"),
    ("reads", "delivered messages"),
    ("faults", "faults"),
    ("effective", "effective faults"),
    ("leaders", "elections"),
    ("ready", "promotions"),
    ("dump", "entries in node files"),
)


def render(
    results: list[RunJudgment],
    figures: dict[str, Measurements],
    seconds: float,
    describe: Callable[[RunJudgment], str],
) -> str:
    """Return the page. `describe` returns the verdict of a run as a sentence."""
    body = "".join(_run(result, figures.get(result.run, Measurements()), describe) for result in results)
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width,initial-scale=1"><link rel=icon href="data:,">'
        f"{MARK}<style>{STYLE}</style><h1>Consistency check</h1>"
        f"{body or '<p>There was no run to check.</p>'}<p>Checked in {seconds:.1f} s.</p></html>\n"
    )


def _run(result: RunJudgment, figures: Measurements, describe: Callable[[RunJudgment], str]) -> str:
    return (
        f"<section><h2>{_badge(result.verdict)} {escape(describe(result))}</h2>"
        + _evidence(result)
        + "".join(_violation(finding) for finding in _by_weight(result) if not finding.warnings)
        + _plots(result, figures)
        + _times(figures)
        + _table(result)
        + "".join(_warning(finding) for finding in result.findings if finding.warnings)
        + "</section>"
    )


def _by_weight(result: RunJudgment) -> list[Finding]:
    """Sort the findings: violations first, then those that make the verdict unknown."""
    return sorted(result.findings, key=lambda finding: finding.verdict is not CheckVerdict.INVALID)


def _badge(verdict: CheckVerdict) -> str:
    return f'<span class="verdict {_KINDS[verdict]}">{escape(verdict)}</span>'


def _table(result: RunJudgment) -> str:
    """Return the table of checks. Checks that do not apply are collapsed."""
    head = (
        "<table class=checks><tr><th>check<th>claim<th>verdict<th class=n>violations<th class=n>checked"
        "<th class=n>s</tr>"
    )
    applies = "".join(
        _row(finding) for finding in result.findings if finding.verdict is not CheckVerdict.ABSENT
    )
    absent = [finding for finding in result.findings if finding.verdict is CheckVerdict.ABSENT]
    rest = "".join(_row(finding) for finding in absent)
    return (
        f"<h3>Checks</h3>{head}{applies}</table>"
        f"<details><summary>{len(absent)} checks without events in this trace</summary>"
        f"{head}{rest}</table></details>"
    )


def _plots(result: RunJudgment, figures: Measurements) -> str:
    drawn = draw(figures, list(_marks(result)))
    if not drawn:
        return ""
    keys = "".join(f'<span><i class="{kind}"></i>{escape(text)}</span>' for kind, text in LEGEND)
    outcomes = "".join(f'<span><i class="{kind}"></i>sends {text}</span>' for kind, text in _OUTCOMES)
    return f"<h3>The run over time</h3>{drawn}<p class=legend>{keys}{outcomes}</p>"


def _marks(result: RunJudgment) -> Iterator[ViolationMark]:
    """Return a mark for each witness of a violation whose time is known."""
    for finding in broken(result):
        for row in finding.witnesses:
            if isinstance(mono := row.get(MONO), int):
                yield ViolationMark(mono, finding.check.id, sentence(finding.check, row))


def _evidence(result: RunJudgment) -> str:
    counts = ", ".join(f"{result.census[name]:,} {text}" for name, text in _COUNTS)
    reasons = "".join(f"<li>{escape(reason)}" for reason in result.reasons)
    drained = "reached" if result.census["drained"] else "NOT reached"
    return (
        f"<div class=box><b>Evidence of this run.</b> {counts}; the end of the final reads was {drained}."
        + (f"<ul>{reasons}</ul>" if reasons else "")
        + "</div>"
    )


def _row(finding: Finding) -> str:
    absent = " class=absent" if finding.verdict is CheckVerdict.ABSENT else ""
    note = " (warning)" if finding.warnings else ""
    return (
        f"<tr{absent}><td>{escape(finding.check.id)}<td>{escape(finding.check.title)}"
        f"<td>{_badge(finding.verdict)}{note}<td class=n>{finding.violations:,}"
        f"<td class=n>{finding.population:,}<td class=n>{finding.seconds:.1f}</tr>"
    )


def _violation(finding: Finding) -> str:
    if not finding.witnesses:
        return ""
    state = "violated" if finding.verdict is CheckVerdict.INVALID else "not met"
    return (
        f"<h3>{escape(finding.check.id)} {state}: {escape(finding.check.title)}</h3>"
        f"<p>{_violation_count(finding)}:</p>{_witnesses(finding)}"
    )


def _warning(finding: Finding) -> str:
    """Return a warning, collapsed."""
    return (
        f"<details><summary>{escape(finding.check.id)}, warning: {escape(finding.check.title)}; "
        f"{_violation_count(finding)}</summary>{_witnesses(finding)}</details>"
    )


def _violation_count(finding: Finding) -> str:
    shown = "" if len(finding.witnesses) == finding.violations else f", {len(finding.witnesses)} shown"
    times = "1 violation" if finding.violations == 1 else f"{finding.violations:,} violations"
    return f"{times}{shown}"


def _witnesses(finding: Finding) -> str:
    items = "".join(
        f"<li>{escape(sentence(finding.check, row))}"
        + (f" <code>{escape(location)}</code>" if (location := line_of(row)) else "")
        for row in finding.witnesses
    )
    return f"<ul class=witnesses>{items}</ul>"


def _times(figures: Measurements) -> str:
    rows = "".join(
        f"<tr><td>{row['fault']}<td>{escape(str(row['f']))}<td>{escape(str(row['targets']))}"
        f"<td class=n>{_seconds(row['begun'], figures.begin)}"
        f"<td class=n>{_seconds(row['ended'], row['begun'])}"
        f"<td class=n>{_ms(row['waited'])}<td class=n>{_ms(row['silence'])}</tr>"
        for row in figures.faults
    )
    promotions = "".join(
        f"<tr><td>{escape(str(row['node']))}<td class=n>{row['term']}<td class=n>{_ms(row['waited'])}</tr>"
        for row in figures.promotions
    )
    latency = figures.latency
    latencies = (
        f"<p>Latency of {latency['n']:,} acknowledged sends: p50 {_ms(latency['p50'])}, "
        f"p95 {_ms(latency['p95'])}, p99 {_ms(latency['p99'])}, longest {_ms(latency['longest'])}.</p>"
        if latency
        else ""
    )
    faults = (
        "<h3>Recovery</h3><table class=recovery><tr><th>fault<th>what<th>target<th class=n>at"
        "<th class=n>duration<th class=n>until a later send was acknowledged"
        f"<th class=n>longest silence</tr>{rows}</table>"
    )
    elections = (
        "<h3>Promotions</h3><table><tr><th>node<th class=n>term<th class=n>from elected to writable</tr>"
        f"{promotions}</table>"
    )
    again = "".join(
        f"<tr><td>{escape(str(row['grp']))}<td>{escape(str(row['cause']))}<td class=n>{row['n']:,}</tr>"
        for row in figures.repeated
    )
    repeats = (
        "<h3>Redeliveries</h3><table class=repeats><tr><th>group<th>since the previous delivery"
        f"<th class=n>messages</tr>{again}</table>"
    )
    return (
        latencies + (faults if rows else "") + (elections if promotions else "") + (repeats if again else "")
    )


def _seconds(until: object, since: object) -> str:
    return f"{(until - since) / 1e9:.1f} s" if isinstance(until, int) and isinstance(since, int) else ""


def _ms(nanoseconds: object) -> str:
    return f"{nanoseconds / 1e6:,.2f} ms" if isinstance(nanoseconds, int) else "never"


STYLE = """
:root { color-scheme: light dark; --text: #1c1e21; --quiet: #5f6670; --ground: #fff; --box: #f5f6f8; --rule:
  #d9dce1;
  --valid: #1a7f37; --invalid: #c62828; --unknown: #9a5b00; --absent: #6b7280;
  --leader: #9cc4ec; --master: #1f6fc2; --candidate: #f0c95e; --follower: #e3e6ea; --down: #6b7280;
  --band: #c62828; --on-master: #fff; --paused: #d9480f; --node0: #1f6fc2; --node1: #b26a00; --node2: #8540b5;
  --on-leader: #10263c; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e8eb; --quiet: #9aa3ad; --ground: #16181c; --box:
  #1f2228;
  --rule: #383d45; --valid: #3fb45f; --invalid: #f0625d; --unknown: #e0a03a; --absent: #8b949e;
  --leader: #2f5579; --master: #4f9ff0; --candidate: #8a6d1a; --follower: #2a2f37; --down: #08090b;
  --band: #f0625d; --on-master: #08192b; --paused: #ff8a4c; --node0: #6cb6ff; --node1: #e0a03a; --node2:
  #c49bf0;
  --on-leader: #dbe9f7; } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1100px; padding: 0 1em;
  color: var(--text); background: var(--ground); }
h1 { font-size: 1.4em; } h2 { font-size: 1.2em; margin-top: 2em; line-height: 1.4; }
h3 { font-size: 1.05em; margin: 1.6em 0 .5em; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
td, th { border-bottom: 1px solid var(--rule); padding: 3px 8px; text-align: left; vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.verdict { border: 1px solid currentColor; padding: 0 7px; border-radius: 3px; white-space: nowrap;
  font-size: 13px; }
.verdict.valid { color: var(--valid); } .verdict.invalid { color: var(--ground); background: var(--invalid);
  border-color: var(--invalid); } .verdict.unknown { color: var(--unknown); } .verdict.absent { color:
    var(--absent);
  border-color: transparent; padding: 0; }
.box { background: var(--box); border: 1px solid var(--rule); border-radius: 4px; padding: .6em 1em; }
.absent td { color: var(--quiet); } code { font-size: 13px; color: var(--quiet); white-space: nowrap; }
details summary { cursor: pointer; color: var(--quiet); margin: .8em 0; }
.legend { color: var(--quiet); font-size: 13px; } .legend span { margin-right: 1.2em; white-space: nowrap; }
.legend i { display: inline-block; width: 1em; height: .8em; margin-right: .4em; border: 1px solid
  var(--rule); }
svg { width: 100%; height: auto; }
svg text { font: 12px system-ui, sans-serif; fill: var(--text); }
svg .unit, svg .time, svg .value { fill: var(--quiet); font-size: 11px; }
svg .time { text-anchor: middle; } svg .value { text-anchor: end; }
svg .fault { fill: var(--band); font-size: 11px; }
.frame { fill: none; stroke: var(--rule); } .tick { stroke: var(--rule); stroke-dasharray: 1 3; }
.leader { fill: var(--leader); background: var(--leader); } .follower { fill: var(--follower);
  background: var(--follower); } .candidate { fill: var(--candidate); background: var(--candidate); }
.master_ready { fill: var(--master); background: var(--master); } .down { fill: var(--down); background:
  var(--down); }
.paused { fill: var(--paused); background: var(--paused); }
.band { fill: var(--band); opacity: .14; } .legend .band { background: var(--band); opacity: .3; }
line.violation { stroke: var(--invalid); stroke-width: 1.5; }
.legend .violation { background: var(--invalid); }
svg text.violated { fill: var(--invalid); font-size: 11px; font-weight: 600; }
svg text.in { font-size: 11px; } svg text.in.master_ready { fill: var(--on-master); }
svg text.in.leader { fill: var(--on-leader); } svg text.in.follower, svg text.in.candidate { fill:
  var(--text); }
.curve { fill: none; stroke-width: 1.5; }
.curve.ok { stroke: var(--valid); } .curve.fail { stroke: var(--invalid); } .curve.info { stroke:
  var(--unknown); }
.dot.ok { fill: var(--valid); } .dot.fail { fill: var(--invalid); } .dot.info { fill: var(--unknown); }
.legend .ok { background: var(--valid); } .legend .fail { background: var(--invalid); }
.legend .info { background: var(--unknown); }
.curve.node0 { stroke: var(--node0); } .curve.node1 { stroke: var(--node1); } .curve.node2 { stroke:
  var(--node2); }
.curve.node3 { stroke: var(--valid); } .curve.node4 { stroke: var(--invalid); }
svg text.key.node0 { fill: var(--node0); } svg text.key.node1 { fill: var(--node1); }
svg text.key.node2 { fill: var(--node2); } svg text.key.node3 { fill: var(--valid); }
svg text.key.node4 { fill: var(--invalid); }
"""


# Charts of the report, as SVG: stacked over the time of the run, with faults as vertical bands.

_WIDTH, _LEFT, _RIGHT = 1000, 132, 12
_LANE, _PLOT, _GAP = 24, 90, 26
#: Faults that suspend a process.
_PAUSED = ("stop", "pause", "hang")
#: Width of a character, in SVG units.
_CHARACTER = 6.5
#: Events that end a reign of a master or a leadership.
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


class _Reign(NamedTuple):
    """A period in which a node considered itself master or leader."""

    begin: int
    end: int
    node: str
    term: object


def _reigns(figures: Measurements, kind: str) -> list[_Reign]:
    """Return the reigns in order of their starts. A reign ends with an event of its node or the next reign:
    an isolated node remains master in its own view while others already elected a new one.
    """
    found: list[_Reign] = []
    for node, events in _lanes(figures):
        ends = [row for row in events if row["e"] in _ENDS or row["e"] == kind]
        for row, following in zip(ends, [*ends[1:], None], strict=True):
            if row["e"] == kind:
                end = figures.end if following is None else _int(following["mono"])
                found.append(_Reign(_int(row["mono"]), end, node, row["term"]))
    found.sort(key=lambda reign: reign.begin)
    later = [*(reign.begin for reign in found[1:]), figures.end]
    return [reign._replace(end=min(reign.end, end)) for reign, end in zip(found, later, strict=True)]


def _masters(figures: Measurements, top: float, scale: _Scale) -> Iterator[str]:
    """Yield the periods in which a node was the writable master, or the leader in a run without brokers."""
    kind = "master_ready" if any(row["e"] == "master_ready" for row in figures.roles) else "leader"
    yield _text(8, top + 16, "master" if kind == "master_ready" else "leader")
    for reign in _reigns(figures, kind):
        left, right = scale.x(reign.begin), scale.x(reign.end)
        yield _rect(left, top, right - left, _LANE - 4, kind, f"{reign.node}, term {reign.term}")
        if right - left > _CHARACTER * len(reign.node) + 6:
            yield _text(left + 4, top + 14, reign.node, f"in {kind}")


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
