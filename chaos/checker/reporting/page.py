"""The report's page: one HTML file that needs nothing else, neither network nor scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape

from chaos.checker.judge import Finding, RunResult, Verdict, broken, line_of, sentence
from chaos.checker.reporting.figures import Figures
from chaos.checker.reporting.plots import LEGEND, Mark, draw
from chaos.checker.reporting.style import STYLE
from chaos.checker.witness_times import MONO

#: In the head of every page: what is a report, and may be replaced by one.
MARK = "<title>dledger-check</title>"
#: For the style sheet.
_KINDS = {
    Verdict.VALID: "valid",
    Verdict.INVALID: "invalid",
    Verdict.UNKNOWN: "unknown",
    Verdict.ABSENT: "absent",
}
_OUTCOMES = (("ok", "acknowledged"), ("fail", "failed"), ("info", "of unknown outcome"))
_COUNTS = (
    ("lines", "lines"),
    ("ops", "operations"),
    ("oks", "acknowledged sends"),
    ("failed", "failed sends"),
    ("indeterminate", "sends of unknown outcome"),
    ("reads", "messages read"),
    ("faults", "faults"),
    ("effective", "faults that took effect"),
    ("leaders", "elections"),
    ("ready", "promotions"),
    ("dump", "entries in files of nodes"),
)


def render(
    results: list[RunResult],
    figures: dict[str, Figures],
    seconds: float,
    say: Callable[[RunResult], str],
) -> str:
    """The page. `say` gives the verdict of a run in a sentence."""
    body = "".join(_run(result, figures.get(result.run, Figures()), say) for result in results)
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width,initial-scale=1"><link rel=icon href="data:,">'
        f"{MARK}<style>{STYLE}</style><h1>Consistency check</h1>"
        f"{body or '<p>There was no run to check.</p>'}<p>Checked in {seconds:.1f} s.</p></html>\n"
    )


def _run(result: RunResult, figures: Figures, say: Callable[[RunResult], str]) -> str:
    return (
        f"<section><h2>{_badge(result.verdict)} {escape(say(result))}</h2>"
        + _vacuity(result)
        + "".join(_broken(finding) for finding in _by_weight(result) if not finding.warnings)
        + _plots(result, figures)
        + _times(figures)
        + _table(result)
        + "".join(_worth_knowing(finding) for finding in result.findings if finding.warnings)
        + "</section>"
    )


def _by_weight(result: RunResult) -> list[Finding]:
    """What broke a promise first, then what makes the verdict unknown."""
    return sorted(result.findings, key=lambda finding: finding.verdict is not Verdict.INVALID)


def _badge(verdict: Verdict) -> str:
    return f'<span class="verdict {_KINDS[verdict]}">{escape(verdict)}</span>'


def _table(result: RunResult) -> str:
    """What applies, and, folded away, what does not."""
    head = (
        "<table class=checks><tr><th>check<th>claim<th>verdict<th class=n>not so<th class=n>checked"
        "<th class=n>s</tr>"
    )
    applies = "".join(_row(finding) for finding in result.findings if finding.verdict is not Verdict.ABSENT)
    absent = [finding for finding in result.findings if finding.verdict is Verdict.ABSENT]
    rest = "".join(_row(finding) for finding in absent)
    return (
        f"<h3>Checks</h3>{head}{applies}</table>"
        f"<details><summary>{len(absent)} checks that are about nothing in this trace</summary>"
        f"{head}{rest}</table></details>"
    )


def _plots(result: RunResult, figures: Figures) -> str:
    drawn = draw(figures, list(_marks(result)))
    if not drawn:
        return ""
    keys = "".join(f'<span><i class="{kind}"></i>{escape(text)}</span>' for kind, text in LEGEND)
    outcomes = "".join(f'<span><i class="{kind}"></i>sends {text}</span>' for kind, text in _OUTCOMES)
    return f"<h3>The run over time</h3>{drawn}<p class=legend>{keys}{outcomes}</p>"


def _marks(result: RunResult) -> Iterator[Mark]:
    """Each witness of a broken promise whose time is known."""
    for finding in broken(result):
        for row in finding.witnesses:
            if isinstance(mono := row.get(MONO), int):
                yield Mark(mono, finding.check.id, sentence(finding.check, row))


def _vacuity(result: RunResult) -> str:
    counts = ", ".join(f"{result.census[name]:,} {text}" for name, text in _COUNTS)
    reasons = "".join(f"<li>{escape(reason)}" for reason in result.reasons)
    drained = "reached" if result.census["drained"] else "NOT reached"
    return (
        f"<div class=box><b>What this run can prove.</b> {counts}; the end of the last reads was {drained}."
        + (f"<ul>{reasons}</ul>" if reasons else "")
        + "</div>"
    )


def _row(finding: Finding) -> str:
    absent = " class=absent" if finding.verdict is Verdict.ABSENT else ""
    note = " (warning)" if finding.warnings else ""
    return (
        f"<tr{absent}><td>{escape(finding.check.id)}<td>{escape(finding.check.title)}"
        f"<td>{_badge(finding.verdict)}{note}<td class=n>{finding.violations:,}"
        f"<td class=n>{finding.population:,}<td class=n>{finding.seconds:.1f}</tr>"
    )


def _broken(finding: Finding) -> str:
    if not finding.witnesses:
        return ""
    return (
        f"<h3>{escape(finding.check.id)}: promised was that {escape(finding.check.title)}</h3>"
        f"<p>{_how_often(finding)}:</p>{_witnesses(finding)}"
    )


def _worth_knowing(finding: Finding) -> str:
    """A warning, folded away."""
    return (
        f"<details><summary>{escape(finding.check.id)}, a warning: it is better that "
        f"{escape(finding.check.title)}; {_how_often(finding)}</summary>{_witnesses(finding)}</details>"
    )


def _how_often(finding: Finding) -> str:
    shown = "" if len(finding.witnesses) == finding.violations else f", {len(finding.witnesses)} of them here"
    times = "once" if finding.violations == 1 else f"{finding.violations:,} times"
    return f"{times} not so{shown}"


def _witnesses(finding: Finding) -> str:
    items = "".join(
        f"<li>{escape(sentence(finding.check, row))}"
        + (f" <code>{escape(at)}</code>" if (at := line_of(row)) else "")
        for row in finding.witnesses
    )
    return f"<ul class=witnesses>{items}</ul>"


def _times(figures: Figures) -> str:
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
    said = (
        f"<p>Latency of {latency['n']:,} acknowledged sends: p50 {_ms(latency['p50'])}, "
        f"p95 {_ms(latency['p95'])}, p99 {_ms(latency['p99'])}, longest {_ms(latency['longest'])}.</p>"
        if latency
        else ""
    )
    faults = (
        "<h3>Recovery</h3><table class=recovery><tr><th>fault<th>what<th>target<th class=n>at"
        "<th class=n>lasted<th class=n>until what was sent after it was acknowledged"
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
        "<h3>Given again, and why</h3><table class=repeats><tr><th>group<th>since it was given the message"
        f"<th class=n>messages</tr>{again}</table>"
    )
    return said + (faults if rows else "") + (elections if promotions else "") + (repeats if again else "")


def _seconds(until: object, since: object) -> str:
    return f"{(until - since) / 1e9:.1f} s" if isinstance(until, int) and isinstance(since, int) else ""


def _ms(nanoseconds: object) -> str:
    return f"{nanoseconds / 1e6:,.2f} ms" if isinstance(nanoseconds, int) else "never"
