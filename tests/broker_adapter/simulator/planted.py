"""Mistakes of brokers on a log, one function each, as `tests.sim.planted` has those of Raft: each changes the
classes of this process, and says what it would do in production."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from struct import Struct
from typing import Any

import pytest

from broker_adapter.metadata.commands import MAX_OFFSET, Command, CommitOffsets
from broker_adapter.metadata.proposals import Proposals
from broker_adapter.metadata.state import MetadataState
from broker_adapter.metadata.topic_expiry import TopicExpiry
from broker_adapter.metadata.values import CommandOutcome
from broker_adapter.metadata.writable_topics import TopicGate
from broker_adapter.put.message_writer import MessageWriter, QueuedRecords, TopicQueueTable
from broker_adapter.put.sender import PutResult, Send, Sender
from broker_adapter.role.broker_role import BrokerRoleAdapter
from broker_adapter.role.role_change import RoleChangeHandler
from broker_adapter.store import dispatching
from broker_adapter.store.checkpoint import DerivedImage, encode_image
from broker_adapter.store.consume_queue import ConsumeQueue, QueueState
from broker_adapter.store.consume_queues import ConsumeQueues
from broker_adapter.store.dispatcher import Checkpointer, Dispatcher
from broker_adapter.store.index_files import IndexFiles
from broker_adapter.store.open_files import Changes, OpenFiles
from broker_adapter.store.queue_reader import QueueReader
from dledger import AppendOutcome, AppliedEntry
from dledger.infra.loops.readable import ReadableLog
from tests.broker_adapter.simulator.broker_node import GatedAppends

Plant = Callable[[pytest.MonkeyPatch], None]


async def _at_once(*args: Any) -> None: ...


async def _virtual_seconds(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    loop.call_later(seconds, over.set_result, None)
    await over


# -- the master


def table_not_recovered(patch: pytest.MonkeyPatch) -> None:
    """A master goes on with the queue offsets of its own last time as master."""
    patch.setattr(BrokerRoleAdapter, "recover_topic_queue_table", _at_once)


def dispatch_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    """A new master does not wait until its ConsumeQueues hold what its predecessors committed."""
    patch.setattr(BrokerRoleAdapter, "wait_dispatched", _at_once)


def offsets_taken_before_the_log_agrees(patch: pytest.MonkeyPatch) -> None:
    """Queue offsets are taken when a request comes, not in the step in which the log takes the messages."""
    mine: ContextVar[int | None] = ContextVar("mine", default=None)
    ahead: Counter[tuple[TopicQueueTable, str, int]] = Counter()
    take, send_one, records = TopicQueueTable.reserve, Sender.send_one, MessageWriter.records

    async def send_late(self: Sender, send: Send) -> PutResult:
        writer, count = self._writer, len(send.messages)
        writer.check_master()
        topic, queue_id = send.config.name, writer.queue_of(send.config, send.queue_id)
        mine.set(take(writer.table, topic, queue_id, count))
        ahead[writer.table, topic, queue_id] += count
        await _virtual_seconds(0.002 * count)
        return await send_one(self, send._replace(queue_id=queue_id))

    def records_with_offsets(self: MessageWriter, *args: Any, **rest: Any) -> QueuedRecords:
        queued = records(self, *args, **rest)
        if (first := mine.get()) is not None:
            batch: Any = queued.batch
            fill = batch.fill
            batch.fill = lambda _, positions, stamp_ms: fill(first, positions, stamp_ms)
        return queued

    def take_others(table: TopicQueueTable, topic: str, queue_id: int, count: int) -> int:
        if ahead[table, topic, queue_id] < count:
            return take(table, topic, queue_id, count)
        ahead[table, topic, queue_id] -= count
        return -1

    patch.setattr(TopicQueueTable, "reserve", take_others)
    patch.setattr(MessageWriter, "records", records_with_offsets)
    patch.setattr(Sender, "send_one", send_late)


def fence_late(patch: pytest.MonkeyPatch) -> None:
    """Writes are refused when the adapter gets round to change_to_slave, not when the role has changed."""
    patch.setattr(RoleChangeHandler, "_fence", lambda self: None)


def gate_opened_by_an_older_event(patch: pytest.MonkeyPatch) -> None:
    """That the role is still the same is not asked again after change_to_master."""
    original = RoleChangeHandler._accept_writes

    def late(self: RoleChangeHandler, event: Any) -> None:
        asyncio.get_running_loop().call_later(0.2, self._adapter.accept_writes, event.term, event.role_epoch)
        original(self, event)

    patch.setattr(RoleChangeHandler, "_accept_writes", late)


def acknowledged_before_it_is_committed(patch: pytest.MonkeyPatch) -> None:
    """A producer is told that its messages are stored when the log of the master has them."""
    original = GatedAppends.append_batch

    def append_batch(self: GatedAppends, sizes: Any, fill: Any, **rest: Any) -> Any:
        original(self, sizes, fill, **rest).add_done_callback(lambda future: future.exception())
        done: asyncio.Future[AppendOutcome] = asyncio.get_running_loop().create_future()
        done.set_result(AppendOutcome(0, len(sizes), rest["expected"][0], 0))
        return done

    patch.setattr(GatedAppends, "append_batch", append_batch)


# -- derived files


def uncommitted_entries_dispatched(patch: pytest.MonkeyPatch) -> None:
    """reput reads the log to its end, not to where it is committed."""
    patch.setattr(ReadableLog, "index", property(lambda self: self._stored))


def derived_files_trusted(patch: pytest.MonkeyPatch) -> None:
    """ConsumeQueues are not synced before a checkpoint names them, and not compared with it at the start."""
    original = Checkpointer._write

    def write(self: Checkpointer, begun: Any) -> None:
        begun.queues = begun.queues._replace(changes=Changes())
        original(self, begun)

    def restore(self: ConsumeQueue, state: QueueState) -> None:
        self.min_offset, self.max_offset, self.floor = state.min_offset, state.max_offset, state.floor
        self._crcs = list(state.crcs)

    patch.setattr(Checkpointer, "_write", write)
    patch.setattr(ConsumeQueue, "restore", restore)


def checkpoint_with_old_metadata(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint holds the metadata as they were at the checkpoint before."""
    original = Checkpointer.begin
    newest: dict[int, bytes] = {}

    def begin(self: Checkpointer, applied: Any, metadata: bytes, **rest: Any) -> None:
        old = newest.get(id(self), metadata)
        newest[id(self)] = metadata
        original(self, applied, old, **rest)

    patch.setattr(Checkpointer, "begin", begin)


def image_without_floors(patch: pytest.MonkeyPatch) -> None:
    """Where a topic was deleted for the last time is forgotten with the entry that did it."""

    def save(self: Dispatcher) -> Iterable[bytes]:
        self._dispatching.end_replay()
        positions = [position._replace(floor=0) for position in self.queues.positions()]
        return [encode_image(DerivedImage(positions, self._metadata.save(), []))]

    patch.setattr(Dispatcher, "save", save)


def queues_not_refilled_after_an_image(patch: pytest.MonkeyPatch) -> None:
    """What is still in the log when an image is loaded gets no units."""
    patch.setattr(Dispatcher, "replay", lambda self, entries: None)
    patch.setattr(dispatching.BatchDispatch, "end_replay", lambda self: setattr(self, "_awaited", None))


def purged_one_too_many(patch: pytest.MonkeyPatch) -> None:
    """After a purge the first message that is left cannot be read."""
    original = ConsumeQueue.purge_below

    def purge_below(self: ConsumeQueue, physical_offset: int) -> Any:
        before = self.min_offset
        doomed = original(self, physical_offset)
        if self.min_offset > before:
            self.min_offset = min(self.max_offset, self.min_offset + 1)
        return doomed

    patch.setattr(ConsumeQueue, "purge_below", purge_below)


def deleted_messages_come_back(patch: pytest.MonkeyPatch) -> None:
    """Who creates a topic again finds in it what the deleted one had."""
    patch.setattr(ConsumeQueues, "delete_topic", lambda self, topic: None)


def messages_behind_the_deletion_of_their_topic(patch: pytest.MonkeyPatch) -> None:
    """That there is the topic is known from before: by the time of the append it may have been deleted."""
    patch.setattr(TopicGate, "refusal", lambda self, topic, queue_id: None)


def deletions_under_way_overlooked(patch: pytest.MonkeyPatch) -> None:
    """Only the state is asked, which the deletion may not have reached."""
    patch.setattr(TopicGate, "_pending", lambda self, topic: [])


def topics_expire_with_their_messages(patch: pytest.MonkeyPatch) -> None:
    """What nobody uses goes, whatever there is in it."""
    patch.setattr(TopicExpiry, "_can_delete", lambda self, topic, first: True)


def files_of_deleted_topics_stay(patch: pytest.MonkeyPatch) -> None:
    """The newest file of a queue is kept, whatever became of its topic."""
    patch.setattr(ConsumeQueue, "retire", lambda self: [])


def files_go_that_were_taken_back(patch: pytest.MonkeyPatch) -> None:
    """A topic that is made anew goes on in a file that the next checkpoint removes."""
    patch.setattr(OpenFiles, "remove_retired", OpenFiles.remove)


def queries_find_what_was_deleted(patch: pytest.MonkeyPatch) -> None:
    """The index knows names of topics, not which of several with one name."""
    original = QueueReader.query

    def query(self: QueueReader, topic: str, key: str, **rest: Any) -> list[bytes]:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self._files, "bounds", lambda topic, queue_id: (0, 1 << 60))
            return original(self, topic, key, **rest)

    patch.setattr(QueueReader, "query", query)


def index_forgets_a_batch(patch: pytest.MonkeyPatch) -> None:
    """Now and then a message cannot be found by its key."""
    original = IndexFiles.add

    def add(self: IndexFiles, messages: Iterable[Any]) -> None:
        kept = list(messages)
        original(self, kept[:-1] if len(kept) > 1 else kept)

    patch.setattr(IndexFiles, "add", add)


def last_of_a_batch_skipped(patch: pytest.MonkeyPatch) -> None:
    """A piece of several messages that is dispatched loses its last one, until the next one has none."""
    original = dispatching.BatchDispatch.apply

    def apply(self: dispatching.BatchDispatch, entries: Sequence[AppliedEntry]) -> Any:
        return original(self, entries[:-1] if len(entries) > 3 else entries)

    patch.setattr(dispatching.BatchDispatch, "apply", apply)


# -- groups


def commits_undo_a_reset(patch: pytest.MonkeyPatch) -> None:
    """A commit that was on its way when the offsets were set back takes effect after all."""
    original = MetadataState._commit

    def commit(self: MetadataState, command: CommitOffsets) -> None:
        original(self, replace(command, judged_at=MAX_OFFSET))

    patch.setattr(MetadataState, "_commit", commit)


def lower_offset_wins(patch: pytest.MonkeyPatch) -> None:
    """A commit that comes late takes the group back."""
    patch.setattr(MetadataState, "_newer_offset", lambda self, stored, committed: committed)


def commit_acknowledged_before_the_log_has_it(patch: pytest.MonkeyPatch) -> None:
    """As RocketMQ's: offsets are in the memory of the master, and written when there is time."""
    original = Proposals.propose

    async def propose(self: Proposals, command: Command) -> CommandOutcome:
        if not isinstance(command, CommitOffsets):
            return await original(self, command)

        async def later() -> None:
            await _virtual_seconds(0.05)
            await asyncio.gather(original(self, command), return_exceptions=True)

        asyncio.get_running_loop().create_task(later())
        return CommandOutcome(0)

    patch.setattr(Proposals, "propose", propose)


def messages_never_given(patch: pytest.MonkeyPatch) -> None:
    """The canary: units of all messages name the wrong tag."""
    unit = Struct(">qiq")
    patch.setattr(dispatching, "_pack_unit", lambda pos, size, tag: unit.pack(pos, size, 7))
