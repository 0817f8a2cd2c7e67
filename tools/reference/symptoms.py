"""The hand-written part of docs/reference/troubleshooting.md: what people see -> where to look."""

from __future__ import annotations

_DAYS = "[operations](../operations.md#the-bad-days-one-by-one)"

#: Symptom -> rows of (look at, cause, fix).
SYMPTOMS: tuple[tuple[str, tuple[tuple[str, str, str], ...]], ...] = (
    (
        "A node does not start",
        (
            (
                "the last line of its log",
                "631: the directory holds no node",
                "`dledger init`; a lost one: `--rejoin`",
            ),
            ("", "630: a wrong key or value", "correct the key that the line names"),
            ("", "633, 635: directory or port in use", "stop the other process"),
            ("", "637: plain text beyond this machine", "add `[tls]`, or `allow_plaintext` and a secret"),
            ("", "623: another list of members", "give all nodes the same ids"),
            ("", "634, 642: a foreign or damaged directory", "see the number; then `--rejoin`"),
            ("", "624: a term beyond reason", f"`dledger set-term`, see {_DAYS}"),
            ("`ulimit -n`", "fewer than 1,024 file descriptors", "raise `LimitNOFILE=`"),
        ),
    ),
    (
        "A node has ended",
        (
            (
                "its exit code",
                "74: the disk, or a broken invariant",
                "see 641, 414, 408, 409; replace the disk",
            ),
            ("", "70: its event loop was stuck", "start it again; report the trace in its log"),
            (
                "",
                "137 (128 + SIGKILL): the out-of-memory killer, or a person",
                "`dmesg`; give it more memory",
            ),
        ),
    ),
    (
        "No leader, or no master",
        (
            ("`dledger status`", "fewer than a majority of the nodes run", "start the others"),
            ("the log of a node: `peer refuses to talk`", "620, 621, 623, 625, 636", "see the number"),
            (
                "`dledger status`: `rejoining`",
                "too many nodes lost their logs",
                f"start all members, see {_DAYS}",
            ),
            (
                "`dledger broker status`: `waits for`",
                "the leader's broker works its dispatch off, or its adapter fails",
                "wait; read the error in its log",
            ),
        ),
    ),
    (
        "Leadership changes again and again",
        (
            (
                "`dledger_elections_total` by cause",
                "`disk-stalled`: a slow disk",
                "replace it; raise `timing.fsync_stall_ms`",
            ),
            (
                "",
                "`commit-stalled`: heartbeats pass, pushes do not",
                "look for a middlebox or MTU that drops large packets",
            ),
            (
                "",
                "time-outs: CPU or network are too slow",
                "raise `timing.election_min_ms` and `_max_ms` on all nodes",
            ),
        ),
    ),
    (
        "Appends or sends fail or are slow",
        (
            (
                "the number",
                "404, 700: the leader has just changed",
                "clients try again; name all nodes in `--servers`",
            ),
            ("", "415, 703: the disk is full", "free space, or set `[retention]`"),
            ("", "503, 702: too much is under way", "send less at once"),
            ("", "300, 501, 502, 710: in doubt", "see `dledger status`; read before you send again"),
            ("", "650: the log belongs to a broker", "`dledger broker produce`"),
            ("`dledger_fsync_latency_seconds`", "a slow disk", "use a disk that syncs in less than 10 ms"),
            ("`dledger_follower_lag_entries`", "a follower catches up", f"nothing, see {_DAYS}"),
        ),
    ),
    (
        "Reads fail",
        (
            (
                "the number",
                "622: the read cannot be confirmed",
                "ask another node; read `local` where stale is enough",
            ),
            ("", "419, 740: it was purged", "go on from the begin that the message shows; keep more"),
            ("", "410, 741: it is yet to come", "wait, or reset the offset"),
            ("", "640, 745: damaged here, being repaired", "read from another node"),
        ),
    ),
    (
        "Consumers get nothing, or get things again",
        (
            (
                "`dledger broker offsets show GROUP`",
                "all was committed",
                "`dledger broker offsets reset GROUP --to-earliest`",
            ),
            (
                "`dledger broker status`: dispatch lag",
                "the broker makes its queues from the log",
                "wait; look at its disk and CPU",
            ),
            (
                "the number",
                "761, 764: the member's lease ran out",
                "consumers join again; make handlers faster",
            ),
            ("", "747: the message was acknowledged too late", "ask for a longer invisible time"),
            ("duplicates", "at-least-once delivery after a failover", "make handlers idempotent"),
        ),
    ),
    (
        "A client does not connect",
        (
            (
                "the number",
                "302: down, wrong address, or plain text against TLS",
                "`dledger status`; give the client `--tls-ca`",
            ),
            ("", "636: a certificate is refused", "`openssl x509 -in FILE -noout -text`"),
            ("", "705, 791: no route", "`dledger-namesrv status`; `--servers` works without a NameServer"),
            (
                "closed at once, without a number",
                "`limits.max_connections` is reached",
                "see [limits](../limits.md#connections)",
            ),
        ),
    ),
    (
        "The disk fills up",
        (
            (
                "`ledger_begin_index` stays 0",
                "no `[retention]`",
                "set it, or `dledger purge --before-age 7d`",
            ),
            ("`dledger_follower_lag_bytes`", "a slow follower holds purging back", "`retention.hold_bytes`"),
        ),
    ),
)
