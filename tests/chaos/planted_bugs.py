"""The bugs that `tests.chaos.planted` plants, each with the scenario that has to find it."""

from __future__ import annotations

from dataclasses import dataclass

from chaos.plans.scenario import FOLDER

TIMING = """
[settings.timing]
heartbeat_ms = 50
election_min_ms = 300
election_max_ms = 600
silence_ms = 0
"""


@dataclass(frozen=True, slots=True)
class Bug:
    """`old` stands once in `file` and becomes `new`. `faults`: the scenario that has to find it, or
    `built_in`, its name. `checks`: of the Spark job, one of which has to; none: the quick check."""

    name: str
    file: str
    old: str
    new: str
    faults: str = ""
    workload: str = "log"
    seconds: float = 6
    checks: tuple[str, ...] = ()
    #: Further keys of the scenario, before its tables.
    keys: str = ""
    built_in: str = ""

    def scenario(self) -> str:
        if self.built_in:
            return (FOLDER / f"{self.built_in}.toml").read_text()
        return (
            f'name = "planted-{self.name}"\ntitle = "For {self.name}"\nworkload = "{self.workload}"\n'
            f"seconds = {self.seconds}\n{self.keys}{self.faults}\n{'' if self.keys else TIMING}"
        )


def fault(kind: str, target: str, at: float, lasts: float, every: float = 0) -> str:
    return f'[[fault]]\nkind = "{kind}"\ntarget = "{target}"\nat = {at}\nlasts = {lasts}\nevery = {every}\n'


#: What released clients send, and how they consume.
KINDS = "[load]\nclients = 2\nrate = 100\ndelayed = 0.2\ntransactional = 0.2\npush = true\n"

#: What makes nothing durable, or too late, and tells itself that all is well. A fault that takes no data away
#: is enough: the evidence is in the syncs.
SYNC_BUGS = (
    Bug(
        "report-before-fsync",
        "dledger/node/disk/disk_worker.py",
        "        self._sync()\n        self.report(writes)\n",
        "        self.report(writes)\n        self._sync()\n",
        fault("kill", "follower", 1, 0.5),
        seconds=3,
        checks=("P2",),
    ),
    Bug(
        "fsync-large-batches-only",
        "dledger/node/disk/disk_worker.py",
        "        self._sync()\n        self.report(writes)\n",
        "        if sum(batch.size for job in writes for batch in job.batches) > 1024:\n"
        "            self._sync()\n"
        "        self.report(writes)\n",
        fault("kill", "follower", 1, 0.5),
        seconds=3,
        checks=("P2",),
    ),
    Bug(
        "fsync-another-file",
        "dledger/store/files.py",
        "            handle = self._handles[start]\n            self._sync_handle(handle)\n",
        "            handle = self._handles[start]\n"
        "            self._sync_handle(self._handles[max(self._handles)])\n",
        fault("kill", "follower", 1, 0.5),
        seconds=3,
        checks=("P2",),
    ),
    Bug(
        "claim-to-have-synced",
        "dledger/store/disk_store.py",
        "            self._data.sync()\n            self._write_records(",
        "            self._write_records(",
        fault("kill", "follower", 1, 0.5),
        seconds=3,
        checks=("P2",),
    ),
    Bug(
        "never-fsync-the-directory",
        "dledger/store/files.py",
        "            self._disk.fdatasync(handle)\n            self._disk.sync_directory(self.directory)\n",
        "            self._disk.fdatasync(handle)\n",
        fault("kill", "follower", 1, 0.5),
        seconds=3,
        checks=("P2",),
    ),
    Bug(
        "vote-before-it-is-durable",
        "dledger/node/disk/disk_worker.py",
        "                self._store.save_hard_state(hard_state)\n"
        "                self._deliver(HardStateReport(number))\n",
        "                self._deliver(HardStateReport(number))\n"
        "                self._store.save_hard_state(hard_state)\n",
        fault("kill", "leader", 1, 0.5),
        seconds=3,
        checks=("R16",),
    ),
)

#: A node is replaced while the clients go on.
_REPLACED = fault("replace", "leader", 1, 0.5)
#: Meanwhile the other follower is slow, so that the leader and the new node are first to have an entry.
_REPLACED_BESIDE_A_SLOW_NODE = (
    fault("replace", "leader", 1, 1.5) + fault("slow_disk", "follower", 2, 6) + "slow_ms = 300\n"
)
_LOST = fault("lose_majority", "majority", 1, 0.5)
_PROMOTED = fault("promote_mirror", "all", 1, 0.5)

#: What a group does while its members change, and after a forced recovery.
MEMBER_BUGS = (
    Bug(
        "change-in-one-step",
        "dledger/core/membership_change.py",
        "    if set(current.voters) == set(target.voters):\n        return target\n",
        "    return target\n",
        _REPLACED,
        seconds=3,
        checks=("R26",),
    ),
    Bug(
        "commit-by-the-incoming-voters-alone",
        "dledger/core/quorum.py",
        "for v in voters], voters) for voters in membership.halves)\n",
        "for v in voters], voters) for voters in membership.halves[:1])\n",
        _REPLACED_BESIDE_A_SLOW_NODE,
        seconds=8.5,
        checks=("P2",),
    ),
    Bug(
        "count-learners",
        "dledger/core/quorum.py",
        "kth_greatest([match.get(v, -1) for v in voters], voters)",
        "kth_greatest([match.get(v, -1) for v in (*voters, *membership.learners)], voters)",
        _REPLACED_BESIDE_A_SLOW_NODE,
        seconds=8.5,
        checks=("P2",),
    ),
    Bug(
        "forget-the-configuration",
        "dledger/core/raft.py",
        "memberships=known))",
        "memberships=known[:1]))",
        _REPLACED + fault("kill", "follower", 2, 0.5) + "after = 1\n",
        seconds=4,
        checks=("R32",),
    ),
    Bug(
        "recover-without-the-uncommitted-end",
        "dledger/store/offline/recover.py",
        "        store, identity = self._store, self._identity\n        state, node_id = with_own",
        "        self._store.truncate_after(self._store.committed_checkpoint)\n"
        "        store, identity = self._store, self._identity\n        state, node_id = with_own",
        _LOST,
        seconds=3,
        checks=("R31",),
    ),
    Bug(
        "promote-with-one-batch-too-few",
        "dledger/store/offline/recover.py",
        "                store.truncate_after(self._committed)\n",
        "                below = self._committed - 1\n"
        "                while store.entry(below).channel:\n"
        "                    below -= 1\n"
        "                store.truncate_after(below)\n",
        _PROMOTED,
        seconds=3,
    ),
    Bug(
        "promote-with-the-uncommitted-end",
        "dledger/store/offline/recover.py",
        "                store.truncate_after(self._committed)\n",
        "                pass\n",
        _PROMOTED,
        seconds=3,
        checks=("R33",),
    ),
    Bug(
        "stop-without-storing-the-last-commit",
        "dledger/node/parts.py",
        "        self.shell.checkpoint()\n",
        "",
        _PROMOTED,
        seconds=3,
        checks=("R33",),
    ),
)

#: What nodes do to the log, and brokers to its queues and to the offsets of groups.
LOG_BUGS = (
    Bug(
        "elect-with-a-minority",
        "dledger/core/quorum.py",
        "sum(v in nodes for v in voters) >= majority(voters)",
        "sum(v in nodes for v in voters) >= majority(voters) - 1",
        fault("isolate", "leader", 1, 2.5),
        seconds=4,
        checks=("R1", "R3"),
    ),
    Bug(
        "follower-commits-ahead",
        "dledger/core/following.py",
        "self.core.commit_to(min(leader_committed, self.core.log.verified_index))",
        "self.core.commit_to(self.core.log.end_index)",
        fault("isolate", "leader", 1, 2.5),
        seconds=4,
    ),
    Bug(
        "send-outside-the-session",
        "dledger/client/pipeline.py",
        "            mark = None if self.session_id is None else SessionMark(self.session_id, batch.seq)\n",
        "            mark = None\n",
        fault("kill", "leader", 1, 1, 2),
        seconds=8,
    ),
    Bug(
        "lose-the-last-of-a-run",
        "broker_adapter/store/dispatching.py",
        "        return self._dispatch(entries, is_replay=False)\n",
        "        return self._dispatch(entries[:-1] if len(entries) > 3 else entries, is_replay=False)\n",
        fault("kill", "follower", 1, 0.5),
        workload="broker",
        seconds=4,
    ),
    Bug(
        "leave-out-a-queue-offset",
        "broker_adapter/put/message_writer.py",
        "        self._next[queue] = first + count\n",
        "        self._next[queue] = first + count + (first % 50 == 49)\n",
        fault("kill", "follower", 1, 0.5),
        workload="broker",
        seconds=4,
    ),
    Bug(
        "offsets-in-memory-only",
        "broker_adapter/metadata/proposals.py",
        "        request_id = self._new_request_id()\n",
        "        if type(command).__name__ == 'CommitOffsets':\n"
        "            return Outcome(0)\n"
        "        request_id = self._new_request_id()\n",
        fault("kill", "leader", 1, 0.5),
        workload="broker",
        seconds=6,
        checks=("S9",),
    ),
    Bug(
        "lower-offset-wins",
        "broker_adapter/metadata/state.py",
        "return committed if stored is None else max(stored, committed)",
        "return committed - 1",
        fault("kill", "leader", 1, 0.5),
        workload="broker",
        seconds=6,
        checks=("S9",),
    ),
)

#: What consumers are given that restart, or whose offsets are reset.
GROUP_BUGS = (
    Bug(
        "reset-without-effect",
        "broker_adapter/metadata/state.py",
        "            changed[topic, queue_id] = offset\n            if has_barriers:\n",
        "            if queue_id == 1:\n"
        "                continue\n"
        "            changed[topic, queue_id] = offset\n"
        "            if has_barriers:\n",
        fault("kill", "follower", 2, 0.5),
        workload="broker",
        seconds=10,
        checks=("C24",),
    ),
    Bug(
        "locks-that-end-too-early",
        "broker_adapter/endpoints/v4/locks.py",
        "        return age_s >= self._live_s or (\n",
        "        return age_s >= self._live_s - 3 or (\n",
        fault("kill", "follower", 2, 0.5),
        workload="broker",
        seconds=12,
        checks=("C25",),
    ),
)

#: What clients see only when they ask a node that is no master yet.
INDEX_BUGS = (
    Bug(
        "index-misses-some",
        "broker_adapter/store/dispatching.py",
        "        if route.is_keyed and part != TRANSACTION_ROLLBACK:\n",
        "        if route.is_keyed and part != TRANSACTION_ROLLBACK and entry.index % 64:\n",
        fault("kill", "follower", 2, 0.5),
        workload="broker",
        seconds=4,
        checks=("B8",),
    ),
    Bug(
        "units-of-another-size",
        "broker_adapter/store/dispatching.py",
        "                units.parts.append(_pack_unit(physical_offset, size, code))\n",
        "                units.parts.append(_pack_unit(physical_offset, size + 1, code))\n",
        fault("kill", "follower", 2, 0.5),
        workload="broker",
        seconds=4,
        checks=("B1",),
    ),
)

#: What released clients are given, and what they send twice.
DELIVERY_BUGS = (
    Bug(
        "deliver-delayed-again",
        "broker_adapter/scheduled/deferred_delivery.py",
        "            elements=[EndDeferred(deferred_id, ending)],\n",
        "            elements=[] if ending is Ending.MOVED else [EndDeferred(deferred_id, ending)],\n",
        KINDS + fault("kill", "follower", 1, 1),
        workload="clients",
        seconds=4,
    ),
    Bug(
        "forget-sends-too-early",
        "broker_adapter/delivery_state/duplicate_filter.py",
        "\nMAX_AGE_MS: Final = 60_000\n",
        "\nMAX_AGE_MS: Final = 500\n",
        KINDS + fault("kill", "follower", 1, 1),
        workload="clients",
        seconds=4,
    ),
    Bug(
        "drop-committed-halves",
        "broker_adapter/scheduled/deferred_delivery.py",
        "        if ending in (Ending.MOVED, Ending.COMMITTED):\n",
        "        if ending is Ending.MOVED:\n",
        KINDS + fault("kill", "follower", 1, 1),
        workload="clients",
        seconds=4,
    ),
)

#: Entries go by size, or by age; files are small enough for many of them to go.
BY_SIZE = 'data_file_size = 65536\n[settings.retention]\nmax_bytes = 400000\ncheck_interval = "300ms"\n'
BY_AGE = 'data_file_size = 131072\n[settings.retention]\nmax_age = "5s"\ncheck_interval = "300ms"\n'

#: What is purged too early, or too much of it.
RETENTION_BUGS = (
    Bug(
        "purge-what-is-too-young",
        "dledger/replica/retention.py",
        "            and border.is_older(policy.max_age_ms, now_ms, wall_ms)\n",
        "            and border.is_older(policy.max_age_ms // 2, now_ms, wall_ms)\n",
        BY_AGE + fault("kill", "leader", 4, 0.5),
        workload="broker",
        seconds=9,
        checks=("P10",),
    ),
    Bug(
        "purge-what-has-too-little-behind-it",
        "dledger/replica/retention.py",
        "policy.max_bytes is not None and end_pos - border.base.pos >= policy.max_bytes\n",
        "policy.max_bytes is not None and end_pos - border.base.pos >= policy.max_bytes // 2\n",
        BY_SIZE + fault("kill", "leader", 4, 0.5),
        seconds=8,
        checks=("P10",),
    ),
    Bug(
        "purge-beyond-the-committed-base",
        "dledger/replica/retainer.py",
        "                self.purge_to = mark.base\n",
        "                store, committed = self._replica.store, self._replica.core.committed_index\n"
        "                below = [b for b in store.borders() if b.index < committed]\n"
        "                self.purge_to = below[-1]\n",
        BY_SIZE + fault("kill", "leader", 4, 0.5),
        seconds=8,
        checks=("B6",),
    ),
    Bug(
        "queues-forget-more-than-the-log",
        "broker_adapter/store/consume_queue.py",
        "        return self._raise_minimum(self.min_offset + kept)\n",
        "        return self._raise_minimum(min(self.max_offset, self.min_offset + kept + 40))\n",
        BY_AGE + fault("kill", "leader", 4, 0.5),
        workload="broker",
        seconds=9,
        checks=("B2", "L6b"),
    ),
)

#: A classic master is lost while its slave hears nothing.
_CLASSIC = 'store = "classic"\nnodes = 2\n'
_LOST = (
    "[load]\nmax_batch = 1\nconsumers = 0\nat_once = 4\n"
    + fault("hang", "follower", 5.4, 2.6)
    + fault("take_over", "leader", 6, 1)
)

#: What a classic master says of its slave, and what that one makes of the log.
CLASSIC_BUGS = (
    Bug(
        "acknowledge-before-the-slave",
        "broker_adapter/log/classic/node/replication.py",
        "            self._service.transfer.when_acked(offset, timeout_ms, done)\n",
        "            done(SlaveAck.PUT_OK)\n",
        _LOST,
        workload="broker",
        seconds=9,
        keys=_CLASSIC,
    ),
    Bug(
        "change-what-a-slave-stores",
        "broker_adapter/log/classic/ha/client.py",
        "            if complete:\n",
        "            if complete:\n"
        "                complete = bytearray(complete)\n"
        "                complete[47] ^= 1  # of the time at which a message was born\n",
        _LOST,
        workload="broker",
        seconds=9,
        checks=("D4", "D5"),
        keys=_CLASSIC,
    ),
    Bug(
        "count-what-was-sent-as-stored",
        "broker_adapter/log/classic/ha/connection.py",
        "        self.progress.sent_frame(len(data))\n",
        "        self.progress.sent_frame(len(data))\n"
        "        self._user.acknowledged(self, self.progress.sent)\n",
        "[load]\nmax_batch = 1\nconsumers = 0\nat_once = 4\n" + fault("delay", "follower", 1, 2),
        workload="broker",
        seconds=4,
        checks=("D7",),
        keys=_CLASSIC,
    ),
)

#: What is answered by a leader that has been deposed.
READ_BUGS = (
    Bug(
        "read-without-confirming",
        "dledger/core/leadership.py",
        "        self.reads.add(request_id, self.core.committed_index, self.round)\n"
        "        self._confirm_reads()\n",
        "        self.core.emit(ReadReady(request_id, self.core.committed_index))\n",
        built_in="leader-isolated",
        checks=("L7",),
    ),
)

BUGS = (
    Bug(
        "acknowledge-before-quorum",
        "dledger/core/leadership.py",
        "        index = committed_by(core.membership, match)\n",
        "        index = match[core.node_id]\n",
        fault("isolate", "leader", 1, 2.5),
        seconds=4,
    ),
    Bug(
        "vote-twice-after-restart",
        "dledger/node/disk/disk_worker.py",
        "                self._store.save_hard_state(hard_state)\n",
        "",
        fault("kill", "all", 1, 0.5),
        seconds=3,
        checks=("R2", "R12"),
    ),
    Bug(
        "truncate-committed-suffix",
        "dledger/node/parts.py",
        "    state = store.hard_state\n",
        "    store.truncate_after(max(store.base.index, store.committed_checkpoint))\n"
        "    store.sync()\n"
        "    state = store.hard_state\n",
        fault("kill", "all", 2, 0.5),
        seconds=4,
    ),
    Bug(
        "promote-before-reput",
        "broker_adapter/role/role_change.py",
        "lambda: self._adapter.wait_dispatched(barrier)\n",
        "lambda: None\n",
        fault("kill", "all", 2, 0.5),
        workload="broker",
        seconds=4,
    ),
    Bug(
        "reuse-queue-offsets",
        "broker_adapter/put/message_writer.py",
        "        self._next = dict(next_offsets)\n",
        "        self._next = {**next_offsets, **self._next}\n",
        fault("isolate", "leader", 1, 1.5, 2),
        workload="broker",
        seconds=10,
    ),
    Bug(
        "acknowledge-before-fsync",
        "dledger/node/disk/disk_worker.py",
        "        self._sync()\n        self.report(writes)\n",
        "        self.report(writes)\n        self._sync()\n",
        # While a sync takes its time, what was written is acknowledged on all three.
        fault("slow_disk", "all", 0.5, 3.5) + fault("power_loss", "all", 2, 0.5),
        seconds=4,
    ),
    *SYNC_BUGS,
    *MEMBER_BUGS,
    *LOG_BUGS,
    *GROUP_BUGS,
    *INDEX_BUGS,
    *RETENTION_BUGS,
    *CLASSIC_BUGS,
    *READ_BUGS,
    Bug(
        "forget-acks",
        "broker_adapter/delivery/service.py",
        "            done = await self._commit(request, timeout_ms)\n        statuses",
        "            done = [True] * len(elements)\n        statuses",
        fault("kill", "follower", 1, 1),
        workload="clients",
        seconds=8,
    ),
    Bug(
        "store-repeated-sends",
        "broker_adapter/delivery_state/duplicate_filter.py",
        "        if nearest is not None or ended is not None:\n",
        "        if (nearest := ended) is not None:\n",
        fault("kill", "leader", 1, 1, 3),
        workload="clients",
        seconds=10,
    ),
    Bug(
        "deliver-delayed-at-once",
        "broker_adapter/scheduled/deferred_delivery.py",
        "_replace(due_ms=max(0, deliver_at_ms))\n",
        "_replace(due_ms=0)\n",
        KINDS + fault("kill", "follower", 1, 1),
        workload="clients",
        seconds=4,
    ),
    Bug(
        "deliver-rolled-back",
        "broker_adapter/scheduled/deferred_delivery.py",
        "        if ending in (Ending.MOVED, Ending.COMMITTED):\n",
        "        if ending is not Ending.RECALLED:\n",
        KINDS + fault("kill", "leader", 1, 1),
        workload="clients",
        seconds=4,
    ),
    Bug(
        "give-to-two-at-a-time",
        "broker_adapter/delivery_state/state.py",
        "        invisible_until_ms = awake_ms + pop.invisible_ms\n",
        "        invisible_until_ms = awake_ms + pop.invisible_ms // 80\n",
        KINDS + fault("kill", "follower", 1, 1),
        workload="clients",
        seconds=8,
        checks=("C12",),
    ),
    *DELIVERY_BUGS,
)
