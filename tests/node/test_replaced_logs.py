"""INSTALL_BASE and PURGE at a replica: what of the log stays, and when the rest goes."""

from __future__ import annotations

from dledger.core.messages import Append, InstallBase
from dledger.core.values import Base, TermRun
from dledger.node.shell import PurgeJob, ResetJob, WriteJob
from dledger.store.batch import encode_batch
from dledger.store.internal import Purge, encode_internal
from dledger.store.state_files import tail_of
from tests.node.replica_world import FILE_SIZE, World


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
    leader.replica.append_internal(Purge(Base(2, old.term, FILE_SIZE, old.chain_crc)), leader.now)
    leader.replica.flush(leader.now)
    (push,) = [s for s in leader.shell.sent if s.peer == "b" and isinstance(s.message, Append)]
    follower.replica.receive(follower.now, "a", push.message, push.payload)
    follower.disk()
    term, stream = leader.core.term, world.streams["b"]
    base = Base(50, term, 10 * FILE_SIZE, 77)
    follower.replica.receive(follower.now, "a", InstallBase(term, "a", stream, 50, base))
    assert follower.replica.committed_pos == base.pos and follower.replica.cache.byte_size == 0
    batch = encode_batch(tail_of(base), term, [b"new"], data_file_size=FILE_SIZE)
    message = Append(term, "a", stream, 51, 50, term, 51, 51, (TermRun(term, 51),))
    follower.replica.receive(follower.now, "a", message, bytes(batch.data))
    assert [type(job) for job in follower.shell.jobs] == [ResetJob, WriteJob]
    follower.disk()
    follower.pass_time(1)
    assert follower.store.base == base and [e.body for e in follower.entries()] == [b"new"]
    assert follower.core.committed_index == 51 and follower.shell.fatals == []


def test_a_purge_waits_until_the_last_entry_that_it_purges_is_durable_here() -> None:
    """A follower may hear that a PURGE is committed before its own disk has what the PURGE names."""
    world = World("a", "b", "c")
    leader, follower = world.elect("a"), world["b"]
    term, stream, end = leader.core.term, world.streams["b"], leader.replica.log_tail
    gone = encode_batch(end, term, [b"gone"], data_file_size=FILE_SIZE)
    base = Base(gone.last_index, term, FILE_SIZE, gone.chain_crc)
    head = encode_internal(Purge(base))
    purge = encode_batch(gone.tail, term, [], data_file_size=FILE_SIZE, head=head)
    for batch in (gone, purge):
        index = batch.first_index
        message = Append(
            term, "a", stream, purge.last_index, index - 1, term, index, index, (TermRun(term, index),)
        )
        follower.replica.receive(follower.now, "a", message, bytes(batch.data))
    follower.pass_time(20)
    assert follower.core.committed_index == purge.last_index
    assert [type(job) for job in follower.shell.jobs] == [WriteJob, WriteJob]
    follower.one_job()
    assert [type(job) for job in follower.shell.jobs] == [WriteJob, PurgeJob]
