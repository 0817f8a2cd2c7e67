"""Completeness of the trace: W1-W14, V2. This stage precedes all other checks.

Each check here decides one need of `chaos.checker.needs`, and no other check decides it. The checks are
planned and counted like all others; the judge evaluates their results first.
"""

from __future__ import annotations

from chaos.checker.agreement import (
    ANNOUNCED_LOGS,
    DUMP_ORDER,
    EFFECTS,
    FILES_READ,
    LEDGERS,
    LEFT_READ,
    NODES_READ,
    PURGE_POINTS,
    REPORTED_ENDS,
    STEPS,
    SYNCED_BEYOND,
    UNKNOWN_LOGS,
    VOTES_KEPT,
    WATCHED,
    WATCHED_LIVES,
    WRITER_STARTS,
)
from chaos.checker.checks.registry import Check, Part, void
from chaos.checker.shapes import HALF_ANSWERED, ODD_SHAPES, names_in
from chaos.checker.whole_operations import CHECKS as WHOLE_OPERATIONS
from chaos.trace.schema import ENDING

#: Minimum number of lines to estimate the offset of a wall clock, which is read a moment after the monotonic
#: one, and the precision of the estimate. The minimum of that many differences is exact to a microsecond
#: among writers on one machine.
_LINES_FOR_CLOCK = 20
_CLOCK_SLACK_NS = 1_000_000
#: Maximum bound of the clocks. A larger one orders none of the events of a run.
_MAX_BOUND_NS = 1_000_000_000

#: Number of events from which missing counterparts show that a node's reports are incomplete.
_MIN_EVENTS = 10

#: Maximum number of lines of a writer; a higher `seq` is invalid.
_MAX_SEQ = 1 << 30

_SENT_IDS = """
SELECT run, mid, min(op) AS op, max(op) AS op_last, min(digest) AS digest, max(digest) AS digest_last,
  min(i) AS i, max(i) AS i_last
FROM sends GROUP BY run, mid
"""

_WRITER = "src || ' incarnation ' || CAST(inc AS STRING) AS who"

_CLOCKS = """
SELECT run, src, inc, seq, mono, lag(mono) OVER (PARTITION BY run, src, inc ORDER BY seq) AS before
FROM events WHERE ev NOT IN ('corrupt', 'dump', 'cq')
"""

_BOOTS = """
SELECT m.run, min(m.src) AS src, min(m.inc) AS inc, min(m.seq) AS seq, min(m.boot_id) AS boot,
  max(m.boot_id) AS boot_last
FROM meta m JOIN runs r ON r.run = m.run WHERE m.boot_id IS NOT NULL AND r.bound = 0 GROUP BY m.run
"""

#: Minimum offset of the wall clock from the monotonic clock, for each client and node and for all writers of
#: one boot. The offsets can differ by at most the bound of the clocks.
_AHEAD = """
SELECT w.run, w.src, w.inc, w.n, w.ahead, r.bound,
  min(w.ahead) OVER (PARTITION BY w.run, b.boot) AS least
FROM writers w
LEFT JOIN (SELECT run, src, inc, max(boot_id) AS boot FROM meta WHERE boot_id IS NOT NULL
  GROUP BY run, src, inc) b ON b.run = w.run AND b.src = w.src AND b.inc = w.inc
JOIN runs r ON r.run = w.run AND r.history IS NULL
WHERE w.src LIKE 'client:%' OR w.src LIKE 'node:%'
"""

#: Delivered messages, with the time at which their send, or their transaction, started.
_EFFECTS_FIRST = """
SELECT p.run, p.log, p.mid, coalesce(b.inv, p.inv) AS inv, p.read_at, r.bound FROM placed p
JOIN runs r ON r.run = p.run AND r.history IS NULL
LEFT JOIN (SELECT run, mid, min(inv) AS inv FROM ops WHERE f = 'txn_begin' GROUP BY run, mid) b
  ON b.run = p.run AND b.mid = p.mid
WHERE p.sent > 0 AND p.reads > 0
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

#: Writers without an end. W13 covers nodes.
_UNCLOSED = """
SELECT run, src FROM writers WHERE ends = 0 AND src <> 'admin' AND src NOT LIKE 'node:%' GROUP BY run, src
"""

_UNEXPECTED = """
SELECT w.run, w.src FROM (SELECT run, src FROM writers GROUP BY run, src) w
ANTI JOIN meta m ON m.run = w.run AND m.e = 'expect' AND m.member = w.src
WHERE w.src <> 'admin'
"""

#: The id of each process of a node.
_LIVES = """
SELECT w.run, w.src, w.inc, w.n, w.ends, w.first_mono, w.last_mono, substr(w.src, 6) AS node, b.pid
FROM writers w
LEFT JOIN (SELECT run, src, inc, max(pid) AS pid FROM meta WHERE e = 'writer_begin' GROUP BY run, src, inc) b
  ON b.run = w.run AND b.src = w.src AND b.inc = w.inc
WHERE w.src LIKE 'node:%'
"""

_LIVES_WITH_LINES = f"""
SELECT l.*, s.pid AS started, c.n AS written FROM ({_LIVES}) l
LEFT JOIN (SELECT run, node, pid FROM meta WHERE e = 'started' GROUP BY run, node, pid) s
  ON s.run = l.run AND s.node = l.node AND s.pid = l.pid
LEFT JOIN (SELECT run, node, pid, max(n) AS n FROM meta WHERE e = 'written' GROUP BY run, node, pid) c
  ON c.run = l.run AND c.node = l.node AND c.pid = l.pid
"""

_SILENT_LIVES = f"""
SELECT s.run, s.node, s.pid, s.src, s.inc, s.seq FROM meta s
JOIN runs r ON r.run = s.run AND r.store IS NULL
ANTI JOIN ({_LIVES}) l ON l.run = s.run AND l.node = s.node AND l.pid = s.pid WHERE s.e = 'started'
"""

#: Processes that wrote no last line although no fault ended them between their start and the start of the
#: node's next process.
_UNCLOSED_LIVES = f"""
SELECT x.run, x.node, x.pid FROM (
  SELECT *, lead(first_mono) OVER (PARTITION BY run, node ORDER BY first_mono, inc) AS next_mono
  FROM ({_LIVES}) l) x
ANTI JOIN (
  SELECT b.run, b.targets, b.mono AS begun, coalesce(max(e.mono), 9223372036854775807) AS ended FROM fault b
  LEFT JOIN fault e ON e.run = b.run AND e.fault = b.fault AND e.e = 'end'
  WHERE b.e = 'begin' AND b.f IN ({", ".join(f"'{kind}'" for kind in ENDING)})
  GROUP BY b.run, b.fault, b.targets, b.mono
) k ON k.run = x.run AND instr(',' || k.targets || ',', ',' || x.node || ',') > 0
  AND x.first_mono <= k.ended AND x.last_mono <= k.ended AND (x.next_mono IS NULL OR k.begun <= x.next_mono)
WHERE x.ends = 0
"""

#: Number of lines with which each process of a node records how it started.
_LIFE_STARTS = """
SELECT run, node, inc, min(src) AS src, count(*) FILTER (WHERE e = 'recover') AS begins FROM nodes
WHERE ev <> 'role' GROUP BY run, node, inc
"""

#: Events that each node reported, and whether the nodes run brokers.
_REPORTED_EVENTS = """
SELECT n.run, n.node, q.run IS NOT NULL AS queues, r.flush_mode,
  count(*) FILTER (WHERE n.e = 'append') AS appends,
  count(*) FILTER (WHERE n.e = 'flush') AS flushes, count(*) FILTER (WHERE n.e = 'commit') AS commits,
  count(*) FILTER (WHERE n.e = 'apply') AS applies, count(*) FILTER (WHERE n.e = 'reput') AS reputs
FROM nodes n JOIN runs r ON r.run = n.run
LEFT JOIN (SELECT run FROM meta WHERE e = 'log' AND log LIKE 'q:%' GROUP BY run) q ON q.run = n.run
GROUP BY n.run, n.node, q.run, r.flush_mode
"""

#: Elections and masters that all nodes together reported.
_ELECTIONS = """
SELECT m.run, q.run IS NOT NULL AS queues, count(*) FILTER (WHERE m.e = 'leader') AS leaders,
  count(*) FILTER (WHERE m.e = 'vote') AS votes, count(*) FILTER (WHERE m.e = 'term_vote') AS term_votes,
  count(*) FILTER (WHERE m.e = 'elected') AS elected, count(*) FILTER (WHERE m.e = 'master_ready') AS ready
FROM milestones m LEFT JOIN (SELECT run FROM sent_logs WHERE log LIKE 'q:%' AND oks > 0 GROUP BY run) q
  ON q.run = m.run
GROUP BY m.run, q.run
"""

#: Models of histories (`chaos.checker.readers`) that need no last read.
_UNDRAINED = "coalesce(history, '') IN ('register', 'store')"

#: Logs that must be read to their end: those that the run announces and those with sends, with the position
#: that the last reads were to reach.
_TARGETS = """
SELECT a.run, a.log, max(a.told) AS told, max(a.oks) AS oks, max(a.top) AS top, max(t.off) AS off,
  max(r.history) AS history
FROM (
  SELECT run, log, 1 AS told, CAST(0 AS BIGINT) AS oks, CAST(NULL AS BIGINT) AS top FROM meta
  WHERE e = 'log' AND log IS NOT NULL
  UNION ALL
  SELECT run, log, 0, oks, top FROM sent_logs WHERE log IS NOT NULL
) a JOIN runs r ON r.run = a.run
LEFT JOIN (SELECT run, log, max(off) AS off FROM meta WHERE e = 'drain_target' GROUP BY run, log) t
  ON t.run = a.run AND t.log = a.log
GROUP BY a.run, a.log
"""

#: Last reads of other systems' histories, and how far they reached.
_UNREACHED = """
SELECT t.run, t.log, t.off, r.top FROM meta t JOIN runs h ON h.run = t.run AND h.history IS NOT NULL
LEFT JOIN read_logs r ON r.run = t.run AND r.log = t.log WHERE t.e = 'drain_target' AND t.off >= 0
"""

#: Final reads with their ranges, and how far reads from lower positions had reached. `low`: the start of the
#: log.
_FINAL_READS = """
SELECT *, max(until) OVER (PARTITION BY run, log ORDER BY from_off, op
  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
FROM (
  SELECT q.run, q.log, q.op, q.src, q.inc, q.seq, coalesce(q.from_off, 9223372036854775807) AS from_off,
    greatest(coalesce(CASE WHEN q.outcome = 'ok' THEN q.next_off END, 0), coalesce(d.top + 1, 0)) AS until,
    coalesce(m.low, 0) AS low
  FROM reads q
  SEMI JOIN final_reads f ON f.op = q.op AND f.run = q.run
  LEFT JOIN (SELECT v.run, v.log, v.op, max(v.pos) AS top FROM dlv v
    SEMI JOIN final_reads f ON f.op = v.op AND f.run = v.run GROUP BY v.run, v.log, v.op) d
    ON d.run = q.run AND d.log = q.log AND d.op = q.op
  LEFT JOIN (SELECT run, log, max(min_off) AS low FROM reads WHERE outcome = 'ok' GROUP BY run, log) m
    ON m.run = q.run AND m.log = q.log
)
"""

_NOT_READ = f"""
SELECT t.run, t.log, t.off, coalesce(max(f.until), 0) AS until FROM ({_TARGETS}) t
LEFT JOIN ({_FINAL_READS}) f ON f.run = t.run AND f.log = t.log
WHERE t.history IS NULL AND t.off >= 0 GROUP BY t.run, t.log, t.off
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

_KIND = "'of the kind ' || ev || ' ' || coalesce(what, '') || ' ' || coalesce(f, '')"

CHECKS: tuple[Check, ...] = (
    void(
        "W1",
        "the lines of every writer are numbered without gaps",
        "lines",
        "{src} incarnation {inc}: {n} lines, numbered {first} to {last}",
        Part(
            "writers",
            f"CASE WHEN first <> 0 OR last > {_MAX_SEQ} THEN true "
            "ELSE last + 1 <> n OR 2 * numbers <> n * (n - 1) END",
            "src, inc, n, first, last",
            few=True,
        ),
    ),
    *WHOLE_OPERATIONS,
    void(
        "W4",
        "every message id belongs to one send",
        "sends",
        "message {mid} was sent by operations {op} and {op_last}",
        Part(_SENT_IDS, "op < op_last OR digest < digest_last OR i < i_last", "mid, op, op_last"),
    ),
    void(
        "W5",
        "the clock of a writer never goes back, and the clocks of all writers agree",
        "lines",
        "{who}: {what}",
        Part(_CLOCKS, "mono < before", f"{_WRITER}, src, inc, seq, 'the clock went back' AS what"),
        Part(
            _BOOTS,
            "boot < boot_last",
            f"{_WRITER}, src, inc, seq, 'clocks of several boots without a stated bound' AS what",
            few=True,
        ),
        Part(
            "runs",
            f"history IS NULL AND bound > {_MAX_BOUND_NS}",
            "'run_begin' AS who, 'clocks may differ by ' || CAST(bound AS STRING) || ' ns, so times prove '"
            " || 'nothing' AS what",
            few=True,
        ),
        Part(
            _AHEAD,
            f"n >= {_LINES_FOR_CLOCK} AND ahead - least > bound + {_CLOCK_SLACK_NS}",
            f"{_WRITER}, src, inc, 'its clock or the clock of another writer jumped, or "
            "they differ by ' || CAST(ahead - least AS STRING) || ' ns' AS what",
            few=True,
        ),
        Part(
            _EFFECTS_FIRST,
            "read_at + bound < inv",
            "log AS who, log, mid, 'message ' || CAST(mid AS STRING) || ' was read ' "
            "|| CAST(inv - read_at AS STRING) || ' ns before its send started' AS what",
        ),
    ),
    void(
        "W6",
        "every line is readable",
        "lines",
        "{file}: {n} lines {what}",
        Part(
            _FILES,
            "other_version > 0",
            "file, 'of another schema version' AS what, other_version AS n",
            few=True,
        ),
        Part(
            _FILES,
            "misfits > 0",
            "file, 'of an unknown kind, without a required field, or about another node' AS what, "
            "misfits AS n",
            few=True,
        ),
        Part(
            ODD_SHAPES,
            "mute <> 0",
            f"'all files' AS file, n, {_KIND} || ', some of which lack fields that others have:' "
            f"|| {names_in('mute')} AS what",
            few=True,
        ),
        Part(
            LEDGERS,
            "n > 1",
            "'all files' AS file, n, 'name several logs of nodes, from ' || first || ' to ' || last AS what",
            few=True,
        ),
    ),
    void(
        "W14",
        "lines of a kind have the same fields",
        "lines",
        "{n} lines {what}",
        Part(
            ODD_SHAPES,
            "sometimes <> 0",
            f"n, {_KIND} || ', some of which lack fields of the others:' || {names_in('sometimes')} AS what",
            few=True,
        ),
        Part(
            ODD_SHAPES,
            "foreign_fields <> 0",
            f"n, {_KIND} || ', with fields of other kinds:' || {names_in('foreign_fields')} AS what",
            few=True,
        ),
        Part(
            ODD_SHAPES,
            "wanting <> 0",
            f"n, {_KIND} || ', without required fields:' || {names_in('wanting')} AS what",
            few=True,
        ),
        Part(
            HALF_ANSWERED,
            "torn > 0 OR (qoff > 0 AND qoff < n)",
            "n, 'answer sends, and some state the position of the message only in part' AS what",
        ),
    ),
    void(
        "W7",
        "every expected writer wrote a trace, and either closed it or was killed",
        "lines",
        "{src}: {what}",
        Part(_ABSENT, "true", "src, 'expected, but wrote nothing' AS what", few=True),
        Part(_UNCLOSED, "true", "src, 'stopped writing' AS what", few=True),
        Part(_UNEXPECTED, "true", "src, 'wrote, but was not expected' AS what", few=True),
        Part(
            "SELECT run, sum(begins) AS begins FROM writers GROUP BY run",
            "begins <> 1",
            "'admin' AS src, 'no start of the run, or several' AS what",
            few=True,
        ),
        Part(WRITER_STARTS, "opens = 0", "src, 'does not state its machine and boot' AS what", few=True),
        Part("runs", "expected = 0", "'admin' AS src, 'names no expected writers' AS what", few=True),
    ),
    void(
        "W8",
        "after healing, every log was read from its start to its end",
        "lines",
        "{log}: {what}",
        Part(
            "runs",
            f"healed IS NULL OR (drained IS NULL AND NOT {_UNDRAINED})",
            "'' AS log, 'not healed, or not read to the end' AS what",
            few=True,
        ),
        Part(ANNOUNCED_LOGS, "n = 0", "'' AS log, 'no line names the logs of the run' AS what", few=True),
        Part(
            _TARGETS,
            f"(off IS NULL OR off < top) AND (oks > 0 OR told = 1) AND NOT {_UNDRAINED}",
            "log, 'the last reads have no target, or one below an acknowledged position' AS what",
            few=True,
        ),
        Part(
            _TARGETS,
            "told = 0 AND history IS NULL",
            "log, 'has sends, but no line announces this log' AS what",
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
            _NOT_READ,
            "until <= off",
            "log, 'the final reads reached ' || CAST(until - 1 AS STRING) || ' of ' "
            "|| CAST(off AS STRING) AS what",
        ),
        Part(
            UNKNOWN_LOGS,
            "true",
            "log, 'was requested or assigned, but no line announces this log' AS what, src, inc, seq",
        ),
        Part(
            REPORTED_ENDS,
            "max_off > off + 1",
            "log, 'an answer reported the end ' || CAST(max_off AS STRING) || ', but the target of the last "
            "reads was ' || CAST(off AS STRING) AS what, src, inc, seq",
            few=True,
        ),
        Part(
            _FINAL_READS,
            "from_off > greatest(coalesce(before, 0), low)",
            "log, 'the final reads skipped positions below ' || CAST(from_off AS STRING) AS what, src, "
            "inc, seq",
        ),
    ),
    void(
        "W9",
        "the files of all nodes were readable without damage",
        "lines",
        "{node}: entries {lidx} to {last} are damaged ({text})",
        Part("holes", "true", "node, lidx, last, text, src, inc, seq", few=True),
    ),
    void(
        "W10",
        "no line of a writer is duplicated",
        "lines",
        "{src} incarnation {inc}: {n} lines, numbered {first} to {last}, include duplicates",
        Part(
            "writers",
            f"CASE WHEN first < 0 OR last > {_MAX_SEQ} THEN n > 1 "
            "ELSE n > last - first + 1 OR (n = last - first + 1 AND 2 * numbers <> (first + last) * n) END",
            "src, inc, n, first, last",
            few=True,
        ),
    ),
    void(
        "W11",
        "the syncs of all processes of all nodes were recorded, if acknowledgments promise durability",
        "lines",
        "{what}",
        Part(
            WATCHED,
            "history IS NULL AND flush_mode = 'SYNC_FLUSH' AND watched < nodes",
            "'syncs were recorded on ' || CAST(watched AS STRING) || ' of ' || CAST(nodes AS STRING) "
            "|| ' nodes' AS what",
        ),
        Part(
            WATCHED_LIVES,
            "flush_mode = 'SYNC_FLUSH' AND watched < lives",
            "node || ': syncs were recorded in ' || CAST(watched AS STRING) || ' of ' || "
            "CAST(lives AS STRING) || ' lives' AS what",
        ),
        Part(
            SYNCED_BEYOND,
            "lidx > ended",
            "node || ': recorded syncs cover index ' || CAST(lidx AS STRING) || ', but its log ended at ' "
            "|| CAST(ended AS STRING) AS what, src, inc, seq",
        ),
    ),
    void(
        "W13",
        "every process of a node has a complete file, and either closed it or was ended by a fault",
        "of_nodes",
        "{node}, process {pid}: {what}",
        Part(
            _LIVES_WITH_LINES,
            "pid IS NULL OR started IS NULL",
            "node, pid, 'has no line about its start' AS what",
            few=True,
        ),
        Part(
            _LIVES_WITH_LINES,
            "pid IS NOT NULL AND (written IS NULL OR written <> n)",
            "node, pid, 'has ' || CAST(n AS STRING) || ' lines of ' || coalesce(CAST(written AS STRING), "
            "'an unknown number') AS what",
            few=True,
        ),
        Part(
            _SILENT_LIVES,
            "true",
            "node, pid, 'was started, but wrote nothing' AS what, src, inc, seq",
            few=True,
        ),
        Part(_UNCLOSED_LIVES, "true", "node, pid, 'stopped writing without a fault' AS what", few=True),
        Part(
            _LIFE_STARTS,
            "begins = 0",
            "node, '?' AS pid, src, inc, 'does not report the log and term with which it started' AS what",
        ),
        Part(
            _REPORTED_EVENTS,
            f"(appends >= {_MIN_EVENTS} AND (commits = 0 OR (flushes = 0 AND flush_mode = 'SYNC_FLUSH'))) "
            f"OR (queues AND commits >= {_MIN_EVENTS} AND (applies = 0 OR reputs = 0))",
            "node, '?' AS pid, 'reported ' || CAST(appends AS STRING) || ' appends, ' "
            "|| CAST(flushes AS STRING) || ' flushes, ' || CAST(commits AS STRING) || ' commits, ' "
            "|| CAST(applies AS STRING) || ' applied, ' || CAST(reputs AS STRING) || ' dispatched' AS what",
        ),
        Part(
            _ELECTIONS,
            "leaders > 0 AND (votes = 0 OR term_votes = 0 OR (queues AND (elected = 0 OR ready = 0)))",
            "'all nodes' AS node, '?' AS pid, 'reported ' || CAST(leaders AS STRING) || ' leaders, ' "
            "|| CAST(votes AS STRING) || ' votes, ' || CAST(elected AS STRING) || ' elected brokers, ' "
            "|| CAST(ready AS STRING) || ' masters' AS what",
            few=True,
        ),
        Part(
            STEPS,
            "n < 4",
            "node, '?' AS pid, 'reported that it was master of term ' || CAST(term AS STRING) "
            "|| ', and only ' || CAST(n AS STRING) || ' of the four steps before' AS what, src, inc, seq",
            few=True,
        ),
        Part(
            VOTES_KEPT,
            "true",
            "node, '?' AS pid, 'reported a vote for ' || candidate || ' in term ' || CAST(term AS STRING) "
            "|| ', but not that it persisted the vote' AS what, src, inc, seq",
            few=True,
        ),
    ),
    void(
        "W12",
        "the files of every node were read completely",
        "lines",
        "{node}: {what}",
        Part(
            NODES_READ,
            "n <> coalesce(nodes, 1)",
            "'all' AS node, 'the files of ' || CAST(n AS STRING) || ' nodes were read, of ' "
            "|| coalesce(CAST(nodes AS STRING), 'an unknown number') AS what",
            few=True,
        ),
        Part(
            FILES_READ,
            "coalesce(ledger_told <> ledger_there, true)",
            "node, 'the trace has ' || CAST(ledger_there AS STRING) || ' entries of ' "
            "|| coalesce(CAST(ledger_told AS STRING), 'an unknown number') AS what",
            few=True,
        ),
        Part(
            FILES_READ,
            "ledger_there > 0 AND ended <> high",
            "node, 'the files end at index ' || CAST(ended AS STRING) || ', the entries in the trace "
            "at ' || CAST(high AS STRING) AS what",
            few=True,
        ),
        Part(
            FILES_READ,
            "(queues OR queues_there > 0) AND coalesce(queues_told <> queues_there, true)",
            "node, 'the trace has ' || CAST(queues_there AS STRING) || ' units of ConsumeQueues of ' "
            "|| coalesce(CAST(queues_told AS STRING), 'an unknown number') AS what",
            few=True,
        ),
        Part(
            LEFT_READ,
            "coalesce(told <> there, true)",
            "member AS node, 'the trace has ' || CAST(there AS STRING) || ' records of the lost log, of ' "
            "|| coalesce(CAST(told AS STRING), 'an unknown number') AS what, src, inc, seq",
            few=True,
        ),
        Part(
            DUMP_ORDER,
            "n > high - low + 1",
            "node, 'the trace has ' || CAST(n AS STRING) || ' entries from index ' || CAST(low AS STRING) "
            "|| ' to ' || CAST(high AS STRING) || ', with duplicates' AS what",
            few=True,
        ),
        Part(
            DUMP_ORDER,
            "unsure_low < sure_high OR unsure_low <= settled OR sure_high > settled",
            "node, 'entries up to ' || CAST(sure_high AS STRING) || ' are marked as committed, those from ' "
            "|| CAST(unsure_low AS STRING) || ' as uncommitted' AS what",
            few=True,
        ),
        Part(
            "dump",
            "purge_to IS NOT NULL AND (NOT internal OR purge_to < 0 OR purge_to > lidx)",
            "node, 'the entry at ' || CAST(lidx AS STRING) || ' releases entries below ' "
            "|| CAST(purge_to AS STRING) || ', which it cannot' AS what, src, inc, seq",
        ),
        Part(
            PURGE_POINTS,
            "low < high",
            "CAST(NULL AS STRING) AS node, 'the entry at ' || CAST(lidx AS STRING) || ' releases entries up '"
            "|| 'to ' || CAST(high AS STRING) || ' on one node, but not on another' AS what",
        ),
    ),
    void(
        "V2",
        "every planned fault took effect; leaders changed if the scenario targets them",
        "lines",
        "{what}",
        Part(
            "runs",
            "history IS NULL AND (coalesce(planned_faults, 0) <= 0 OR effective < planned_faults "
            "OR faults > planned_faults)",
            "'faults planned: ' || coalesce(CAST(planned_faults AS STRING), 'not stated') "
            "|| ', effective: ' || CAST(effective AS STRING) AS what",
            few=True,
        ),
        Part(
            EFFECTS,
            "NOT began OR ended = 0 OR elsewhere IS NOT NULL",
            "'fault ' || CAST(fault AS STRING) || ' (' || f || ') ' || CASE WHEN NOT began "
            "THEN 'did not take effect' WHEN ends = 0 THEN 'did not end' "
            "WHEN ended = 0 THEN 'had taken no effect when it ended' "
            "ELSE 'started on ' || targets || ' and ended on ' || elsewhere END AS what, src, inc, seq",
            few=True,
        ),
        Part(
            _TERMS,
            "aim = 'leader' AND (term_min IS NULL OR term_min = term_max)",
            "'the faults targeted leaders, but no leader changed' AS what",
            few=True,
        ),
    ),
)
