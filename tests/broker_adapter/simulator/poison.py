"""A client that has entries committed which no broker writes: nodes go on, and make the same of them."""

from __future__ import annotations

from collections.abc import Sequence

from broker_adapter.delivery_state.commands import DELIVERY_TOPIC
from broker_adapter.delivery_state.records import MAGIC as DELIVERY_MAGIC
from broker_adapter.metadata.commands import METADATA_TOPIC
from broker_adapter.metadata.records import MAGIC as METADATA_MAGIC
from broker_adapter.wire.message import MessageRecord, encode, patch_offsets
from broker_adapter.wire.sys_flag import TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from dledger import AppendOutcome, Assigned
from dledger.core.values import ENTRY_HEADER_SIZE
from tests.broker_adapter.simulator.broker_node import GatedAppends, SimBroker
from tests.broker_adapter.simulator.clients import FAILURES, QUEUES, TOPICS, Client
from tests.broker_adapter.simulator.truth import POISON

_PAUSES = 8  # of other clients, between two entries


class Poisoner(Client):
    """Garbage, damaged commands, messages whose offsets were given before or are far away, and such as take
    an offset and have no place in a queue."""

    async def think(self) -> None:
        for _ in range(_PAUSES):
            await super().think()

    async def work(self) -> None:
        kind = self.rng.choice(("garbage", "metadata", "delivery", "hole", "hole", "far", "before"))

        async def put(broker: SimBroker) -> AppendOutcome:
            return await self._put(broker, kind)

        try:
            await self.ask_master(put)
        except FAILURES as error:
            self.sim.count("poison", error)
        else:
            self.sim.counts[f"poison: {kind}"] += 1

    async def _put(self, broker: SimBroker, kind: str) -> AppendOutcome:
        expected = broker.writer.check_master()
        topic, queue_id = self.rng.choice(TOPICS), self.rng.randrange(QUEUES)
        if broker.metadata.topic(topic) is None:
            kind = "garbage"  # nobody consumes of a topic that there is not
        junk = self.rng.randbytes(self.rng.randint(1, 60))

        def record(stamp_ms: int) -> bytearray:
            match kind:
                case "metadata":
                    return encode(
                        MessageRecord(METADATA_TOPIC, METADATA_MAGIC + junk, store_timestamp=stamp_ms)
                    )
                case "delivery":
                    return encode(
                        MessageRecord(DELIVERY_TOPIC, DELIVERY_MAGIC + junk, store_timestamp=stamp_ms)
                    )
                case "hole":
                    part = TRANSACTION_PREPARED if junk[0] % 2 else TRANSACTION_ROLLBACK
                    message = MessageRecord(
                        topic, junk, queue_id=queue_id, sys_flag=part, store_timestamp=stamp_ms
                    )
                    return encode(message)
            return encode(MessageRecord(topic, POISON + junk, queue_id=queue_id, store_timestamp=stamp_ms))

        def fill(assigned: Assigned) -> Sequence[bytes]:
            if kind == "garbage":
                return [junk]
            made, offset = record(assigned.stamp_ms), 0
            if kind == "hole":
                offset = broker.writer.table.reserve(topic, queue_id, 1)
            elif kind == "far":
                offset = 1 << 60
            elif kind == "before" and not broker.writer.table.next_offset(topic, queue_id):
                offset = 1 << 50  # there is none before
            patch_offsets(made, offset, assigned.positions[0] + ENTRY_HEADER_SIZE)
            return [bytes(made)]

        size = len(junk) if kind == "garbage" else len(record(0))
        return await GatedAppends(broker).append_batch([size], fill, expected=expected)
