"""The hand-written part of docs/reference/troubleshooting.md: causes and fixes by symptom."""

from __future__ import annotations

_FAILURES = "[operations](../operations.md#failures)"

#: Symptom -> rows of (check, cause, fix).
SYMPTOMS: tuple[tuple[str, tuple[tuple[str, str, str], ...]], ...] = (
    (
        "A node does not start",
        (
            (
                "the last line of its log",
                "631: the directory belongs to no node",
                "new group: `dledger init`; added node: `--join`; lost directory: `--rejoin`",
            ),
            ("", "630: an invalid key or value", "correct the key named in the line"),
            ("", "633, 635: the directory or a port is in use", "stop the other process"),
            (
                "",
                "637: plain text on an address beyond loopback",
                "add `[tls]`, or `allow_plaintext` and a secret",
            ),
            (
                "",
                "634, 642: the directory of another node, or a damaged one",
                "see the number; then `--rejoin`",
            ),
            ("", "624: an implausibly high term", f"`dledger set-term`, see {_FAILURES}"),
            ("`ulimit -n`", "fewer than 1,024 file descriptors", "raise `LimitNOFILE=`"),
        ),
    ),
    (
        "A node has exited",
        (
            (
                "its exit code",
                "74: a disk error or a violated invariant",
                "see 641, 414, 408, 409; replace the disk",
            ),
            ("", "70: its event loop was blocked", "restart it; report the stack trace in its log"),
            (
                "",
                "74 with 638: another directory of the node is the newest",
                f"bring it back, or `--rejoin`, see {_FAILURES}",
            ),
            (
                "",
                "137 (128 + SIGKILL): the out-of-memory killer or `kill -9`",
                "check `dmesg`; provide more memory",
            ),
        ),
    ),
    (
        "No leader, or no master",
        (
            ("`dledger status`", "no majority of the nodes is running", "start the other nodes"),
            (
                "the log of a node: `peer refuses requests`",
                "401, 402, 620, 621, 623, 625, 636",
                "see the number",
            ),
            (
                "`dledger status`: `rejoining`",
                "too many nodes lost their logs",
                f"start all members, see {_FAILURES}",
            ),
            (
                "`dledger broker status`: `waits for`",
                "the leader's broker has not finished dispatch, or its adapter fails",
                "wait; check its log for errors",
            ),
        ),
    ),
    (
        "Leadership changes repeatedly",
        (
            (
                "`dledger_elections_total` by cause",
                "`disk-stalled`: a slow disk",
                "replace it; raise `timing.fsync_stall_ms`",
            ),
            (
                "",
                "`commit-stalled`: followers receive heartbeats but no entries",
                "check for a middlebox or MTU that drops large packets",
            ),
            (
                "",
                "election time-outs: the CPU or the network is too slow",
                "raise `timing.election_min_ms` and `election_max_ms` on all nodes",
            ),
        ),
    ),
    (
        "Appends or sends fail or are slow",
        (
            (
                "the number",
                "404, 700: the leader has just changed",
                "clients retry; list all nodes in `--servers`",
            ),
            ("", "415, 703: the disk is full", "free space, or set `[retention]`"),
            ("", "503, 702: too many operations are in progress", "send less concurrently"),
            (
                "",
                "300, 501, 502, 710: the outcome is indeterminate",
                "check `dledger status`; read before you resend",
            ),
            ("", "650: the log belongs to a broker", "`dledger broker produce`"),
            ("`dledger_fsync_latency_seconds`", "a slow disk", "use a disk that syncs in less than 10 ms"),
            (
                "`dledger_follower_lag_entries`",
                "a follower is catching up",
                f"none required, see {_FAILURES}",
            ),
        ),
    ),
    (
        "Reads fail",
        (
            (
                "the number",
                "622: the read cannot be confirmed",
                "use another node, or `local` reads if stale data is acceptable",
            ),
            (
                "",
                "419, 740: the data was purged",
                "continue at the index in the message; raise the retention",
            ),
            ("", "410, 741: the data does not exist yet", "wait, or reset the offset"),
            ("", "640, 745: damaged on this node, repair in progress", "read from another node"),
        ),
    ),
    (
        "Consumers receive no messages, or duplicates",
        (
            (
                "`dledger broker offsets show GROUP`",
                "the group has committed all messages",
                "`dledger broker offsets reset GROUP --to-earliest`",
            ),
            (
                "`dledger broker status`: dispatch lag",
                "the broker is still building its queues from the log",
                "wait; check its disk and CPU",
            ),
            (
                "the number",
                "761: the group's offsets were reset",
                "none required: consumers continue at the new offsets",
            ),
            ("", "747: the acknowledgment was too late", "request a longer invisible time"),
            ("duplicates", "at-least-once delivery after a failover", "make handlers idempotent"),
        ),
    ),
    (
        "A client cannot connect",
        (
            (
                "the number",
                "302: a node is down, a wrong address, or a client without TLS",
                "`dledger status`; give the client `--tls-ca`",
            ),
            ("", "636: a certificate was refused", "`openssl x509 -in FILE -noout -text`"),
            ("", "705, 791: no route", "`dledger-namesrv status`; `--servers` works without a NameServer"),
            (
                "connections that close immediately, without a number",
                "`limits.max_connections` is reached",
                "see [limits](../limits.md#connections)",
            ),
        ),
    ),
    (
        "The disk fills up",
        (
            (
                "`ledger_begin_index` remains 0",
                "no `[retention]`",
                "configure it, or run `dledger purge --before-age 7d`",
            ),
            (
                "`dledger_follower_lag_bytes`",
                "entries are kept for a slow follower",
                "`retention.hold_bytes`",
            ),
        ),
    ),
)
