"""One seed, from start to verdict: brokers, clients and faults, then healing and the checks of the end."""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import TextIO

import structlog

from broker_adapter.delivery_state.commands import QueueKey
from broker_adapter.wire.message import decode
from dledger.testing import Profile, Violation, check_end, draw_profile, settle_ms
from tests.broker_adapter.simulator.broker_node import SimBroker
from tests.broker_adapter.simulator.clients import (
    PASSING,
    SHORT_LIVED,
    TOPICS,
    Administrator,
    Client,
    Passerby,
    Producer,
    TopicChurn,
)
from tests.broker_adapter.simulator.consumers import GroupLog, Member
from tests.broker_adapter.simulator.derived import DerivedFiles
from tests.broker_adapter.simulator.poison import Poisoner
from tests.broker_adapter.simulator.pop_clients import (
    POP_GROUPS,
    POPPED_TOPIC,
    AbandonedConsumer,
    NewGroups,
    OnceProducer,
    PassingConsumer,
    PopConsumer,
)
from tests.broker_adapter.simulator.simulation import BrokerNemesis, BrokerSimulation
from tests.broker_adapter.simulator.truth import Stored

TRACE_LINES = 60
#: The faults of brokers, beside those of nodes.
FAULTS = ("crash_in_derived_files",)
_GROUPS = ("billing", "audit")
_FILE_SIZE = 8192
_SLOW_DISKS_MS = 30
_LOOKED_UP = 50  # messages of a queue that are looked up by their keys, on each node


@dataclass
class RunResult:
    """What a run did, and `failure`, the text of what went wrong, if anything did."""

    seed: int
    profile: Profile
    virtual_ms: int = 0
    steps: int = 0
    writable_ms: int = 0  # from the end of the faults until a broker took writes
    heal_ms: int = 0  # from the end of the faults until everything was consumed and equal
    counts: Counter[str] = field(default_factory=Counter)
    failure: str | None = None
    rule: str | None = None  # of the violation


def broker_profile(seed: int) -> Profile:
    """What a seed decides: as for clusters without brokers, with records that are larger than bodies."""
    rng = Random(f"broker profile {seed}")
    drawn = draw_profile(rng)
    kept = drawn.retention.max_bytes
    retention = replace(drawn.retention, max_bytes=None if kept is None else kept * 2)
    faults = drawn.faults + (FAULTS if rng.random() < 0.5 else ())
    if drawn.fsync_min_ms:
        # Records are large, and a round trip takes two syncs: less would be less than producers send. With
        # slower disks, what is received would be visible again before it could be acknowledged.
        slow_ms = min(drawn.fsync_min_ms, _SLOW_DISKS_MS)
        slow = replace(drawn, fsync_min_ms=slow_ms, fsync_max_ms=2 * slow_ms)
        drawn = replace(slow, max_push_bytes=2000, max_inflight_bytes=20_000)
    return replace(
        drawn,
        data_file_size=_FILE_SIZE,
        retention=retention,
        faults=faults,
        plain_clients=rng.randint(1, 3),  # producers
        session_clients=0,
        readers=rng.randint(2, 4),  # members of the groups
        owned=False,
        max_batch=rng.randint(1, 5),
        think_max_ms=rng.choice((4, 15, 60)),
        fault_phase_ms=rng.randint(4000, 8000),
    )


def run_seed(seed: int, profile: Profile | None = None, *, sink: TextIO | None = None) -> RunResult:
    """Run one seed to its verdict. Never raises for what the run finds: that is in `failure`."""
    with _quiet():
        profile = profile or broker_profile(seed)
        sim = BrokerSimulation(profile, seed=seed, sink=sink)
        result = RunResult(seed, profile)
        try:
            _Run(sim, result).drive()
        except Exception as error:  # whatever a broker raises is a finding about this seed
            result.rule = error.rule if isinstance(error, Violation) else type(error).__name__
            result.failure = _report(sim, error)
        sim.close()
        result.virtual_ms = sim.clock.now_ms
        result.steps = sim.clock.steps
        result.counts = sim.counts
        result.counts["masterships"] = sim.masterships
        result.counts["delayed messages carried"] = sim.truth.delivery.model.carried
        expired = sim.truth.deletions.total() - sim.truth.deletions[SHORT_LIVED]
        result.counts["topics expired"] = expired
        for outcome in ("expired", "kept"):
            result.counts[f"groups {outcome}"] = sim.truth.expiries[outcome]
        result.counts["messages acknowledged"] = len(sim.truth.acknowledged)
        return result


class _Run:
    def __init__(self, sim: BrokerSimulation, result: RunResult) -> None:
        self._sim = sim
        self._result = result
        profile, random_for = sim.profile, sim.seeds.random_for
        self._producers = [
            Producer(sim, f"p{i}", random_for(f"producer {i}")) for i in range(profile.plain_clients)
        ]
        self._groups = [GroupLog(name) for name in _GROUPS]
        self._members = [
            Member(sim, f"m{i}", random_for(f"member {i}"), self._groups[i % len(_GROUPS)])
            for i in range(profile.readers)
        ]
        self._once = [OnceProducer(sim, f"o{i}", random_for(f"once {i}")) for i in range(2)]
        self._pops = [
            PopConsumer(sim, f"c{i}", random_for(f"pop {i}"), POP_GROUPS[i % len(POP_GROUPS)])
            for i in range(len(POP_GROUPS) + 1)
        ]
        # In half of the runs: what others find must not depend on it.
        count = 1 if profile.plain_clients != 2 else 0
        poisoners = [Poisoner(sim, f"x{i}", random_for(f"poison {i}")) for i in range(count)]
        self._others: list[Client] = [
            AbandonedConsumer(sim, "abandoned", random_for("abandoned")),
            NewGroups(sim, "new", random_for("new groups")),
            PassingConsumer(sim, "passing-group", random_for("passing group")),
            TopicChurn(sim, "churn", random_for("topic churn"), (*TOPICS, POPPED_TOPIC)),
            Passerby(sim, "passerby", random_for("passerby")),
            *poisoners,
        ]
        self._admin = Administrator(sim, "admin", random_for("admin"), _GROUPS)
        self._limit_ms = settle_ms(profile)
        self._looked_ms = -1
        self._answer_loss = random_for("answer loss").choice((0.0, 0.0, 0.05, 0.2))

    def drive(self) -> None:
        sim = self._sim
        nemesis = BrokerNemesis(sim, sim.seeds.random_for("nemesis"))
        sim.start()
        clients: list[Client] = [
            *self._producers,
            *self._members,
            self._admin,
            *self._once,
            *self._pops,
            *self._others,
        ]
        for client in clients:
            client.start()
        for is_last in (False, True):
            self._break(nemesis)
            healed_ms = sim.clock.now_ms
            network = sim.network
            faults = (network.loss, network.duplication, network.spike)
            sim.heal()
            if not is_last:
                self._check_served()
                network.loss, network.duplication, network.spike = faults
        for member in self._members:
            member.catches_up = True
        for consumer in self._pops:
            consumer.catches_up = True
        self._result.writable_ms = self._until("a writable master", lambda: bool(sim.writable()))
        before: dict[Client, int] = {c: c.completed for c in (*self._producers, *self._once)}
        self._until("progress", lambda: _stop_those_that_went_on(before))
        writers: list[Client] = [*self._producers, *self._once, self._admin, *self._others]
        for producer in writers:
            producer.is_stopped = True
        self._until("the last answers", lambda: all(c.is_idle for c in writers))
        self._until("everything consumed", self._all_consumed)
        self._until("everything delivered", self._all_delivered)
        self._until("upkeep", self._is_kept_up)
        for reading in (*self._members, *self._pops):
            reading.is_stopped = True
        self._until("equal logs, all dispatched", sim.is_settled)
        # While files go, the master may append something of its own.
        self._until("files that are needed, and no others", lambda: sim.is_settled() and self._is_tidy())
        self._result.heal_ms = sim.clock.now_ms - healed_ms
        self._check_end()

    def _break(self, nemesis: BrokerNemesis) -> None:
        """Half of the faults. Answers to clients are lost meanwhile, in some runs, whatever else works."""
        sim = self._sim
        sim.answer_loss = self._answer_loss
        nemesis.is_stopped = False
        nemesis.start()
        sim.run_for(sim.profile.fault_phase_ms // 2)
        nemesis.is_stopped = True
        sim.answer_loss = 0.0
        sim.trace.add(sim.clock.now_ms, "--", "healing")

    def _check_served(self) -> None:
        """Every group goes on in every queue: what was there is given, and what was held is done or comes
        again, whatever answers were lost."""
        sim, model = self._sim, self._sim.truth.delivery.model
        self._until("a writable master", lambda: bool(sim.writable()))
        for consumer in self._pops:
            consumer.catches_up = True
        for producer in self._producers:
            producer.is_paused = True  # some send more than is dispatched: others wait for that
        queues = [(name, queue) for name, queue in sim.truth.queues.items() if name[0] == POPPED_TOPIC]
        waiting = {
            QueueKey(group.name, *name): (len(queue.messages), model.pops(QueueKey(group.name, *name)))
            for name, queue in queues
            for group in POP_GROUPS
        }

        def are_served() -> bool:
            for key, (end, held) in list(waiting.items()):
                if model.cursor(key) >= end and not held.items() & model.pops(key).items():
                    del waiting[key]
            return not waiting

        try:
            self._until("service for every group", are_served)
        except Violation as error:
            left = [(*key, end, model.cursor(key), held) for key, (end, held) in waiting.items()]
            raise Violation(error.rule, f"{error.detail}; {left}") from None
        for consumer in self._pops:
            consumer.catches_up = False
        for producer in self._producers:
            producer.is_paused = False

    def _is_kept_up(self) -> bool:
        """No message that was purged is pending, in any group."""
        for broker in self._sim.writable():
            for queue in broker.delivery_state.queues.values():
                least, _ = broker.files.bounds(queue.key.topic, queue.key.queue_id)
                if min(queue.pending, default=least) < least:
                    return False
        return True

    def _is_tidy(self) -> bool:
        """Nothing is left of queues in which nothing can be read: of deleted topics, that is, or purged.
        Looked at once in a virtual millisecond, since it goes through all directories; else False."""
        if self._sim.clock.now_ms == self._looked_ms:
            return False
        self._looked_ms = self._sim.clock.now_ms
        for broker in self._sim.brokers():
            files = self._sim.nodes[broker.node_id].files
            assert isinstance(files, DerivedFiles)
            if files.needless(broker.dispatcher.queues):
                return False
        return True

    def _until(self, what: str, condition: Callable[[], bool]) -> int:
        try:
            return self._sim.run_until(condition, limit_ms=self._limit_ms)
        except Violation as error:
            if error.rule != "liveness":
                raise
            steps = [
                (b.node_id, b.handler.status.step.value, b.handler.status.waits_for)
                for b in self._sim.brokers()
            ]
            raise Violation("liveness", f"no {what}: {error.detail}; {steps}") from None

    def _all_consumed(self) -> bool:
        """The committed offsets of every group are at the ends of all queues of topics that exist."""
        truth, topics = self._sim.truth, self._topics()
        ends = {name: len(queue.messages) for name, queue in truth.queues.items() if name[0] in topics}
        return bool(self._sim.writable()) and all(
            truth.groups.offsets(group.name).get(name, 0) == end
            for group in self._groups
            if any(member.belongs_to(group) for member in self._members)
            for name, end in ends.items()
        )

    def _topics(self) -> list[str]:
        """The topics that exist. The last deletion may come after the last send."""
        return [topic for topic in TOPICS if any(one.metadata.topic(topic) for one in self._sim.writable())]

    def _all_delivered(self) -> bool:
        """No message is held back, and all that is in the queues is done with in every group that pops."""
        truth = self._sim.truth
        return truth.delivery.is_all_moved and all(
            truth.delivery.model.least(QueueKey(group.name, *queue)) >= len(model.messages)
            for queue, model in truth.queues.items()
            if queue[0] == POPPED_TOPIC
            for group in POP_GROUPS
        )

    # -- the end

    def _check_end(self) -> None:
        sim = self._sim
        check_end(sim)
        sim.truth.check_refused()
        sim.truth.check_expired(PASSING, min(broker.node.begin_pos for broker in sim.brokers()))
        for broker in sim.brokers():
            broker.machine.checked.clear()
            core = broker.process.replica.core
            sim.truth.check(broker.node_id, broker.machine, core.committed_index, core.log.base.index)
            self._check_readable(broker)
        for group in self._groups:
            if any(member.belongs_to(group) for member in self._members):
                self._check_consumed(group)
        self._check_delivered()

    def _check_readable(self, broker: SimBroker) -> None:
        """Every message that is neither purged nor deleted, by its offset, by its place and by its keys."""
        truth, begin_pos = self._sim.truth, broker.node.begin_pos
        for (topic, queue_id), model in truth.queues.items():
            at = max(model.first_after(begin_pos), model.floor_at(1 << 60))
            while at < len(model.messages):
                found = broker.reader.read(
                    topic, queue_id, at, max_messages=50, max_bytes=1 << 20, tags=frozenset()
                )
                truth.pulled(broker.node_id, (topic, queue_id), at, found.next_offset, found.records)
                if found.next_offset <= at:
                    raise Violation(
                        "readable", f"{broker.node_id}: nothing of {topic}-{queue_id} {at}: {found}"
                    )
                at = found.next_offset
            self._check_index(
                broker, topic, [one for one in model.messages if one.physical_offset >= begin_pos]
            )
        for topic in sorted({topic for topic, _ in truth.queues}):
            self._check_query(broker, topic)

    def _check_query(self, broker: SimBroker, topic: str) -> None:
        """Nothing of a deleted topic is found in one that was made anew."""
        found = broker.reader.query(topic, "shared", begin_ms=0, end_ms=1 << 60, max_messages=_LOOKED_UP)
        for message in map(decode, found):
            floor = self._sim.truth.queue((topic, message.queue_id)).floor_at(1 << 60)
            if message.queue_offset < floor:
                raise Violation("deleted", f"{broker.node_id}: {message} of {topic}, which begins at {floor}")

    def _check_index(self, broker: SimBroker, topic: str, messages: Sequence[Stored]) -> None:
        wanted: dict[str, set[int]] = {}
        for one in messages[-_LOOKED_UP:]:
            for key in one.keys.split():
                wanted.setdefault(key, set()).add(one.physical_offset)
        for key, offsets in wanted.items():
            missing = set(offsets)
            for offset in broker.dispatcher.index.find(topic, key, 0, 1 << 60):  # the newest first
                missing.discard(offset)
                if not missing:
                    break
            if missing:
                raise Violation("IndexFile", f"{broker.node_id}: {key} of {topic} has no {missing}")

    def _check_consumed(self, group: GroupLog) -> None:
        topics = self._topics()
        for (queue, at), body in self._sim.truth.acknowledged.items():
            purged = at < group.purged.get(queue, 0)
            if queue[0] in topics and not purged and at not in group.consumed.get(queue, ()):
                raise Violation(
                    "consumed", f"{body!r}, acknowledged as {queue} {at}, never reached {group.name}"
                )

    def _check_delivered(self) -> None:
        truth, begin = self._sim.truth, max(broker.node.begin_pos for broker in self._sim.brokers())
        truth.delivery.check_end()
        for queue, model in truth.queues.items():
            if queue[0] == POPPED_TOPIC:
                for at in range(model.first_after(begin), len(model.messages)):
                    for group in POP_GROUPS:
                        key = QueueKey(group.name, *queue)
                        truth.delivery.check_given(key, at, model.messages[at].message_id)


@contextmanager
def _quiet() -> Iterator[None]:
    """Brokers log every step of every role change."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)


def _report(sim: BrokerSimulation, error: Exception) -> str:
    return "\n".join(
        [
            f"seed {sim.seed} failed at {sim.clock.now_ms} ms: {type(error).__name__}: {error}",
            *(() if isinstance(error, Violation) else traceback.format_exception(error)[-8:]),
            f"profile: {sim.profile}",
            f"nodes: {sim.summary()}",
            f"the last {TRACE_LINES} events:",
            *sim.trace.tail(TRACE_LINES),
            f"seed {sim.seed}: {error}",
            "again with: python -m tests.broker_adapter.simulator "
            f"--seeds 1 --first {sim.seed} --trace trace.txt",
        ]
    )


def _stop_those_that_went_on(before: Mapping[Client, int]) -> bool:
    """Whether that is all of them: each has completed more than before. It is stopped then, because some
    profiles have disks on which what a few producers send is dispatched more slowly than they send it, and
    others wait for that."""
    for client, completed in before.items():
        client.is_stopped = client.is_stopped or client.completed > completed
    return all(client.is_stopped for client in before)
