"""Measure the cost of dispatching: microseconds per message in `Dispatcher.apply`, and the next start.

    python -m benchmarks.broker.reput [messages]

Dispatches batches of 1 KiB messages, as a node passes them, on a real disk: first with a tag only, then with
a tag, a unique key and one key. The IndexFiles are written by a separate job queue, and the second
measurement includes the wait for it.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter, thread_time

from broker_adapter.log.replicated import ENTRIES
from broker_adapter.store.dispatcher import Dispatcher
from broker_adapter.wire.message import MessageRecord, encode, patch_offsets
from broker_adapter.wire.properties import join_properties
from dledger import EntryRun
from dledger.core.values import Tail
from dledger.store.format.batch import encode_batch

QUEUES = 8
BATCH = 800


class NoMetadata:
    def apply(self, index: int, body: bytes) -> None: ...

    def save(self) -> bytes:
        return b""

    def load(self, data: bytes) -> None: ...

    def checkpoint(self) -> bytes:
        return self.save()

    def restore(self, data: bytes) -> None:
        self.load(data)

    def sync(self) -> None: ...

    def checkpointed(self) -> None: ...

    def close(self) -> None: ...


def batches(messages: int, *, keyed: bool) -> Iterator[EntryRun]:
    tail, bodies = Tail(-1, 0, 0, 0), []
    pos = 0
    properties = join_properties({"TAGS": "TagA"})
    for number in range(messages):
        if keyed:
            properties = join_properties({"UNIQ_KEY": f"{number:032X}", "TAGS": "TagA", "KEYS": f"k{number}"})
        message = MessageRecord(
            "TopicTest", bytes(1000), properties, number // BATCH % QUEUES, store_timestamp=1 << 40
        )
        record = encode(message)
        patch_offsets(record, number // BATCH // QUEUES * BATCH + number % BATCH, pos + 48)
        bodies.append(bytes(record))
        pos += 48 + len(record)
        if len(bodies) == BATCH:
            batch = encode_batch(tail, 1, bodies, data_file_size=1 << 60)
            yield EntryRun([batch.data])
            tail, bodies = batch.tail, []


def run(messages: int, *, keyed: bool) -> None:
    with tempfile.TemporaryDirectory() as directory:
        dispatcher = Dispatcher(Path(directory), NoMetadata(), durable_index=lambda: 1 << 60, log=ENTRIES)
        dispatcher.load(())
        applying = working = 0.0
        for batch in batches(messages, keyed=keyed):
            begin, begin_work = perf_counter(), thread_time()
            dispatcher.apply(batch)
            applying += perf_counter() - begin
            working += thread_time() - begin_work
        begin = perf_counter()
        dispatcher.close()
        closing = perf_counter() - begin
        again = Dispatcher(Path(directory), NoMetadata(), durable_index=lambda: 1 << 60, log=ENTRIES)
        begin = perf_counter()
        applied = again.recover()
        starting = perf_counter() - begin
        assert applied is not None, "recovery found no checkpoint"
        again.close()
    name = "tag and two keys" if keyed else "tag"
    print(
        f"{name}: {applying / messages * 1e6:.2f} us per message, of which {working / messages * 1e6:.2f} at "
        f"work; close {closing:.2f} s, start {starting:.3f} s"
    )


def main() -> None:
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    run(messages, keyed=False)
    run(messages, keyed=True)


if __name__ == "__main__":
    main()
