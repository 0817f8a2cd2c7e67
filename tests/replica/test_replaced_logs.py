"""INSTALL_BASE and PURGE at a replica: what of the log stays, and when the rest goes."""

from __future__ import annotations

from dledger.core.messages import Append, InstallBase
from dledger.core.values import Base, TermRun
from dledger.replica.shell import PurgeJob, ResetJob, WriteJob
from dledger.store.format.batch import Batch, encode_batch
from dledger.store.format.internal import Purge, encode_internal
from dledger.store.state_files import tail_of
from tests.replica.replica_world import FILE_SIZE, World


def push(world: World, batch: Batch, *, committed: int) -> None:
    """The leader a pushes to b one batch of its term, which follows the end of b's log."""
    follower, index = world["b"], batch.first_index
    stream, runs = world.streams["b"], (TermRun(batch.term, index),)
    message = Append(batch.term, "a", stream, committed, index - 1, batch.term, index, batch.last_index, runs)
    follower.replica.receive(follower.now, "a", message, bytes(batch.data))


def test_a_base_that_is_held_replaces_nothing() -> None:
    """INSTALL_BASE, which comes late or again: what follows the base may have been acknowledged."""
    world = World("a", "b", "c")
    leader = world.elect("a")
    for i in range(4):
        leader.append(i, b"kept")
        world.carry()
    follower = world["b"]
    before, tail = follower.entries(), follower.store.tail_at(2)
    base = Base(tail.index, tail.term, FILE_SIZE, tail.chain_crc)
    message = InstallBase(leader.core.term, "a", world.streams["b"], -1, base)
    follower.replica.receive(follower.now, "a", message)
    assert follower.shell.jobs == []
    leader.append("more", b"more")
    world.carry()
    assert follower.entries()[: len(before)] == before and len(follower.entries()) == len(before) + 1
    assert follower.entries() == leader.entries()


def test_nothing_of_a_log_that_was_replaced_is_left() -> None:
    """INSTALL_BASE: neither batches in memory, nor marks that were still to be committed, nor a position."""
    world = World("a", "b", "c")
    leader, follower = world.elect("a"), world["b"]
    for i in range(3):
        leader.append(i, b"old", timeout_ms=60_000)
        world.carry()
    old = follower.store.tail_at(2)
    head = encode_internal(Purge(Base(2, old.term, FILE_SIZE, old.chain_crc)))
    term, stream = leader.core.term, world.streams["b"]
    purge = encode_batch(leader.replica.log_tail, term, [], data_file_size=FILE_SIZE, head=head)
    push(world, purge, committed=-1)
    follower.disk()
    base = Base(50, term, 10 * FILE_SIZE, 77)
    follower.replica.receive(follower.now, "a", InstallBase(term, "a", stream, 50, base))
    assert follower.replica.committed_pos == base.pos and follower.replica.cache.byte_size == 0
    batch = encode_batch(tail_of(base), term, [b"new"], data_file_size=FILE_SIZE)
    push(world, batch, committed=51)
    assert [type(job) for job in follower.shell.jobs] == [ResetJob, WriteJob]
    follower.disk()
    follower.pass_time(1)
    assert follower.store.base == base and [e.body for e in follower.entries()] == [b"new"]
    assert follower.core.committed_index == 51 and follower.shell.fatals == []


def test_a_purge_waits_until_the_log_is_durable_beyond_its_base() -> None:
    """A follower may hear that a PURGE is committed while its disk writes up to the base, or exactly to it:
    only what follows proves that a data file begins there."""
    world = World("a", "b", "c")
    leader, follower = world.elect("a"), world["b"]
    term, end = leader.core.term, leader.replica.log_tail
    fills_the_file = bytes(FILE_SIZE - end.pos - 100)
    gone = encode_batch(end, term, [fills_the_file], data_file_size=FILE_SIZE)
    base = Base(gone.last_index, term, FILE_SIZE, gone.chain_crc)
    head = encode_internal(Purge(base))
    purge = encode_batch(gone.tail, term, [], data_file_size=FILE_SIZE, head=head)
    for batch in (gone, purge):
        push(world, batch, committed=purge.last_index)
    follower.pass_time(20)
    assert follower.core.committed_index == purge.last_index
    assert [type(job) for job in follower.shell.jobs] == [WriteJob, WriteJob]
    follower.one_job()
    assert follower.core.log.durable_index == base.index
    assert [type(job) for job in follower.shell.jobs] == [WriteJob]
    follower.one_job()
    assert [type(job) for job in follower.shell.jobs] == [PurgeJob]
    follower.disk()
    assert follower.store.base == base
