"""The HTML page of the report: one self-contained file without scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape

from chaos.checker.judge import CheckVerdict, Finding, RunJudgment, broken, line_of, sentence
from chaos.checker.reporting.chart import LEGEND, ViolationMark, draw, masterships
from chaos.checker.reporting.figures import Measurements
from chaos.checker.witness_times import MONO

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
    return (
        f"<h3>The run over time</h3><div class=wide>{drawn}</div><p class=legend>{keys}{outcomes}</p>"
        f"{_in_words(figures)}"
    )


def _in_words(figures: Measurements) -> str:
    """Return the masterships and faults as a collapsed table, for readers who cannot see the chart."""
    events: list[tuple[int, object, str]] = [
        (one.begin, one.end, f"{one.node} is master or leader (term {one.term})")
        for one in masterships(figures)
    ]
    for row in figures.faults:
        if isinstance(begun := row["begun"], int):
            events.append((begun, row["ended"], f"fault: {row['f']} {row['targets']}"))
    rows = "".join(
        f"<tr><td class=n>{_seconds(begin, figures.begin)}<td class=n>{_seconds(end, figures.begin)}"
        f"<td>{escape(text)}</tr>"
        for begin, end, text in sorted(events, key=lambda event: event[0])
    )
    return (
        "<details><summary>Masters and faults in words</summary>"
        f"<table class=words><tr><th class=n>from<th class=n>to<th>what</tr>{rows}</table></details>"
        if rows
        else ""
    )


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
    return f"{max(0, until - since) / 1e9:.1f} s" if isinstance(until, int) and isinstance(since, int) else ""


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
svg { width: 100%; height: auto; } .wide { overflow-x: auto; }
@media (max-width: 700px) { body { margin: 1em auto; }
  h2, li, .box { overflow-wrap: anywhere; } code, th.n { white-space: normal; }
  svg { min-width: 700px; } table { display: block; overflow-x: auto; }
  .checks td:nth-child(n+4), .checks th:nth-child(n+4) { display: none; } }
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
