"""How much there is to check: counts by run, which decide which checks apply and are printed beside their
verdicts."""

from __future__ import annotations

from collections import defaultdict

from chaos.checker.engine import Engine

#: Of histories of other systems, by `run_begin` (see `chaos.checker.readers`).
MODELS = ("set", "queue", "kafka", "register", "list", "mixed")

#: (table, {count: condition}).
_COUNTS: tuple[tuple[str, dict[str, str]], ...] = (
    ("events", {"lines": "true"}),
    (
        "ops",
        {
            "ops": "true",
            "commits_off": "f = 'commit_off'",
            "fetched": "f = 'fetch_off' AND outcome = 'ok'",
            "routes": "f = 'route' AND outcome = 'ok' AND term IS NOT NULL",
            "lookups": "f = 'lookup' AND outcome = 'ok'",
            "delayed": "f = 'send' AND delay_ms > 0",
            "transactions": "f IN ('txn_begin', 'txn_commit', 'txn_rollback') AND mid IS NOT NULL",
        },
    ),
    (
        "sends",
        {
            "sends": "true",
            "oks": "outcome = 'ok'",
            "acked": "outcome = 'ok' AND pos IS NOT NULL",
            "failed": "outcome = 'fail'",
            "indeterminate": "outcome = 'info'",
            "acked_terms": "outcome = 'ok' AND term IS NOT NULL",
            "batches": "f = 'send_batch'",
        },
    ),
    ("dlv", {"reads": "true", "group_reads": "grp IS NOT NULL"}),
    (
        "reads",
        {
            "stale_reads": "stale AND outcome = 'ok'",
            "min_offs": "f = 'min_off' AND outcome = 'ok'",
        },
    ),
    ("known", {"seen": "true"}),
    ("dump", {"dump": "true"}),
    ("cq", {"cq": "true"}),
    (
        "member",
        {
            "joins": "e = 'join'",
            "orderly": "e = 'join' AND mode = 'orderly'",
            "assigns": "e = 'assign'",
        },
    ),
    (
        "nodes",
        {
            "raft": "ev = 'raft'",
            "leaders": "e = 'leader'",
            "votes": "e = 'vote'",
            "commits": "e = 'commit'",
            "acks": "e = 'ack'",
            "flushes": "e IN ('flush', 'install', 'append')",
            "applied": "e = 'apply'",
            "chains": "e = 'append' AND chain IS NOT NULL",
            "recoveries": "e = 'recover'",
            "ready": "e = 'master_ready'",
            "elected": "e = 'elected'",
            "demoted": "e = 'demoted'",
        },
    ),
    (
        "histories",
        {
            **{f"of_{model}": f"history = '{model}'" for model in MODELS},
            "unplaced_reads": "history <> 'list' AND history <> 'kafka' AND f <> 'append' AND outcome = 'ok'",
            "last_reads": "history IN ('set', 'queue') AND f <> 'append' AND outcome = 'ok'",
            "takes": "history = 'queue' AND f <> 'append'",
            "set_reads": "history = 'set' AND f = 'get' AND outcome = 'ok'",
            "register_reads": "history = 'register' AND f = 'get' AND outcome = 'ok'",
            "list_reads": "history = 'list' AND f = 'get' AND outcome = 'ok'",
        },
    ),
    ("fault", {"faults": "e = 'begin'", "effective": "e = 'begin' AND effective"}),
    ("runs", {"drained": "drained IS NOT NULL", "healed": "healed IS NOT NULL"}),
)

Census = dict[str, dict[str, int]]


def take_census(engine: Engine) -> Census:
    """run -> name of the count -> count; every count of every run that has lines."""
    names = [name for _, counts in _COUNTS for name in counts]
    found: Census = defaultdict(lambda: dict.fromkeys(names, 0))
    for table, counts in _COUNTS:
        columns = ", ".join(
            f"count(*) FILTER (WHERE {condition}) AS {name}" for name, condition in counts.items()
        )
        for row in engine.rows(f"SELECT run, {columns} FROM {table} WHERE run IS NOT NULL GROUP BY run"):
            run = str(row.pop("run"))
            found[run].update({name: int(value or 0) for name, value in row.items()})
    return dict(found)
