"""Is everything in the trace that a verdict needs? One stage, before all other checks: W1-W11, V2.

Each check here decides one need of `chaos.checker.needs`, and nothing else decides it. They are planned and
counted like all checks; the judge looks at them first.
"""

from __future__ import annotations

from chaos.checker.agreement import (
    EFFECTS,
    ENDS_TOLD,
    FILES_READ,
    LEDGERS,
    LEFT_READ,
    LETS_GO,
    LOGS_TOLD,
    MUDDLED,
    NODES_READ,
    STEPS,
    SYNCED_BEYOND,
    UNKNOWN_LOGS,
    UNOPENED,
    VOTES_KEPT,
    WATCHED,
    WATCHED_LIVES,
)
from chaos.checker.checks.registry import Check, Part, void
from chaos.checker.shapes import HALF_ANSWERED, ODD_SHAPES, names_in
from chaos.checker.whole_operations import CHECKS as WHOLE_OPERATIONS
from chaos.trace.schema import ENDING

#: A wall clock is read a moment after the monotonic one. The least of so many differences tells how the
#: clocks are set, this exactly: on one machine writers agree to a microsecond.
_LINES_FOR_CLOCK = 20
_CLOCK_SLACK_NS = 1_000_000
#: Clocks that may differ by more order nothing that a run is about.
_MOST_BOUND_NS = 1_000_000_000

#: After so many of what comes in pairs, one without the other means that a node does not tell all.
_SOME = 10

#: Of one writer; a number above that is none.
_MOST_LINES = 1 << 30

_SENT_IDS = """
SELECT run, mid, min(op) AS op, max(op) AS op_last, min(digest) AS digest, max(digest) AS digest_last,
  min(i) AS i, max(i) AS i_last
FROM sends GROUP BY run, mid
"""

_WHO = "src || ' incarnation ' || CAST(inc AS STRING) AS who"

_CLOCKS = """
SELECT run, src, inc, seq, mono, lag(mono) OVER (PARTITION BY run, src, inc ORDER BY seq) AS before
FROM events WHERE ev NOT IN ('corrupt', 'dump', 'cq')
"""

_BOOTS = """
SELECT m.run, min(m.src) AS src, min(m.inc) AS inc, min(m.seq) AS seq, min(m.boot_id) AS boot,
  max(m.boot_id) AS boot_last
FROM meta m JOIN runs r ON r.run = m.run WHERE m.boot_id IS NOT NULL AND r.bound = 0 GROUP BY m.run
"""

#: How far the wall clocks of clients and nodes are ahead of their monotonic ones, at least, and of all of one
#: boot. Both run alike, so they can differ by no more than the clocks of writers do.
_AHEAD = """
SELECT w.run, w.src, w.inc, w.n, w.ahead, r.bound,
  min(w.ahead) OVER (PARTITION BY w.run, b.boot) AS least
FROM writers w
LEFT JOIN (SELECT run, src, inc, max(boot_id) AS boot FROM meta WHERE boot_id IS NOT NULL
  GROUP BY run, src, inc) b ON b.run = w.run AND b.src = w.src AND b.inc = w.inc
JOIN runs r ON r.run = w.run AND r.history IS NULL
WHERE w.src LIKE 'client:%' OR w.src LIKE 'node:%'
"""

#: Messages that were given to somebody, beside when their send began; of a transaction, when that began.
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

#: Of nodes, W13 says more.
_STOPPED = """
SELECT run, src FROM writers WHERE ends = 0 AND src <> 'admin' AND src NOT LIKE 'node:%' GROUP BY run, src
"""

_UNEXPECTED = """
SELECT w.run, w.src FROM (SELECT run, src FROM writers GROUP BY run, src) w
ANTI JOIN meta m ON m.run = w.run AND m.e = 'expect' AND m.member = w.src
WHERE w.src <> 'admin'
"""

#: The process of which each life of a node was.
_LIVES = """
SELECT w.run, w.src, w.inc, w.n, w.ends, w.first_mono, w.last_mono, substr(w.src, 6) AS node, b.pid
FROM writers w
LEFT JOIN (SELECT run, src, inc, max(pid) AS pid FROM meta WHERE e = 'writer_begin' GROUP BY run, src, inc) b
  ON b.run = w.run AND b.src = w.src AND b.inc = w.inc
WHERE w.src LIKE 'node:%'
"""

_UNTOLD = f"""
SELECT l.*, s.pid AS started, c.n AS written FROM ({_LIVES}) l
LEFT JOIN (SELECT run, node, pid FROM meta WHERE e = 'started' GROUP BY run, node, pid) s
  ON s.run = l.run AND s.node = l.node AND s.pid = l.pid
LEFT JOIN (SELECT run, node, pid, max(n) AS n FROM meta WHERE e = 'written' GROUP BY run, node, pid) c
  ON c.run = l.run AND c.node = l.node AND c.pid = l.pid
"""

_UNSEEN = f"""
SELECT s.run, s.node, s.pid, s.src, s.inc, s.seq FROM meta s
ANTI JOIN ({_LIVES}) l ON l.run = s.run AND l.node = s.node AND l.pid = s.pid WHERE s.e = 'started'
"""

#: Lives that end without a farewell, and no fault took them away while they went on: after their beginning,
#: and before the next life of the node begins.
_BROKEN_OFF = f"""
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

#: How often each life told how it began.
_BEGUN = """
SELECT run, node, inc, min(src) AS src, count(*) FILTER (WHERE e = 'recover') AS begins FROM nodes
WHERE ev <> 'role' GROUP BY run, node, inc
"""

#: What each node told of, beside whether there are brokers on the nodes.
_TOLD = """
SELECT n.run, n.node, q.run IS NOT NULL AS queues, r.flush_mode,
  count(*) FILTER (WHERE n.e = 'append') AS appends,
  count(*) FILTER (WHERE n.e = 'flush') AS flushes, count(*) FILTER (WHERE n.e = 'commit') AS commits,
  count(*) FILTER (WHERE n.e = 'apply') AS applies, count(*) FILTER (WHERE n.e = 'reput') AS reputs
FROM nodes n JOIN runs r ON r.run = n.run
LEFT JOIN (SELECT run FROM meta WHERE e = 'log' AND log LIKE 'q:%' GROUP BY run) q ON q.run = n.run
GROUP BY n.run, n.node, q.run, r.flush_mode
"""

#: What all nodes together told of elections and masters.
_ELECTIONS = """
SELECT m.run, q.run IS NOT NULL AS queues, count(*) FILTER (WHERE m.e = 'leader') AS leaders,
  count(*) FILTER (WHERE m.e = 'vote') AS votes, count(*) FILTER (WHERE m.e = 'term_vote') AS term_votes,
  count(*) FILTER (WHERE m.e = 'elected') AS elected, count(*) FILTER (WHERE m.e = 'master_ready') AS ready
FROM milestones m LEFT JOIN (SELECT run FROM sent_logs WHERE log LIKE 'q:%' AND oks > 0 GROUP BY run) q
  ON q.run = m.run
GROUP BY m.run, q.run
"""

#: Models of histories (`chaos.checker.readers`) that no last reads belong to.
_UNDRAINED = "coalesce(history, '') IN ('register', 'store')"

#: Logs that must be read to their end: those that the run says there are, and those with sends; beside the
#: position that the last reads were to reach.
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

#: How far the last reads of other systems' histories came.
_UNREACHED = """
SELECT t.run, t.log, t.off, r.top FROM meta t JOIN runs h ON h.run = t.run AND h.history IS NOT NULL
LEFT JOIN read_logs r ON r.run = t.run AND r.log = t.log WHERE t.e = 'drain_target' AND t.off >= 0
"""

#: Final reads: from where to where, and how far those that began at lower positions had come. `low`: where
#: the log begins.
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
    *WHOLE_OPERATIONS,
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
        "{who}: {what}",
        Part(_CLOCKS, "mono < before", f"{_WHO}, src, inc, seq, 'the clock went back' AS what"),
        Part(
            _BOOTS,
            "boot < boot_last",
            f"{_WHO}, src, inc, seq, 'clocks of several boots, no bound given' AS what",
            few=True,
        ),
        Part(
            "runs",
            f"history IS NULL AND bound > {_MOST_BOUND_NS}",
            "'run_begin' AS who, 'clocks may be ' || CAST(bound AS STRING) || ' ns apart: times prove '"
            " || 'nothing' AS what",
            few=True,
        ),
        Part(
            _AHEAD,
            f"n >= {_LINES_FOR_CLOCK} AND ahead - least > bound + {_CLOCK_SLACK_NS}",
            f"{_WHO}, src, inc, 'by the wall clock, its clock or that of another writer jumped, or they "
            "are ' || CAST(ahead - least AS STRING) || ' ns apart' AS what",
            few=True,
        ),
        Part(
            _EFFECTS_FIRST,
            "read_at + bound < inv",
            "log AS who, log, mid, 'message ' || CAST(mid AS STRING) || ' was read ' "
            "|| CAST(inv - read_at AS STRING) || ' ns before its send began' AS what",
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
            "file, 'of no kind of the schema, lack a field, or are about another than their writer' AS what, "
            "misfits AS n",
            few=True,
        ),
        Part(
            ODD_SHAPES,
            "mute <> 0",
            f"'all files' AS file, n, {_KIND} || ', some of which lack what the others have:' "
            f"|| {names_in('mute')} AS what",
            few=True,
        ),
        Part(
            LEDGERS,
            "n > 1",
            "'all files' AS file, n, 'names of logs of nodes, from ' || first || ' to ' || last AS what",
            few=True,
        ),
    ),
    void(
        "W14",
        "every line says as much as its like",
        "lines",
        "{n} lines are {what}",
        Part(
            ODD_SHAPES,
            "sometimes <> 0",
            f"n, {_KIND} || ', some of which lack what the others have:' || {names_in('sometimes')} AS what",
            few=True,
        ),
        Part(
            ODD_SHAPES,
            "foreign_fields <> 0",
            f"n, {_KIND} || ', with what is not of that kind:' || {names_in('foreign_fields')} AS what",
            few=True,
        ),
        Part(
            ODD_SHAPES,
            "wanting <> 0",
            f"n, {_KIND} || ', without what each must say:' || {names_in('wanting')} AS what",
            few=True,
        ),
        Part(
            HALF_ANSWERED,
            "torn > 0 OR (qoff > 0 AND qoff < n)",
            "n, 'answers to sends, and some say only in part where the message stands' AS what",
        ),
    ),
    void(
        "W7",
        "every expected writer wrote, and ended in peace or was killed",
        "lines",
        "{src}: {what}",
        Part(_ABSENT, "true", "src, 'expected, but wrote nothing' AS what", few=True),
        Part(_STOPPED, "true", "src, 'stopped writing' AS what", few=True),
        Part(_UNEXPECTED, "true", "src, 'wrote, and nobody expected it' AS what", few=True),
        Part(
            "SELECT run, sum(begins) AS begins FROM writers GROUP BY run",
            "begins <> 1",
            "'admin' AS src, 'no or several beginnings of the run' AS what",
            few=True,
        ),
        Part(UNOPENED, "opens = 0", "src, 'does not say on which machine it began' AS what", few=True),
        Part("runs", "expected = 0", "'admin' AS src, 'no expected writers are named' AS what", few=True),
    ),
    void(
        "W8",
        "after the healing every log was read from its beginning to its end",
        "lines",
        "{log}: {what}",
        Part(
            "runs",
            f"healed IS NULL OR (drained IS NULL AND NOT {_UNDRAINED})",
            "'' AS log, 'not healed, or not drained to the end' AS what",
            few=True,
        ),
        Part(LOGS_TOLD, "n = 0", "'' AS log, 'nobody says which logs there are' AS what", few=True),
        Part(
            _TARGETS,
            f"(off IS NULL OR off < top) AND (oks > 0 OR told = 1) AND NOT {_UNDRAINED}",
            "log, 'no target of the last reads, or one below an acknowledged position' AS what",
            few=True,
        ),
        Part(
            _TARGETS,
            "told = 0 AND history IS NULL",
            "log, 'messages were sent there, and nobody says that there is such a log' AS what",
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
            "log, 'the final reads came up to ' || CAST(until - 1 AS STRING) || ' of ' "
            "|| CAST(off AS STRING) AS what",
        ),
        Part(
            UNKNOWN_LOGS,
            "true",
            "log, 'somebody asked for it, or was assigned it, and nobody says that it exists' AS what, "
            "src, inc, seq",
        ),
        Part(
            ENDS_TOLD,
            "max_off > off + 1",
            "log, 'an end at ' || CAST(max_off AS STRING) || ' was answered, and the last reads were to "
            "come to ' || CAST(off AS STRING) AS what, src, inc, seq",
            few=True,
        ),
        Part(
            _FINAL_READS,
            "from_off > greatest(coalesce(before, 0), low)",
            "log, 'the final reads passed over what is before ' || CAST(from_off AS STRING) AS what, src, "
            "inc, seq",
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
            WATCHED,
            "history IS NULL AND store IS NULL AND flush_mode = 'SYNC_FLUSH' AND watched < nodes",
            "'what was synced was seen on ' || CAST(watched AS STRING) || ' of ' || CAST(nodes AS STRING) "
            "|| ' nodes' AS what",
        ),
        Part(
            WATCHED_LIVES,
            "flush_mode = 'SYNC_FLUSH' AND watched < lives",
            "node || ': what was synced was seen in ' || CAST(watched AS STRING) || ' of ' || "
            "CAST(lives AS STRING) || ' lives' AS what",
        ),
        Part(
            SYNCED_BEYOND,
            "lidx > ended",
            "node || ': syncs are said to cover index ' || CAST(lidx AS STRING) || ', and its log ended at ' "
            "|| CAST(ended AS STRING) AS what, src, inc, seq",
        ),
    ),
    void(
        "W13",
        "every life of a node has its file, whole, and ended in peace or by a fault of its time",
        "of_nodes",
        "{node}, process {pid}: {what}",
        Part(
            _UNTOLD,
            "pid IS NULL OR started IS NULL",
            "node, pid, 'nobody says that it was started' AS what",
            few=True,
        ),
        Part(
            _UNTOLD,
            "pid IS NOT NULL AND (written IS NULL OR written <> n)",
            "node, pid, CAST(n AS STRING) || ' lines are there of ' || coalesce(CAST(written AS STRING), "
            "'a number that nobody tells') AS what",
            few=True,
        ),
        Part(
            _UNSEEN,
            "true",
            "node, pid, 'was started, and has written nothing' AS what, src, inc, seq",
            few=True,
        ),
        Part(_BROKEN_OFF, "true", "node, pid, 'stopped writing, and no fault explains it' AS what", few=True),
        Part(
            _BEGUN,
            "begins = 0",
            "node, '?' AS pid, src, inc, 'does not tell with what log and term it began' AS what",
        ),
        Part(
            _TOLD,
            f"(appends >= {_SOME} AND (commits = 0 OR (flushes = 0 AND flush_mode = 'SYNC_FLUSH'))) "
            f"OR (queues AND commits >= {_SOME} AND (applies = 0 OR reputs = 0))",
            "node, '?' AS pid, 'told of ' || CAST(appends AS STRING) || ' appends, ' "
            "|| CAST(flushes AS STRING) || ' flushes, ' || CAST(commits AS STRING) || ' commits, ' "
            "|| CAST(applies AS STRING) || ' applied, ' || CAST(reputs AS STRING) || ' dispatched' AS what",
        ),
        Part(
            _ELECTIONS,
            "leaders > 0 AND (votes = 0 OR term_votes = 0 OR (queues AND (elected = 0 OR ready = 0)))",
            "'all nodes' AS node, '?' AS pid, 'told of ' || CAST(leaders AS STRING) || ' leaders, ' "
            "|| CAST(votes AS STRING) || ' votes, ' || CAST(elected AS STRING) || ' elected brokers, ' "
            "|| CAST(ready AS STRING) || ' masters' AS what",
            few=True,
        ),
        Part(
            STEPS,
            "n < 4",
            "node, '?' AS pid, 'told of being master of term ' || CAST(term AS STRING) || ', and of ' "
            "|| CAST(n AS STRING) || ' of the four steps before' AS what, src, inc, seq",
            few=True,
        ),
        Part(
            VOTES_KEPT,
            "true",
            "node, '?' AS pid, 'told of a vote for ' || candidate || ' in term ' || CAST(term AS STRING) "
            "|| ', and not that it had kept it' AS what, src, inc, seq",
            few=True,
        ),
    ),
    void(
        "W12",
        "the files of every node were read to their end",
        "lines",
        "{node}: {what}",
        Part(
            NODES_READ,
            "n <> coalesce(nodes, 1)",
            "'all' AS node, 'the files of ' || CAST(n AS STRING) || ' nodes were read, of ' "
            "|| coalesce(CAST(nodes AS STRING), 'a number that nobody tells') AS what",
            few=True,
        ),
        Part(
            FILES_READ,
            "coalesce(ledger_told <> ledger_there, true)",
            "node, CAST(ledger_there AS STRING) || ' entries are there of ' "
            "|| coalesce(CAST(ledger_told AS STRING), 'a number that nobody tells') AS what",
            few=True,
        ),
        Part(
            FILES_READ,
            "ledger_there > 0 AND ended <> high",
            "node, 'the files end at index ' || CAST(ended AS STRING) || ', and the entries that are there "
            "at ' || CAST(high AS STRING) AS what",
            few=True,
        ),
        Part(
            FILES_READ,
            "(queues OR queues_there > 0) AND coalesce(queues_told <> queues_there, true)",
            "node, CAST(queues_there AS STRING) || ' units of ConsumeQueues are there of ' "
            "|| coalesce(CAST(queues_told AS STRING), 'a number that nobody tells') AS what",
            few=True,
        ),
        Part(
            LEFT_READ,
            "coalesce(told <> there, true)",
            "member AS node, CAST(there AS STRING) || ' records of the log that it had when it was lost are "
            "there of ' || coalesce(CAST(told AS STRING), 'a number that nobody tells') AS what, src, inc, "
            "seq",
            few=True,
        ),
        Part(
            MUDDLED,
            "n > high - low + 1",
            "node, CAST(n AS STRING) || ' entries are there, from index ' || CAST(low AS STRING) || ' to ' "
            "|| CAST(high AS STRING) || ': some stand twice' AS what",
            few=True,
        ),
        Part(
            MUDDLED,
            "unsure_low < sure_high OR unsure_low <= settled OR sure_high > settled",
            "node, 'entries up to ' || CAST(sure_high AS STRING) || ' are said to be committed, those from ' "
            "|| CAST(unsure_low AS STRING) || ' on not' AS what",
            few=True,
        ),
        Part(
            "dump",
            "purge_to IS NOT NULL AND (NOT internal OR purge_to < 0 OR purge_to > lidx)",
            "node, 'the entry at ' || CAST(lidx AS STRING) || ' is said to let the log begin at ' "
            "|| CAST(purge_to AS STRING) || ', and cannot' AS what, src, inc, seq",
        ),
        Part(
            LETS_GO,
            "low < high",
            "CAST(NULL AS STRING) AS node, 'the entry at ' || CAST(lidx AS STRING) || ' lets the log begin '"
            "|| 'at ' || CAST(high AS STRING) || ' on one node, and not on another' AS what",
        ),
    ),
    void(
        "V2",
        "every planned fault happened and took effect; leaders changed if that was the aim",
        "lines",
        "{what}",
        Part(
            "runs",
            "history IS NULL AND (coalesce(planned_faults, 0) <= 0 OR effective < planned_faults "
            "OR faults > planned_faults)",
            "'faults planned: ' || coalesce(CAST(planned_faults AS STRING), 'not said') "
            "|| ', that took effect: ' || CAST(effective AS STRING) AS what",
            few=True,
        ),
        Part(
            EFFECTS,
            "NOT began OR ended = 0 OR elsewhere IS NOT NULL",
            "'fault ' || CAST(fault AS STRING) || ' (' || f || '), ' || CASE WHEN NOT began "
            "THEN 'did not take effect' WHEN ends = 0 THEN 'did not end' "
            "WHEN ended = 0 THEN 'had taken no effect when it ended' "
            "ELSE 'began on ' || targets || ' and ended as of ' || elsewhere END AS what, src, inc, seq",
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
