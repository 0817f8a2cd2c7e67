"""Is the trace whole, and does the run prove anything: W1-W8, V1-V4."""

from __future__ import annotations

from chaos.checker.registry import void

#: Acknowledged sends that there must be before the first fault and after the last.
MIN_SENDS = 5
MAX_INFO_PERCENT = 50

CHECKS = (
    void(
        "W1",
        "every writer's lines are numbered without a hole",
        "lines",
        "{src} incarnation {inc}: {n} lines, numbered {first} to {last}",
        """SELECT run, src, inc, count(*) AS n, min(seq) AS first, max(seq) AS last FROM events
        WHERE ev <> 'corrupt' AND run IS NOT NULL GROUP BY run, src, inc
        HAVING min(seq) <> 0 OR max(seq) - min(seq) + 1 <> count(*)""",
    ),
    void(
        "W2",
        "every operation has one invoke and at most one completion, in this order",
        "ops",
        "operation {op}: {invokes} invokes, {completions} completions, {f}",
        """SELECT run, op, invokes, completions, f, src, inc, seq FROM ops
        WHERE invokes <> 1 OR completions > 1 OR completed < inv""",
    ),
    void(
        "W3",
        "a process has one operation at a time, and none after one without an answer",
        "ops",
        "process {proc}: operation {op} began before the one before it ended, or after an unknown one",
        """SELECT run, proc, op, src, inc, seq FROM (
          SELECT run, proc, op, src, inc, seq, inv, row_number() OVER w AS n,
            lag(completed) OVER w AS before, lag(outcome) OVER w AS outcome_before
          FROM ops WINDOW w AS (PARTITION BY run, proc ORDER BY inv, op)
        ) WHERE n > 1 AND (before IS NULL OR before > inv OR outcome_before = 'info')""",
    ),
    void(
        "W4",
        "every message id is sent by one operation only",
        "sends",
        "message {mid} was sent by operations {op} to {op_last}",
        """SELECT run, mid, min(op) AS op, max(op) AS op_last FROM sends GROUP BY run, mid
        HAVING min(op) < max(op) OR min(digest) < max(digest) OR min(i) < max(i)""",
    ),
    void(
        "W5",
        "the clock of a writer never goes back, and all writers have the same clock",
        "lines",
        "{src} incarnation {inc}, line {seq}: {what}",
        """SELECT run, src, inc, seq, 'the clock went back' AS what FROM (
          SELECT run, src, inc, seq, mono, lag(mono) OVER (PARTITION BY run, src, inc ORDER BY seq) AS before
          FROM events WHERE ev NOT IN ('corrupt', 'dump', 'cq')
        ) WHERE mono < before
        UNION ALL
        SELECT m.run, min(m.src), min(m.inc), min(m.seq), 'clocks of several boots, no bound given' FROM
          meta m
        JOIN runs r ON r.run = m.run WHERE m.boot_id IS NOT NULL AND r.bound = 0
        GROUP BY m.run HAVING min(m.boot_id) < max(m.boot_id)""",
    ),
    void(
        "W6",
        "every line was understood",
        "lines",
        "{file}: {n} lines that are {what}",
        """SELECT run, file, what, n FROM (
          SELECT run, file, CASE WHEN v IS NULL OR v <> 1 THEN 'of another schema version'
            ELSE 'of an unknown kind or out of the ranges of the schema' END AS what, count(*) AS n
          FROM events WHERE run IS NOT NULL AND (ev = 'unknown' OR (ev <> 'corrupt' AND (v IS NULL OR v <> 1
            OR src IS NULL OR inc IS NULL OR seq IS NULL OR mono IS NULL)))
          GROUP BY run, file, CASE WHEN v IS NULL OR v <> 1 THEN 'of another schema version'
            ELSE 'of an unknown kind or out of the ranges of the schema' END)""",
    ),
    void(
        "W7",
        "every expected writer wrote, and ended in peace or was killed",
        "lines",
        "{src}: {what}",
        """SELECT m.run, m.member AS src, 'expected, but wrote nothing' AS what FROM meta m
        ANTI JOIN (SELECT DISTINCT run, src FROM events WHERE ev <> 'corrupt') w
          ON w.run = m.run AND w.src = m.member
        WHERE m.e = 'expect'
        UNION ALL
        SELECT x.run, x.src, 'stopped writing, and no fault explains it' FROM (
          SELECT run, src, inc, count(*) FILTER (WHERE ev = 'meta' AND e = 'trace_end') AS ends,
            max(mono) AS last_mono
          FROM events WHERE ev <> 'corrupt' AND src <> 'admin' GROUP BY run, src, inc
        ) x ANTI JOIN fault k ON k.run = x.run AND k.e = 'begin' AND k.f IN ('kill', 'kill_all', 'power',
          'term',
            'wipe', 'crash')
          AND instr(',' || k.targets || ',', ',' || replace(replace(x.src, 'node:', ''), 'client:', '') ||
            ',') > 0
        WHERE x.ends = 0
        UNION ALL
        SELECT run, 'admin', 'no or several beginnings of the run' FROM (
          SELECT run, count(*) FILTER (WHERE ev = 'meta' AND e = 'run_begin') AS begins FROM events
          WHERE run IS NOT NULL GROUP BY run) WHERE begins <> 1
        UNION ALL
        SELECT run, 'admin', 'no expected writers are named' FROM meta GROUP BY run
        HAVING count(*) FILTER (WHERE e = 'expect') = 0""",
    ),
    void(
        "W8",
        "the run was healed, and the last reads reached the end of every log",
        "lines",
        "{log}: {what}",
        """SELECT run, '' AS log, 'not healed, or not drained to the end' AS what FROM runs
        WHERE healed IS NULL OR (drained IS NULL AND coalesce(history, '') NOT IN ('register', 'list',
          'mixed'))
        UNION ALL
        SELECT t.run, t.log, 'read up to ' || coalesce(CAST(r.top AS STRING), 'nowhere') || ' of '
          || CAST(t.off AS STRING)
        FROM meta t LEFT JOIN (SELECT run, log, max(pos) AS top FROM dlv GROUP BY run, log) r
          ON r.run = t.run AND r.log = t.log
        WHERE t.e = 'drain_target' AND t.off >= 0 AND (r.top IS NULL OR r.top < t.off)
        UNION ALL
        SELECT s.run, s.log, 'no target of the last reads, or one below an acknowledged position' FROM (
          SELECT run, log, max(pos) AS top FROM sends WHERE outcome = 'ok' GROUP BY run, log) s
        LEFT JOIN (SELECT run, log, max(off) AS off FROM meta WHERE e = 'drain_target' GROUP BY run, log) t
          ON t.run = s.run AND t.log = s.log
        JOIN runs r ON r.run = s.run AND coalesce(r.history, '') NOT IN ('register', 'list', 'mixed')
        WHERE t.off IS NULL OR t.off < s.top""",
    ),
    void(
        "V1",
        "enough was acknowledged before, during and after the faults",
        "lines",
        "acknowledged sends: {before} before the first fault, {during} between, {after} after the last",
        f"""SELECT * FROM (
          SELECT r.run, count(*) FILTER (WHERE s.ret < f.first OR f.first IS NULL) AS before,
            count(*) FILTER (WHERE s.inv >= f.first AND s.ret <= f.last) AS during,
            count(*) FILTER (WHERE s.inv > f.last OR f.last IS NULL) AS after, max(f.n) AS faults,
            count(s.op) AS whole, max(r.history) AS history
          FROM runs r LEFT JOIN sends s ON s.run = r.run AND s.outcome = 'ok'
          LEFT JOIN (SELECT run, min(mono) AS first, max(mono) AS last, count(*) FILTER (WHERE e = 'begin')
            AS n
            FROM fault GROUP BY run) f ON f.run = r.run
          WHERE s.op IS NOT NULL OR f.n IS NULL OR f.n >= 0 GROUP BY r.run
        ) WHERE CASE WHEN history IS NOT NULL THEN whole < {MIN_SENDS}
          ELSE before < {MIN_SENDS} OR after < {MIN_SENDS} OR (faults > 1 AND during < 1) END""",
    ),
    void(
        "V2",
        "every planned fault happened and took effect; leaders changed if that was the aim",
        "lines",
        "{what}",
        """SELECT r.run, 'faults planned: ' || coalesce(CAST(r.planned_faults AS STRING), 'not said')
          || ', that took effect: ' || CAST(coalesce(f.n, 0) AS STRING) AS what
        FROM runs r LEFT JOIN (SELECT run, count(*) AS n FROM fault WHERE e = 'begin' AND effective GROUP BY
          run) f
          ON f.run = r.run
        WHERE r.history IS NULL AND (coalesce(r.planned_faults, 0) = 0 OR coalesce(f.n, 0) < r.planned_faults)
        UNION ALL
        SELECT run, 'fault ' || CAST(fault AS STRING) || ' (' || f || ') did not take effect' FROM fault
        WHERE e = 'begin' AND NOT coalesce(effective, false)
        UNION ALL
        SELECT r.run, 'the faults aimed at leaders, and no leader changed' FROM runs r
        LEFT JOIN (SELECT run, count(*) AS n FROM (
            SELECT DISTINCT run, term FROM nodes WHERE e = 'leader'
            UNION SELECT DISTINCT run, term FROM sends WHERE outcome = 'ok' AND term IS NOT NULL
          ) GROUP BY run) t ON t.run = r.run
        WHERE r.aim = 'leader' AND coalesce(t.n, 0) < 2""",
    ),
    void(
        "V3",
        "most operations have a known outcome",
        "lines",
        "{info} of {n} sends have no known outcome",
        f"""SELECT run, count(*) AS n, count(*) FILTER (WHERE outcome = 'info') AS info FROM sends GROUP BY
          run
        HAVING 100 * count(*) FILTER (WHERE outcome = 'info') >= {MAX_INFO_PERCENT} * count(*)""",
    ),
    void(
        "V4",
        "sends were acknowledged in several terms, if the aim was at leaders",
        "acked_terms",
        "acknowledged in {n} term(s) only",
        """SELECT run, n FROM (
          SELECT r.run, count(DISTINCT s.term) AS n FROM runs r
          LEFT JOIN sends s ON s.run = r.run AND s.outcome = 'ok' WHERE r.aim = 'leader' GROUP BY r.run)
        WHERE n < 2""",
    ),
)
