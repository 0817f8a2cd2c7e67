"""Is everything in the trace that a verdict needs? One stage, before all other checks: W1-W11, V2.

Each check here decides one need of `chaos.checker.needs`, and nothing else decides it. They are planned and
counted like all checks; the judge looks at them first.
"""

from __future__ import annotations

from chaos.checker.checks.registry import Check, Part, void
from chaos.trace.schema import ENDING

#: Of one writer; a number above that is none.
_MOST_LINES = 1 << 30

_IN_TURN = """
SELECT run, proc, op, f, src, inc, seq, inv, completed, invokes, completions, row_number() OVER w AS n,
  lag(completed) OVER w AS before,
  lag(outcome) OVER w AS outcome_before
FROM ops WINDOW w AS (PARTITION BY run, proc ORDER BY inv, op)
"""

_SENT_IDS = """
SELECT run, mid, min(op) AS op, max(op) AS op_last, min(digest) AS digest, max(digest) AS digest_last,
  min(i) AS i, max(i) AS i_last
FROM sends GROUP BY run, mid
"""

_CLOCKS = """
SELECT run, src, inc, seq, mono, lag(mono) OVER (PARTITION BY run, src, inc ORDER BY seq) AS before
FROM events WHERE ev NOT IN ('corrupt', 'dump', 'cq')
"""

_BOOTS = """
SELECT m.run, min(m.src) AS src, min(m.inc) AS inc, min(m.seq) AS seq, min(m.boot_id) AS boot,
  max(m.boot_id) AS boot_last
FROM meta m JOIN runs r ON r.run = m.run WHERE m.boot_id IS NOT NULL AND r.bound = 0 GROUP BY m.run
"""

_FILES = """
SELECT run, file, sum(other_version) AS other_version, sum(misfits) AS misfits FROM line_counts
WHERE NOT corrupt GROUP BY run, file
"""

_ABSENT = """
SELECT m.run, m.member AS src FROM meta m
ANTI JOIN (SELECT run, src FROM writers GROUP BY run, src) w ON w.run = m.run AND w.src = m.member
WHERE m.e = 'expect'
"""

_STOPPED = f"""
SELECT x.run, x.src FROM writers x
ANTI JOIN fault k ON k.run = x.run AND k.e = 'begin' AND k.f IN ({", ".join(f"'{kind}'" for kind in ENDING)})
  AND instr(',' || k.targets || ',',
    ',' || replace(replace(x.src, 'node:', ''), 'client:', '') || ',') > 0
WHERE x.ends = 0 AND x.src <> 'admin'
"""

_UNREACHED = """
SELECT t.run, t.log, t.off, r.top FROM meta t LEFT JOIN read_logs r ON r.run = t.run AND r.log = t.log
WHERE t.e = 'drain_target' AND t.off >= 0
"""

#: Models of histories (`chaos.checker.readers`) that no last reads belong to.
_UNDRAINED = "coalesce(history, '') IN ('register', 'store')"

_TARGETS = """
SELECT s.run, s.log, s.top, t.off, r.history FROM (
  SELECT run, log, max(top) AS top FROM sent_logs WHERE oks > 0 GROUP BY run, log) s
LEFT JOIN (SELECT run, log, max(off) AS off FROM meta WHERE e = 'drain_target' GROUP BY run, log) t
  ON t.run = s.run AND t.log = s.log
JOIN runs r ON r.run = s.run
"""

#: How many nodes of a run were watched, and how many there must be.
_WATCHED = """
SELECT r.run, r.history, r.flush_mode, coalesce(r.nodes, 1) AS nodes, coalesce(w.n, 0) AS watched FROM runs r
LEFT JOIN (SELECT run, count(DISTINCT node) AS n FROM disk WHERE e = 'watched' GROUP BY run) w
  ON w.run = r.run
"""

#: How many lives of a node were watched, and in how many it has written a trace.
_LIVES = """
SELECT l.run, l.node, l.lives, coalesce(w.n, 0) AS watched, r.flush_mode
FROM (SELECT run, substr(src, 6) AS node, count(*) AS lives FROM writers WHERE of_node > 0
  GROUP BY run, substr(src, 6)) l
LEFT JOIN (SELECT run, node, count(*) AS n FROM disk WHERE e = 'watched' GROUP BY run, node) w
  ON w.run = l.run AND w.node = l.node
JOIN runs r ON r.run = l.run
"""

#: Runs with the terms in which leaders were elected or sends acknowledged.
_TERMS = """
SELECT r.run, r.aim, least(min(s.term_min), min(l.term_min)) AS term_min,
  greatest(max(s.term_max), max(l.term_max)) AS term_max
FROM runs r LEFT JOIN sent_logs s ON s.run = r.run
LEFT JOIN (SELECT run, min(term) AS term_min, max(term) AS term_max FROM milestones
  WHERE e = 'leader' GROUP BY run) l
  ON l.run = r.run
GROUP BY r.run, r.aim
"""

CHECKS: tuple[Check, ...] = (
    void(
        "W1",
        "every writer's lines are numbered without a hole",
        "lines",
        "{src} incarnation {inc}: {n} lines, numbered {first} to {last}",
        Part(
            "writers",
            f"CASE WHEN first <> 0 OR last > {_MOST_LINES} THEN true "
            "ELSE last + 1 <> n OR 2 * numbers <> n * (n - 1) END",
            "src, inc, n, first, last",
            few=True,
        ),
    ),
    void(
        "W2",
        "every operation has one invoke and at most one completion, in this order",
        "ops",
        "operation {op}: {invokes} invokes, {completions} completions, {f}",
        Part(
            _IN_TURN,
            "invokes <> 1 OR completions > 1 OR completed < inv",
            "op, invokes, completions, f, src, inc, seq",
        ),
    ),
    void(
        "W3",
        "a process has one operation at a time, and none after one without an answer",
        "ops",
        "process {proc}: operation {op} began before the one before it ended, or after an unknown one",
        Part(
            _IN_TURN,
            "n > 1 AND (before IS NULL OR before > inv OR outcome_before = 'info')",
            "proc, op, src, inc, seq",
        ),
    ),
    void(
        "W4",
        "every message id is sent by one operation only",
        "sends",
        "message {mid} was sent by operations {op} to {op_last}",
        Part(_SENT_IDS, "op < op_last OR digest < digest_last OR i < i_last", "mid, op, op_last"),
    ),
    void(
        "W5",
        "the clock of a writer never goes back, and all writers have the same clock",
        "lines",
        "{src} incarnation {inc}, line {seq}: {what}",
        Part(_CLOCKS, "mono < before", "src, inc, seq, 'the clock went back' AS what"),
        Part(
            _BOOTS,
            "boot < boot_last",
            "src, inc, seq, 'clocks of several boots, no bound given' AS what",
            few=True,
        ),
    ),
    void(
        "W6",
        "every line was understood",
        "lines",
        "{file}: {n} lines that are {what}",
        Part(
            _FILES,
            "other_version > 0",
            "file, 'of another schema version' AS what, other_version AS n",
            few=True,
        ),
        Part(
            _FILES,
            "misfits > 0",
            "file, 'of an unknown kind or out of the ranges of the schema' AS what, misfits AS n",
            few=True,
        ),
    ),
    void(
        "W7",
        "every expected writer wrote, and ended in peace or was killed",
        "lines",
        "{src}: {what}",
        Part(_ABSENT, "true", "src, 'expected, but wrote nothing' AS what", few=True),
        Part(_STOPPED, "true", "src, 'stopped writing, and no fault explains it' AS what", few=True),
        Part(
            "SELECT run, sum(begins) AS begins FROM writers GROUP BY run",
            "begins <> 1",
            "'admin' AS src, 'no or several beginnings of the run' AS what",
            few=True,
        ),
        Part("runs", "expected = 0", "'admin' AS src, 'no expected writers are named' AS what", few=True),
    ),
    void(
        "W8",
        "the run was healed, and the last reads reached the end of every log",
        "lines",
        "{log}: {what}",
        Part(
            "runs",
            f"healed IS NULL OR (drained IS NULL AND NOT {_UNDRAINED})",
            "'' AS log, 'not healed, or not drained to the end' AS what",
            few=True,
        ),
        Part(
            _UNREACHED,
            "top IS NULL OR top < off",
            "log, 'read up to ' || coalesce(CAST(top AS STRING), 'nowhere') || ' of ' || CAST(off AS "
            "STRING) AS what",
            few=True,
        ),
        Part(
            _TARGETS,
            f"(off IS NULL OR off < top) AND NOT {_UNDRAINED}",
            "log, 'no target of the last reads, or one below an acknowledged position' AS what",
            few=True,
        ),
    ),
    void(
        "W9",
        "the files of all nodes could be read whole",
        "lines",
        "{node}: entries {lidx} to {last} are damaged ({text})",
        Part("holes", "true", "node, lidx, last, text, src, inc, seq", few=True),
    ),
    void(
        "W10",
        "no line of a writer stands twice",
        "lines",
        "{src} incarnation {inc}: {n} lines, numbered {first} to {last}: there are copies",
        Part(
            "writers",
            f"CASE WHEN first < 0 OR last > {_MOST_LINES} THEN n > 1 "
            "ELSE n > last - first + 1 OR (n = last - first + 1 AND 2 * numbers <> (first + last) * n) END",
            "src, inc, n, first, last",
            few=True,
        ),
    ),
    void(
        "W11",
        "the syncs of all lives of all nodes were seen, where an answer promises that something is durable",
        "lines",
        "{what}",
        Part(
            _WATCHED,
            "history IS NULL AND flush_mode = 'SYNC_FLUSH' AND watched < nodes",
            "'what was synced was seen on ' || CAST(watched AS STRING) || ' of ' || CAST(nodes AS STRING) "
            "|| ' nodes' AS what",
        ),
        Part(
            _LIVES,
            "flush_mode = 'SYNC_FLUSH' AND watched < lives",
            "node || ': what was synced was seen in ' || CAST(watched AS STRING) || ' of ' || "
            "CAST(lives AS STRING) || ' lives' AS what",
        ),
    ),
    void(
        "V2",
        "every planned fault happened and took effect; leaders changed if that was the aim",
        "lines",
        "{what}",
        Part(
            "runs",
            "history IS NULL AND (coalesce(planned_faults, 0) = 0 OR effective < planned_faults)",
            "'faults planned: ' || coalesce(CAST(planned_faults AS STRING), 'not said') "
            "|| ', that took effect: ' || CAST(effective AS STRING) AS what",
            few=True,
        ),
        Part(
            "fault",
            "e = 'begin' AND NOT coalesce(effective, false)",
            "'fault ' || CAST(fault AS STRING) || ' (' || f || ') did not take effect' AS what",
            few=True,
        ),
        Part(
            _TERMS,
            "aim = 'leader' AND (term_min IS NULL OR term_min = term_max)",
            "'the faults aimed at leaders, and no leader changed' AS what",
            few=True,
        ),
    ),
)
