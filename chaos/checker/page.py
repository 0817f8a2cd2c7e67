"""The report's page: one HTML file that needs nothing else, neither network nor scripts."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from chaos.checker.figures import BINS, Figures
from chaos.checker.judge import Finding, RunResult, Verdict, line_of, sentence

_WIDTH, _LANE, _LEFT = 1000, 26, 90
_COLOURS = {
    Verdict.VALID: "#1a7f37",
    Verdict.INVALID: "#c62828",
    Verdict.UNKNOWN: "#b26a00",
    Verdict.ABSENT: "#777",
}
_ROLE_COLOURS = {
    "leader": "#7fb3e6",
    "master_ready": "#1f6fc2",
    "demoted": "#c9ced6",
    "follower": "#e3e6ea",
    "candidate": "#f4d58d",
    "recover": "#e3e6ea",
}
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1100px; padding: 0 1em; color:
  #1c1e21; }
h1 { font-size: 1.4em; } h2 { font-size: 1.15em; margin-top: 2em; } h3 { font-size: 1em; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
td, th { border-bottom: 1px solid #ddd; padding: 3px 8px; text-align: left; vertical-align: top; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
.verdict { color: #fff; padding: 1px 8px; border-radius: 3px; white-space: nowrap; }
.box { background: #f5f6f8; border: 1px solid #ddd; padding: .6em 1em; }
.absent td { color: #777; } code { font-size: 13px; }
svg { width: 100%; height: auto; background: #fff; border: 1px solid #ddd; }
"""
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
        "<!doctype html><html lang=en><meta charset=utf-8><title>dledger-check</title>"
        f"<style>{_STYLE}</style><h1>Consistency check</h1>{body or '<p>There was no run to check.</p>'}"
        f"<p>Checked in {seconds:.1f} s.</p></html>\n"
    )


def _run(result: RunResult, figures: Figures, say: Callable[[RunResult], str]) -> str:
    rows = "".join(_row(finding) for finding in result.findings)
    return (
        f"<section><h2>{_badge(result.verdict)} {escape(say(result))}</h2>"
        + _vacuity(result)
        + (f"<h3>Cluster</h3>{_strip(figures)}" if figures.acks else "")
        + _times(figures)
        + "<h3>Checks</h3><table><tr><th>check<th>claim<th>verdict<th>violations<th>checked<th>s</tr>"
        + f"{rows}</table>"
        + "".join(_witnesses(finding) for finding in result.findings if finding.witnesses)
        + "</section>"
    )


def _badge(verdict: Verdict) -> str:
    return f'<span class=verdict style="background:{_COLOURS[verdict]}">{escape(verdict)}</span>'


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


def _witnesses(finding: Finding) -> str:
    items = "".join(
        f"<li>{escape(sentence(finding.check, row))}"
        + (f" <code>{escape(at)}</code>" if (at := line_of(row)) else "")
        for row in finding.witnesses
    )
    return (
        f"<h3>{escape(finding.check.id)}: promised was that {escape(finding.check.title)}</h3>"
        f"<p>{finding.violations:,} times not so; {len(finding.witnesses)} of them:</p><ul>{items}</ul>"
    )


def _times(figures: Figures) -> str:
    rows = "".join(
        f"<tr><td>{row['fault']}<td>{escape(str(row['f']))}<td>{escape(str(row['targets']))}"
        f"<td class=n>{_ms(row['waited'])}</tr>"
        for row in figures.faults
    )
    latency = figures.latency
    said = (
        f"<p>Latency of {latency['n']} acknowledged sends: p50 {_ms(latency['p50'])}, "
        f"p95 {_ms(latency['p95'])}, p99 {_ms(latency['p99'])}, longest {_ms(latency['longest'])}.</p>"
        if latency
        else ""
    )
    head = "<table><tr><th>fault<th>what<th>target<th>until the next acknowledged send</tr>"
    return said + (f"{head}{rows}</table>" if rows else "")


def _ms(nanoseconds: object) -> str:
    return f"{nanoseconds / 1e6:,.2f} ms" if isinstance(nanoseconds, int) else "never"


def _strip(figures: Figures) -> str:
    """One lane a node: its role and term; faults as bands over all lanes; below, acknowledged sends."""
    nodes = sorted({str(row["node"]) for row in figures.roles})
    span = max(1, figures.end - figures.begin)
    height = _LANE * len(nodes) + 70

    def x(mono: object) -> float:
        at = (mono - figures.begin) / span if isinstance(mono, int) else 0.0
        return _LEFT + min(1.0, max(0.0, at)) * (_WIDTH - _LEFT - 10)

    parts = []
    for lane, node in enumerate(nodes):
        top = 5 + lane * _LANE
        parts.append(f'<text x="5" y="{top + 16}" font-size="13">{escape(node)}</text>')
        events = [row for row in figures.roles if row["node"] == node]
        for row, following in zip(events, [*events[1:], None], strict=True):
            left, right = x(row["mono"]), x(following["mono"] if following else figures.end)
            parts.append(
                f'<rect x="{left:.1f}" y="{top}" width="{max(0.5, right - left):.1f}" height="{_LANE - 5}" '
                f'fill="{_ROLE_COLOURS[str(row["e"])]}"><title>{escape(node)}: {row["e"]}, term {row["term"]}'
                "</title></rect>"
            )
    for row in figures.faults:
        left, right = x(row["begun"]), x(row["ended"])
        parts.append(
            f'<rect x="{left:.1f}" y="0" width="{max(1.0, right - left):.1f}" height="{height}" '
            f'fill="#c62828" opacity="0.25"><title>{escape(str(row["f"]))} {escape(str(row["targets"]))}'
            "</title></rect>"
        )
    top, most = _LANE * len(nodes) + 65, max(1, *figures.acks)
    step = (_WIDTH - _LEFT - 10) / BINS
    points = " ".join(f"{_LEFT + i * step:.1f},{top - 50 * n / most:.1f}" for i, n in enumerate(figures.acks))
    parts.append(f'<polyline points="{points}" fill="none" stroke="#1a7f37"/>')
    parts.append(f'<text x="5" y="{top}" font-size="13">acked/part</text>')
    return f'<svg viewBox="0 0 {_WIDTH} {height + 5}" role="img">{"".join(parts)}</svg>'
