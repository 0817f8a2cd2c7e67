"""Validity of a run as evidence: V1, V3, V4. `chaos.checker.completeness` checks first whether the trace is
complete."""

from __future__ import annotations

from chaos.checker.checks.registry import Part, void

#: Minimum number of acknowledged sends before the first fault, and after the last.
MIN_SENDS = 5
MAX_INFO_PERCENT = 50

#: Runs with counts of their sends, and the terms in which sends were acknowledged.
_SENT = """
SELECT r.run, r.aim, r.faults, r.history, coalesce(sum(s.n), 0) AS n, coalesce(sum(s.oks), 0) AS oks,
  coalesce(sum(s.infos), 0) AS info,
  coalesce(sum(s.before), 0) AS before, coalesce(sum(s.during), 0) AS during,
  coalesce(sum(s.after), 0) AS after,
  min(s.term_min) AS term_min, max(s.term_max) AS term_max
FROM runs r LEFT JOIN sent_logs s ON s.run = r.run
GROUP BY r.run, r.aim, r.faults, r.history
"""

CHECKS = (
    void(
        "V1",
        "enough sends were acknowledged before, during, and after the faults",
        "lines",
        "acknowledged sends: {before} before the first fault, {during} in between, {after} after the last",
        Part(
            _SENT,
            f"CASE WHEN history IS NOT NULL THEN oks < {MIN_SENDS} "
            f"ELSE before < {MIN_SENDS} OR after < {MIN_SENDS} OR (faults > 1 AND during < 1) END",
            "before, during, after, faults",
            few=True,
        ),
    ),
    void(
        "V3",
        "most operations have a known outcome",
        "lines",
        "{info} of {n} sends have no known outcome",
        Part(_SENT, f"n > 0 AND 100 * info >= {MAX_INFO_PERCENT} * n", "n, info", few=True),
    ),
    void(
        "V4",
        "sends were acknowledged in several terms, if the scenario targets leaders",
        "acked_terms",
        "sends were acknowledged in {n} term(s) only",
        Part(
            _SENT,
            "aim = 'leader' AND (term_min IS NULL OR term_min = term_max)",
            "CASE WHEN term_min IS NULL THEN 0 ELSE 1 END AS n",
            few=True,
        ),
    ),
)
