"""The demo of the broker: a real file through topics and queues to a group, the master killed twice.

Nothing is smoothed over: what is printed was measured. Any acknowledged line that is missing, altered or out
of order, on any node or for the group, and any committed offset that goes back, makes the verdict FAILED.
What is stored or delivered again, as at-least-once allows, is counted and shown.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

from broker_adapter.api import PullStatus, TopicConfig
from broker_adapter.cli.broker_errors import error_line
from broker_adapter.cli.demo.demo_check import (
    Delivery,
    OffsetWatch,
    Queue,
    Stored,
    Verdict,
    check_delivered,
    check_stored,
)
from broker_adapter.cli.demo.demo_load import BrokerLoad
from broker_adapter.cli.local_broker import is_writable_master
from broker_adapter.client import Admin, Consumer, Message, NameServerRoutes, Producer
from broker_adapter.client.values import message_of
from broker_adapter.errors import BrokerError
from broker_adapter.rpc.broker_client import BrokerClient
from dledger.cli.demo.demo_faults import Failover, LeaderKiller, Say
from dledger.cli.exits import error_line as log_error_line
from dledger.cli.local.local_cluster import ClusterError, LocalCluster, LocalNode

TOPICS = ("demo-a", "demo-b", "demo-c")
QUEUES = 4
GROUP = "demo-readers"
_MEMBERS = ("first", "second")
_SEND_SECONDS = 30.0
_READY_SECONDS = 30.0
_CONSUMED_SECONDS = 30.0
_LEASE_SECONDS = 3.0
_COMMIT_SECONDS = 0.1
_WATCH_SECONDS = 0.05


class BrokerDemo:
    """One run on a cluster with brokers that holds nothing yet. `say(what, text)` gets a line of it."""

    def __init__(self, cluster: LocalCluster, lines: Sequence[bytes], say: Say) -> None:
        self._cluster = cluster
        self._lines = lines
        self._say = say
        self._queues = [(topic, queue_id) for topic in TOPICS for queue_id in range(QUEUES)]
        self._deliveries: list[Delivery] = []
        self._watch = OffsetWatch()
        self._produced_at = 0.0
        self.failovers: list[Failover] = []
        self.stored_again = 0
        self.delivered_again = 0

    async def run(self) -> bool:
        """True: every line was acknowledged, is on every node and came to the group, in order."""
        await self._start()
        namesrv = [companion.address for companion in self._cluster.plan.companions]
        async with AsyncExitStack() as stack:
            routes = NameServerRoutes(namesrv)
            stack.push_async_callback(routes.close)
            admin = await stack.enter_async_context(Admin(routes, timeout=_SEND_SECONDS))
            for topic in TOPICS:
                await admin.put_topic(TopicConfig(topic, read_queues=QUEUES, write_queues=QUEUES))
            await self._wait_for_routes(routes)
            producer = Producer(routes, timeout=_SEND_SECONDS, retry_indeterminate=True)
            await stack.enter_async_context(producer)
            load = BrokerLoad(producer, self._lines, self._queues)
            for member in _MEMBERS:
                await stack.enter_async_context(self._consumer(routes, member))
            watching = asyncio.create_task(self._watch_offsets(admin))
            stack.callback(watching.cancel)
            good = await self._produce(load)
            good &= await self._consumed(admin)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        good &= load.error is None and len(load.acknowledged) == len(self._lines)
        return await self._verify(load) and good

    async def _start(self) -> None:
        began = time.monotonic()
        await asyncio.to_thread(self._cluster.start)
        for companion in self._cluster.companions():
            self._say("started", f"{companion.node_id}, pid {companion.pid}, {companion.address}")
        for node_id in self._cluster.node_ids:
            plan = self._cluster.plan.node(node_id)
            pid = self._cluster.process(node_id).pid
            self._say("started", f"{node_id}, pid {pid}, {plan.address}, status http://{plan.http_address}")

        def writable(nodes: Sequence[LocalNode]) -> LocalNode | None:
            return next((node for node in nodes if is_writable_master(node.owner)), None)

        master = await asyncio.to_thread(
            self._cluster.wait_until, writable, _READY_SECONDS, "a writable master"
        )
        seconds = time.monotonic() - began
        self._say("master", f"{master.node_id} in term {master.term}, {seconds:.1f} s after the start")

    async def _wait_for_routes(self, routes: NameServerRoutes) -> None:
        async with asyncio.timeout(_READY_SECONDS):
            for topic in TOPICS:
                while not (await routes.route(topic)).queues:
                    await asyncio.sleep(_WATCH_SECONDS)

    # -- the load

    async def _produce(self, load: BrokerLoad) -> bool:
        """Whether both masters were killed and came back."""
        self._say(
            "producing",
            f"{len(load.lines)} lines to {len(TOPICS)} topics of {QUEUES} queues, "
            f"{load.in_flight * load.batch_lines} under way; {len(_MEMBERS)} members of {GROUP} consume them",
        )
        killer = LeaderKiller(self._cluster, load, self._say, describe=_writable_after)
        faults = asyncio.create_task(killer.run())
        began = time.monotonic()
        try:
            await load.run()
            self._produced_at = time.monotonic()
            done = await killer.finish(faults)
        finally:
            faults.cancel()
        self.failovers = killer.failovers
        seconds = self._produced_at - began
        rate = len(load.acknowledged) / max(seconds, 1e-6)
        self._say(
            "produced",
            f"{len(load.acknowledged)} lines acknowledged in {seconds:.1f} s ({rate:.0f} lines/s, "
            "failovers included)",
        )
        if load.error is not None:
            self._say("PROBLEM", error_line(load.error))
            self._say("PROBLEM", f"{load.failed} failed, {len(load.in_doubt)} in doubt")
        return done

    def _consumer(self, routes: NameServerRoutes, member: str) -> Consumer:
        def take(message: Message) -> None:
            queue = (message.topic, message.queue_id)
            self._deliveries.append(Delivery(member, queue, message.queue_offset, message.body))

        return Consumer(
            routes,
            GROUP,
            TOPICS,
            handler=take,
            lease=_LEASE_SECONDS,
            commit_interval=_COMMIT_SECONDS,
            member_id=member,
        )

    async def _watch_offsets(self, admin: Admin) -> None:
        while True:
            try:
                generation, offsets = await admin.offsets(GROUP)
            except BrokerError as error:
                self._watch.faults.append(f"not readable: {error_line(error)}")
            else:
                committed = {(one.topic, one.queue_id): one.offset for one in offsets}
                self._watch.read(time.monotonic(), generation, committed)
            await asyncio.sleep(_WATCH_SECONDS)

    async def _consumed(self, admin: Admin) -> bool:
        """Wait until the group has committed all that there is. Whether it has."""
        ends = {
            (stats.topic, stats.queue_id): stats.max_offset
            for topic in TOPICS
            for stats in await admin.topic_stats(topic)
        }
        try:
            async with asyncio.timeout(_CONSUMED_SECONDS):
                while any(self._watch.offsets.get(queue, 0) < end for queue, end in ends.items()):
                    await asyncio.sleep(_WATCH_SECONDS)
        except TimeoutError:
            left = sum(end - self._watch.offsets.get(queue, 0) for queue, end in ends.items())
            self._say("PROBLEM", f"{left} messages are not committed after {_CONSUMED_SECONDS:g} s")
            return False
        shares = ", ".join(
            f"{member}: {sum(one.member == member for one in self._deliveries)}" for member in _MEMBERS
        )
        self._say(
            "consumed",
            f"{len(self._deliveries)} deliveries ({shares}), all committed "
            f"{max(0.0, self._watch.changed_at - self._produced_at):.2f} s after the last acknowledgement",
        )
        return True

    # -- the proof

    async def _verify(self, load: BrokerLoad) -> bool:
        good = True
        try:
            await asyncio.to_thread(self._cluster.wait_until, _in_step, _READY_SECONDS, "nodes in step")
        except ClusterError as error:
            # Read them all the same: what is missing is to be shown, not hidden.
            self._say("PROBLEM", log_error_line(error))
            good = False
        digests = set()
        found: dict[Queue, list[Stored]] = {}
        for node_id in self._cluster.node_ids:
            try:
                found = await read_node(self._cluster.plan.node(node_id).address, self._queues)
            except BrokerError as error:
                self._say(node_id, f"FAILED: cannot be read: {error_line(error)}")
                good = False
                continue
            digest = digest_of(found)
            digests.add(digest)
            verdict = check_stored(load.acknowledged, load.in_doubt, found)
            what = f"{verdict.messages} messages in {len(found)} queues, sha256 {digest[:16]}"
            good &= self._tell(node_id, what, verdict, "every acknowledged line at its offset, in order")
            self.stored_again = verdict.again
        if len(digests) > 1:
            self._say("FAILED", "the queues of the nodes differ")
        verdict = check_delivered(found, self._deliveries)
        self.delivered_again = verdict.again
        good &= self._tell("group", f"{verdict.messages} deliveries", verdict, "every message, in order")
        return good & self._tell_offsets() & (len(digests) == 1)

    def _tell(self, who: str, what: str, verdict: Verdict, praise: str) -> bool:
        if verdict.ok:
            doubt = f", {verdict.in_doubt_found} in doubt are there" if verdict.in_doubt_found else ""
            self._say(who, f"{what}: {praise}; {verdict.again} of them again{doubt}")
        else:
            faults = ", ".join(f"{count} {kind}" for kind, count in verdict.faults.items())
            self._say(who, f"{what}: FAILED: {faults}")
            for example in verdict.examples:
                self._say("", example)
        return verdict.ok

    def _tell_offsets(self) -> bool:
        watch = self._watch
        what = f"committed offsets read {watch.readings} times, in {watch.generations} generations"
        if watch.faults:
            self._say("offsets", f"{what}: FAILED: {len(watch.faults)} faults")
            for example in watch.faults[:5]:
                self._say("", example)
        else:
            self._say("offsets", f"{what}: none ever went back")
        return not watch.faults


def _writable_after(node: LocalNode) -> str:
    took = node.owner.get("role_change", {}).get("elected_to_writable_ms", -1)
    return f", writable {took} ms after its election" if took >= 0 else ""


def _in_step(nodes: Sequence[LocalNode]) -> LocalNode | None:
    """All nodes have committed and dispatched the same."""
    if any(node.state != "running" or node.owner.get("dispatch_behind_bytes") != 0 for node in nodes):
        return None
    ends = {node.committed_index for node in nodes}
    return nodes[0] if len(ends) == 1 and max(node.ledger_end_index for node in nodes) in ends else None


async def read_node(address: str, queues: Sequence[Queue]) -> dict[Queue, list[Stored]]:
    """What one broker has in its own files, whatever its role."""
    client = BrokerClient(address)
    found: dict[Queue, list[Stored]] = {}
    try:
        for topic, queue_id in queues:
            messages = found[topic, queue_id] = []
            offset = 0
            while True:
                result = await client.pull(topic, queue_id, offset, max_messages=1024, max_bytes=1 << 20)
                if result.status is not PullStatus.FOUND:
                    break
                offset = result.next_offset
                for message in map(message_of, result.records):
                    messages.append(Stored(message.queue_offset, int(message.keys[0]), message.body))
    finally:
        await client.close()
    return found


def digest_of(found: Mapping[Queue, Sequence[Stored]]) -> str:
    """Over queues, offsets, lines and bodies: equal where all of them are equal."""
    digest = hashlib.sha256()
    for queue in sorted(found):
        for one in found[queue]:
            digest.update(repr((queue, one)).encode())
    return digest.hexdigest()
