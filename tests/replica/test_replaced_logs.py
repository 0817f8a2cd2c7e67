"""INSTALL_BASE and PURGE at a replica: what of the log stays, and when the rest goes."""

from __future__ import annotations

import pytest

from dledger.core.messages import Append, InstallBase
from dledger.core.sessions import SessionTable
from dledger.core.values import Base, TermRun
from dledger.replica.shell import PurgeJob, ResetJob, WriteJob
from dledger.store.format.batch import Batch, encode_batch
from dledger.store.format.internal import ImageBegin, Purge, encode_internal
from dledger.store.image_files import ImageMark
from dledger.store.state_files import tail_of
from tests.replica.logged_images import mark_of, write_image
from tests.replica.replica_world import FILE_SIZE, Host, World


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


def committed_purge(world: World) -> tuple[Host, Base, ImageMark]:
    """A follower that has been pushed a full file, the mark of an image and a PURGE of that file, all of them
    committed, and none of them on its disk."""
    leader, follower = world.elect("a"), world["b"]
    term, end = leader.core.term, leader.replica.log_tail
    fills_the_file = bytes(FILE_SIZE - end.pos - 100)
    gone = encode_batch(end, term, [fills_the_file], data_file_size=FILE_SIZE)
    begin = encode_batch(gone.tail, term, [], data_file_size=FILE_SIZE, head=encode_internal(ImageBegin()))
    base = Base(gone.last_index, term, FILE_SIZE, gone.chain_crc)
    head = encode_internal(Purge(base))
    purge = encode_batch(begin.tail, term, [], data_file_size=FILE_SIZE, head=head)
    for batch in (gone, begin, purge):
        push(world, batch, committed=purge.last_index)
    follower.pass_time(20)
    assert follower.core.committed_index == purge.last_index
    assert [type(job) for job in follower.shell.jobs] == [WriteJob] * 3
    return follower, base, ImageMark(begin.first_index, term, begin.pos)


def give_image(host: Host, mark: ImageMark) -> None:
    write_image(host.store.images, mark)
    host.shell.load_image()
    host.work_on_images()


def test_a_purge_waits_until_the_mark_of_the_image_is_durable() -> None:
    """A follower may hear that a PURGE is committed, and be given the image, while its disk writes up to the
    base: only what follows proves that a data file begins there, and that the image belongs to this log."""
    follower, base, mark = committed_purge(World("a", "b", "c"))
    give_image(follower, mark)
    follower.one_job()
    assert follower.core.log.durable_index == base.index
    assert [type(job) for job in follower.shell.jobs] == [WriteJob] * 2
    follower.one_job()
    assert [type(job) for job in follower.shell.jobs] == [WriteJob, PurgeJob]
    follower.disk()
    assert follower.store.base == base


def test_a_node_without_an_image_of_its_own_wants_one_and_purges_nothing_until_it_arrives() -> None:
    follower, base, mark = committed_purge(World("a", "b", "c"))
    follower.disk()
    for _ in range(5):
        follower.pass_time(20)
    assert follower.shell.jobs == [] and follower.store.base.index == -1
    assert follower.replica.retainer.wanted_image() == base.index + 1
    give_image(follower, mark)
    assert follower.replica.retainer.wanted_image() is None
    follower.disk()
    assert follower.store.base == base


def test_an_image_whose_mark_is_not_above_the_base_lets_nothing_be_purged() -> None:
    """The image of the base's own index does not have the state after the base."""
    follower, base, _ = committed_purge(World("a", "b", "c"))
    follower.disk()
    give_image(follower, mark_of(follower.store, base.index))
    follower.pass_time(20)
    assert follower.core.image_index == base.index
    assert follower.shell.jobs == [] and follower.store.base.index == -1
    assert follower.replica.retainer.wanted_image() == base.index + 1


def test_an_image_whose_mark_was_truncated_is_removed_and_not_reported() -> None:
    """The log has another entry at its index: the image is of a history that never happened."""
    follower, base, mark = committed_purge(World("a", "b", "c"))
    follower.disk()
    give_image(follower, mark._replace(term=mark.term + 1))
    assert follower.core.image_index == -1 and follower.store.images.newest is None
    assert follower.shell.jobs == [] and follower.replica.retainer.wanted_image() == base.index + 1


def test_an_image_that_arrives_before_its_mark_is_committed_waits_for_that() -> None:
    world = World("a", "b", "c")
    leader, follower = world.elect("a"), world["b"]
    term, end = leader.core.term, leader.replica.log_tail
    begin = encode_batch(end, term, [], data_file_size=FILE_SIZE, head=encode_internal(ImageBegin()))
    mark = ImageMark(begin.first_index, term, begin.pos)
    give_image(follower, mark)
    assert follower.core.image_index == -1 and follower.store.images.newest is not None
    assert follower.replica.retainer.wanted_image() is None
    push(world, begin, committed=-1)
    follower.disk()
    assert follower.core.image_index == -1, "its mark may still be truncated"
    more = encode_batch(begin.tail, term, [b"more"], data_file_size=FILE_SIZE)
    push(world, more, committed=more.last_index)
    assert follower.core.image_index == mark.index


@pytest.mark.parametrize("image_first", [True, False])
def test_a_log_that_starts_at_an_installed_base_serves_once_it_has_the_image_and_its_mark(
    image_first: bool,
) -> None:
    world = World("a", "b", "c")
    leader, follower = world.elect("a"), world["b"]
    term, stream = leader.core.term, world.streams["b"]
    base = Base(50, term, 10 * FILE_SIZE, 77)
    follower.replica.receive(follower.now, "a", InstallBase(term, "a", stream, 50, base))
    follower.disk()
    assert follower.replica.retainer.wanted_image() == 51 and not follower.core.may_lead
    begin = encode_batch(
        tail_of(base), term, [], data_file_size=FILE_SIZE, head=encode_internal(ImageBegin())
    )
    mark = ImageMark(51, term, begin.pos)
    sessions = SessionTable(max_sessions=4).encode_all()

    def give() -> None:
        write_image(follower.store.images, mark, sessions)
        follower.shell.load_image()
        follower.work_on_images()

    if image_first:
        give()
        assert follower.replica.admission.state.needs_image, "the mark has not arrived"
        assert follower.replica.retainer.wanted_image() is None, "it need not be fetched again"
    push(world, begin, committed=51)
    if not image_first:
        give()
    follower.disk()
    follower.pass_time(1)
    assert not follower.replica.admission.state.needs_image and follower.core.may_lead
    assert follower.core.image_index == 51


def test_a_damaged_image_is_removed_reported_no_longer_and_wanted_again() -> None:
    follower, base, mark = committed_purge(World("a", "b", "c"))
    follower.disk()
    give_image(follower, mark)
    follower.disk()
    assert follower.store.base == base and follower.core.image_index == mark.index
    follower.replica.retainer.image_lost(follower.now, mark)
    follower.work_on_images()
    assert follower.core.image_index == -1 and follower.store.images.newest is None
    assert follower.replica.retainer.wanted_image() == base.index + 1
    give_image(follower, mark)
    assert follower.core.image_index == mark.index and follower.replica.retainer.wanted_image() is None
