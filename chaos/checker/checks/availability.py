"""Availability: A5, A6, A12, and V5. Recovery times, A1-A4, are measurements: see `figures.py`."""

from __future__ import annotations

from chaos.checker.checks.registry import Check, Part, hard, void
from chaos.checker.checks.sources import SCHEDULING_RECORDED, STARVED, UNRECORDED
from chaos.checker.needs import EVIDENT, NODES, WHOLE, Need

#: Time after healing within which a send must be acknowledged; ns.
RECOVERY_NS = 60_000_000_000

#: Longest pause between two sends in which clients count as trying; ns.
_PAUSE_NS = 5_000_000_000

#: Sends after healing, up to the first acknowledgment of one, each with the time since an earlier one ended.
_TRIES = """
SELECT *, inv - coalesce(max(done) OVER (PARTITION BY run ORDER BY inv, op
  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), healed) AS pause
FROM (
  SELECT s.run, s.op, s.inv, r.healed, f.acked, least(coalesce(s.completed, s.inv), f.acked) AS done
  FROM sends s JOIN runs r ON r.run = s.run AND s.inv > r.healed
  JOIN (SELECT run, coalesce(min(ret_healed), 9223372036854775807) AS acked FROM sent_logs GROUP BY run) f
    ON f.run = s.run AND s.inv < f.acked
)
"""

#: Runs in which no send was acknowledged in time after healing. `tried`: how long clients tried until then
#: while the machine ran. `recorded`: whether the trace has the times in which it did not.
_LATE = f"""
SELECT t.run, t.n, t.waited, e.run IS NOT NULL AS recorded, t.until - t.healed - t.idle
    - coalesce(sum(CASE WHEN x.run IS NOT NULL THEN least(x.until, t.until) - greatest(x.since, t.healed)
      END), 0) AS tried
FROM (
  SELECT run, count(*) AS n, max(healed) AS healed, max(done) AS until,
    sum(CASE WHEN pause > {_PAUSE_NS} THEN pause ELSE 0 END) AS idle,
    CASE WHEN max(acked) < 9223372036854775807 THEN max(acked) - max(healed) END AS waited
  FROM ({_TRIES}) GROUP BY run
) t
LEFT JOIN ({SCHEDULING_RECORDED}) e ON e.run = t.run
LEFT JOIN ({STARVED}) x ON x.run = t.run AND x.since < t.until AND x.until > t.healed
WHERE coalesce(t.waited, {RECOVERY_NS} + 1) > {RECOVERY_NS}
GROUP BY t.run, t.n, t.waited, e.run, t.until, t.healed, t.idle
"""
_PROVES = f"recorded AND tried > {RECOVERY_NS}"

CHECKS: tuple[Check, ...] = (
    hard(
        "A5",
        f"after all faults are healed, sends are acknowledged within {RECOVERY_NS // 1_000_000_000} s",
        "healed sends",
        "{n} sends started after healing; {waited}",
        Part(
            _LATE,
            _PROVES,
            "n, coalesce('the first acknowledgment arrived ' || CAST(waited AS STRING) || ' ns later', "
            "'none was acknowledged') AS waited",
        ),
        needs=(*WHOLE, Need.CLOCKS),
        clear_needs=(*WHOLE, Need.FAULTS),
    ),
    hard(
        "A6",
        "no node logs a panic, a failed assertion, or an unhandled exception",
        "lines",
        "{node}: {text}",
        Part("meta", "e = 'log_error'", "node, text, src, inc, seq", few=True),
        needs=EVIDENT,
        clear_needs=NODES,
    ),
    hard(
        "A12",
        "every client that closes ends its close",
        "lines",
        "client {node} had not closed after {size} ns",
        Part("meta", "e = 'unclosed'", "node, size, src, inc, seq", few=True),
        needs=EVIDENT,
    ),
    void(
        "V5",
        "after healing, clients tried to send until they succeeded, and the machine ran",
        "healed sends",
        "{what}",
        Part(
            _LATE,
            f"NOT ({_PROVES})",
            f"'sends were tried for only ' || CAST(tried AS STRING) || ' ns' || {UNRECORDED} AS what",
        ),
    ),
)
