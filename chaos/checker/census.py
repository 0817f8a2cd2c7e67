"""Counts per run. They determine which checks apply, and the report shows them with the verdicts."""

from __future__ import annotations

from collections import defaultdict

from chaos.checker.engine import Engine, union
from chaos.checker.histories.models import MODELS
from chaos.trace.schema import HOSTILE

#: Sums over tables that are counts themselves, as (table, {counter: sum}).
_SUMS: tuple[tuple[str, dict[str, str]], ...] = (
    ("line_counts", {"lines": "n", **{name: name for name in ("dump", "cq", "raft", "commits", "acks")}}),
    ("line_counts", {name: name for name in ("flushes", "applied", "chains", "watched")}),
    ("line_counts", {"of_nodes": "of_node", "queued": "queued"}),
    (
        "op_counts",
        {
            "ops": "n",
            "receives": "CASE WHEN f = 'receive' THEN n END",
            "acks_ok": "CASE WHEN f = 'ack' AND outcome = 'ok' THEN n END",
            "commits_off": "CASE WHEN f = 'commit_off' THEN n END",
            "resets": "CASE WHEN f = 'reset_off' AND outcome = 'ok' THEN n END",
            "fetched": "CASE WHEN f = 'fetch_off' AND outcome = 'ok' THEN n END",
            "routes": "CASE WHEN f = 'route' AND outcome = 'ok' AND termed THEN n END",
            "asked_routes": "CASE WHEN f = 'route' AND outcome = 'ok' THEN n END",
            "lookups": "CASE WHEN f = 'lookup' AND outcome = 'ok' THEN n END",
            "stale_reads": "CASE WHEN f IN ('get', 'pull', 'drain') AND stale AND outcome = 'ok' THEN n END",
            "min_offs": "CASE WHEN f = 'min_off' AND outcome = 'ok' THEN n END",
            "delayed": "CASE WHEN f = 'send' THEN delayed END",
            "holds": "CASE WHEN f = 'receive' THEN delayed END",
            "transactions": "CASE WHEN f IN ('txn_begin', 'txn_commit', 'txn_rollback') THEN named END",
        },
    ),
    (
        "sent_logs",
        {
            "sends": "n",
            "oks": "oks",
            "acked": "placed",
            "failed": "fails",
            "indeterminate": "infos",
            "acked_terms": "termed",
            "batches": "batched",
        },
    ),
    ("read_logs", {"reads": "n", "group_reads": "grouped"}),
    ("known", {"seen": "1"}),
    ("runs", {"faults": "faults", "effective": "effective"}),
)
_OF_HISTORIES = {
    **{f"of_{model}": f"history = '{model}'" for model in MODELS},
    "unplaced_reads": "history IN ('set', 'queue') AND f <> 'append' AND outcome = 'ok'",
    "last_reads": "history IN ('set', 'queue') AND f <> 'append' AND outcome = 'ok'",
    "takes": "history = 'queue' AND f <> 'append'",
    "set_reads": "history = 'set' AND f = 'get' AND outcome = 'ok'",
    "register_uses": "history IN ('register', 'store') AND (f = 'get' OR f = 'append') AND outcome = 'ok'",
    "kafka_polls": "history = 'kafka' AND f = 'pull' AND outcome = 'ok'",
    "kafka_sends": "history = 'kafka' AND f = 'append' AND outcome = 'ok'",
}
_ROWS: tuple[tuple[str, dict[str, str]], ...] = (
    (
        "member",
        {
            "joins": "e = 'join'",
            "orderly": "e = 'join' AND mode IN ('orderly', 'fifo')",
            "assigns": "e = 'assign'",
            "revokes": "e = 'revoke'",
        },
    ),
    (
        "milestones",
        {
            "leaders": "e = 'leader'",
            "votes": "e = 'vote'",
            "recoveries": "e = 'recover'",
            "configurations": "e = 'configuration'",
            "ready": "e = 'master_ready'",
            "elected": "e = 'elected'",
            "demoted": "e = 'demoted'",
        },
    ),
    (
        "fault",
        {
            "hostiles": f"e = 'begin' AND f IN ({', '.join(map(repr, HOSTILE))})",
        },
    ),
    ("removed", {"removals": "true"}),
    ("meta", {"memories": "e = 'memory'", "dumped": "e = 'dumped'", "taken_over": "e = 'taken_over'"}),
    ("meta", {"recovered": "e = 'recovered'", "promoted": "e = 'recovered' AND last IS NOT NULL"}),
    ("meta", {"survived": "e = 'recovered' AND last IS NULL"}),
    ("runs", {"classic": "store = 'classic'", "doubled": "broker_role = 'SYNC_MASTER'"}),
    ("runs", {"single": "broker_role = 'ASYNC_MASTER'"}),
    ("runs", {"drained": "drained IS NOT NULL", "healed": "healed IS NOT NULL"}),
    ("runs", {"async": "flush_mode = 'ASYNC_FLUSH'", "sync": "flush_mode = 'SYNC_FLUSH'"}),
)
_COUNTS = (
    *_SUMS,
    ("histories", {name: f"CASE WHEN {where} THEN n END" for name, where in _OF_HISTORIES.items()}),
    *(
        (table, {name: f"CASE WHEN {condition} THEN 1 END" for name, condition in counts.items()})
        for table, counts in _ROWS
    ),
)
_WIDTH = max(len(counts) for _, counts in _COUNTS)

Census = dict[str, dict[str, int]]


def take_census(engine: Engine) -> Census:
    """Return all counters of every run that has lines, by run and name."""
    census: Census = defaultdict(lambda: {name: 0 for _, counts in _COUNTS for name in counts})
    queries = []
    for number, (table, counts) in enumerate(_COUNTS):
        sums = [*counts.values(), *["0"] * (_WIDTH - len(counts))]
        columns = ", ".join(
            f"CAST(coalesce(sum({each}), 0) AS BIGINT) AS n{i}" for i, each in enumerate(sums)
        )
        queries.append(
            f"SELECT {number} AS part, run, {columns} FROM {table} WHERE run IS NOT NULL GROUP BY run"
        )
    for row in engine.rows(union(queries)):
        _, counts = _COUNTS[int(row["part"] or 0)]
        census[str(row["run"])].update({name: int(row[f"n{i}"] or 0) for i, name in enumerate(counts)})
    return dict(census)
