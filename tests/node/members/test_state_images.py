"""Copies of state images: from which member, and what becomes of breaks, replacements and wrong bytes."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TypeVar, cast

import pytest
from zlib_ng.zlib_ng import crc32

from dledger.errors import Code, InvalidRequest, ReadFailed, StorageError
from dledger.node.members.catch_up import CatchUp
from dledger.node.members.state_images import ImageFetcher, ImageSource
from dledger.rpc.peer_transport import PeerUnreachable
from dledger.rpc.ports import ImageChunk, ImageQuestion
from dledger.store import image_files
from dledger.store.image_files import ImageFiles, ImageManifest, ImageMark
from dledger.testing.virtual.sim_disk import SimDisk
from tests.node.local import until

T = TypeVar("T")
MARK, LATER = ImageMark(20, 2, 2000), ImageMark(30, 2, 3000)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_files, "CHUNK_BYTES", 100)


async def here(work: Callable[[], T], name: str) -> T:
    return work()


class Unlimited:
    """Implements the part of CatchUp that a source uses."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.pauses: list[str] = []

    async def pause(self, peer: str) -> None:
        self.pauses.append(peer)

    def record(self, peer: str, size: int) -> None:
        self.sizes.append(size)


def state_of(mark: ImageMark) -> bytes:
    return Random(mark.index).randbytes(450)


class Member:
    """A member with an image, and the connection to it. `hook` may change, or refuse, each chunk."""

    def __init__(self, mark: ImageMark | None = MARK) -> None:
        self.disk = SimDisk()
        self.files = ImageFiles(self.disk, Path("/images"))
        self.adopted = -1
        self.damaged: list[ImageMark] = []
        self.asked: list[ImageQuestion] = []
        self.hook: Callable[[ImageChunk], ImageChunk] = lambda chunk: chunk
        self.catch_up = Unlimited()
        self.source = ImageSource(
            self.files,
            None,
            cast(CatchUp, self.catch_up),
            adopted=lambda: self.adopted,
            damaged=self.damaged.append,
        )
        if mark is not None:
            self.write(mark)

    def write(self, mark: ImageMark) -> ImageManifest:
        writer = self.files.writer(mark, b"sessions")
        writer.write(state_of(mark))
        self.adopted = mark.index
        return writer.finish()

    async def image(self, question: ImageQuestion, timeout_s: float) -> ImageChunk:
        self.asked.append(question)
        return self.hook(await self.source.chunk("n0", question))

    @property
    def newest(self) -> ImageManifest:
        assert self.files.newest is not None
        return self.files.newest


class Getter:
    """A node that needs an image."""

    def __init__(self, leader: str | None = None, **members: Member) -> None:
        self.disk = SimDisk()
        self.files = ImageFiles(self.disk, Path("/images"))
        self.members = members
        self.least: int | None = 15
        self.stored = 0
        self.fetcher = ImageFetcher(
            self.files,
            members,
            wanted=lambda: self.least,
            leader=lambda: leader,
            stored=self._count,
            rng=Random(1),
            in_thread=here,
        )

    def _count(self) -> None:
        self.stored += 1

    async def fetch(self) -> bool:
        return await self.fetcher._fetch(15)

    def has(self, mark: ImageMark) -> bool:
        newest = self.files.newest
        stored = self.files.stored()
        return (
            newest is not None
            and stored is not None
            and (newest.mark, stored.sessions) == (mark, b"sessions")
            and b"".join(self.files.state(newest)) == state_of(mark)
        )


def fails_after(chunks: int, error: Exception) -> Callable[[ImageChunk], ImageChunk]:
    count = 0

    def hook(chunk: ImageChunk) -> ImageChunk:
        nonlocal count
        count += 1
        if count > chunks:
            raise error
        return chunk

    return hook


async def test_an_image_of_several_chunks_is_fetched_from_one_member() -> None:
    member = Member()
    node = Getter(n1=member)
    assert await node.fetch() and node.has(MARK) and node.stored == 1
    assert [question.chunk for question in member.asked] == [0, 1, 2, 3, 4]
    assert sum(member.catch_up.sizes) == member.newest.size, "catch-up counts what is read"
    assert member.catch_up.pauses == 5 * ["n0"], "and says before each chunk when it may be read"
    assert node.fetcher.fetching is None


async def test_the_leader_is_asked_last() -> None:
    for seed in range(10):
        members = {name: Member() for name in ("n1", "n2", "n3")}
        node = Getter("n2", **members)
        node.fetcher._rng = Random(seed)
        assert await node.fetch() and node.has(MARK)
        assert not members["n2"].asked
    none, leader = Member(None), Member()
    node = Getter("n2", n1=none, n2=leader, n3=Member(ImageMark(14, 1, 1400)))
    assert await node.fetch() and node.has(MARK) and leader.asked, "nobody else has a new enough one"


@pytest.mark.parametrize("chunks", [1, 2, 4])
async def test_a_copy_that_breaks_off_continues_with_another_member(chunks: int) -> None:
    first, second = Member(), Member()
    first.hook = fails_after(chunks, PeerUnreachable("n1: UNAVAILABLE"))
    node = Getter("n2", n1=first, n2=second)
    assert await node.fetch() and node.has(MARK)
    assert [question.chunk for question in second.asked] == [0, *range(chunks, 5)]


async def test_a_member_that_replaces_its_image_in_the_middle_gives_the_newer_one() -> None:
    member = Member()
    node = Getter(n1=member)

    def hook(chunk: ImageChunk) -> ImageChunk:
        if len(member.asked) == 3:
            member.write(LATER)
        return chunk

    member.hook = hook
    assert await node.fetch() and node.has(LATER)
    assert [(q.index, q.chunk) for q in member.asked] == [(0, 0), (20, 1), (20, 2), (20, 3)] + [
        (30, chunk) for chunk in range(1, 5)
    ]


async def test_a_member_that_gives_other_images_without_end_is_left() -> None:
    member, other = Member(), Member()
    node = Getter("n2", n1=member, n2=other)

    def hook(chunk: ImageChunk) -> ImageChunk:
        assert len(member.asked) < 100, "without end"
        member.write(ImageMark(30 + len(member.asked), 2, 3000))
        return chunk

    member.hook = hook
    assert await node.fetch() and node.has(MARK), "from the other one"
    assert len(member.asked) < 50


@pytest.mark.parametrize("data", [b"", bytes(99), bytes(101), bytes(4 << 20)], ids=len)
async def test_a_chunk_of_another_size_than_its_manifest_says_is_not_taken(data: bytes) -> None:
    first, second = Member(), Member()
    crcs = (crc32(data), *first.newest.crcs[1:])
    lying = replace(first.newest, crcs=crcs).encode()
    first.hook = lambda part: ImageChunk(lying, data) if part.manifest else part
    node = Getter("n2", n1=first, n2=second)
    assert await node.fetch() and node.has(MARK) and second.asked


@pytest.mark.parametrize("chunk", [0, 2])
async def test_bytes_that_do_not_match_are_not_taken_and_another_member_is_asked(chunk: int) -> None:
    first, second = Member(), Member()

    def hook(part: ImageChunk) -> ImageChunk:
        return part._replace(data=bytes(100)) if len(first.asked) == chunk + 1 else part

    first.hook = hook
    node = Getter("n2", n1=first, n2=second)
    assert await node.fetch() and node.has(MARK) and second.asked


@pytest.mark.parametrize("manifest", [b"", b"{}", b"\xff"])
async def test_an_invalid_manifest_fails_the_attempt_with_this_member(manifest: bytes) -> None:
    first = Member()
    first.hook = lambda part: part._replace(manifest=manifest)
    node = Getter(n1=first)
    assert not await node.fetch() and node.files.newest is None and node.stored == 0


@pytest.mark.parametrize("part", [ImageChunk(b"{}", b""), ImageChunk(b"", b""), None])
async def test_a_copy_that_ends_in_the_middle_closes_its_file_once(
    part: ImageChunk | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The number of a closed file may be that of another one, for example of the log."""
    member = Member()
    node = Getter(n1=member)

    def hook(chunk: ImageChunk) -> ImageChunk:
        if len(member.asked) < 3:
            return chunk
        if part is None:
            raise PeerUnreachable("n1: UNAVAILABLE")
        return part

    member.hook = hook
    assert not await node.fetch()
    assert not node.disk.open_files
    member.hook = lambda chunk: chunk
    assert await node.fetch() and node.has(MARK) and not node.disk.open_files
    assert "closed already" not in caplog.text


@pytest.mark.parametrize("is_full", [False, True])
async def test_a_first_chunk_that_is_not_stored_leaves_no_open_file(is_full: bool) -> None:
    """A node whose disk is full tries again every few seconds."""
    member = Member()
    node = Getter(n1=member)
    if is_full:
        node.disk.fail("pwritev", errno.ENOSPC, nth=2)  # the first one is that of the manifest
    else:
        member.hook = lambda chunk: chunk._replace(data=bytes(100))
    assert not await node.fetch() and not node.disk.open_files


async def test_a_copy_that_cannot_be_completed_closes_its_file_once(caplog: pytest.LogCaptureFixture) -> None:
    member = Member()
    node = Getter(n1=member)
    node.disk.fail("rename", errno.ENOSPC, nth=2)  # the first one is that of the manifest of what arrives
    assert not await node.fetch() and not node.disk.open_files
    assert await node.fetch() and node.has(MARK) and not node.disk.open_files
    assert "closed already" not in caplog.text


async def test_an_image_below_the_wanted_mark_is_not_taken_whoever_offers_it() -> None:
    class Careless(Member):
        async def image(self, question: ImageQuestion, timeout_s: float) -> ImageChunk:
            return await super().image(question._replace(least_index=0), timeout_s)

    node = Getter(n1=Careless(ImageMark(14, 1, 1400)))
    assert not await node.fetch() and node.files.newest is None


async def test_an_older_image_does_not_replace_one_that_the_replica_has_not_taken_yet() -> None:
    """Suppose a read of the newer image is under way: until it ends, the node still wants one. If it fetched
    the older one then, it might lose the newer one after it has purged the entries before it."""
    member = Member()
    node = Getter(n1=Member(LATER))
    assert await node.fetch() and node.has(LATER)
    node.members["n1"] = member
    assert not await node.fetch() and node.has(LATER) and node.stored == 1
    assert len(member.asked) == 1


async def test_a_copy_ends_once_the_image_is_not_wanted_any_more() -> None:
    member = Member()
    node = Getter(n1=member)

    def hook(part: ImageChunk) -> ImageChunk:
        node.least = None
        return part

    member.hook = hook
    assert not await node.fetch() and node.stored == 0 and len(member.asked) == 1


async def test_a_node_that_needs_an_image_fetches_it_until_it_has_one() -> None:
    member = Member()
    member.hook = fails_after(1, PeerUnreachable("n1: UNAVAILABLE"))
    node, done = Getter(n1=member), asyncio.Event()
    node.fetcher._stored = done.set
    node.fetcher.start()
    try:
        node.fetcher.check()
        await until(lambda: bool(member.asked))
        member.hook = lambda part: part

        def is_done() -> bool:
            node.fetcher.check()  # as each tick does
            return done.is_set()

        await until(is_done)
    finally:
        await node.fetcher.stop()
    assert node.has(MARK)


# -- the source


async def test_an_image_that_is_not_known_to_belong_to_the_log_is_given_to_nobody() -> None:
    member = Member()
    member.adopted = -1
    with pytest.raises(ReadFailed):
        await member.source.chunk("n0", ImageQuestion(5, 0, 0, 0))


async def test_an_image_older_than_required_is_given_to_nobody() -> None:
    member = Member()
    with pytest.raises(ReadFailed):
        await member.source.chunk("n0", ImageQuestion(MARK.index + 1, 0, 0, 0))


async def test_a_question_for_an_older_term_of_the_same_index_is_answered_with_the_manifest() -> None:
    member = Member()
    part = await member.source.chunk("n0", ImageQuestion(5, MARK.index, MARK.term - 1, 3))
    assert part.manifest == member.newest.encode() and part.data == member.files.chunk(member.newest, 0)


@pytest.mark.parametrize("chunk", [-1, 5, 1 << 40])
async def test_a_chunk_that_the_image_does_not_have_is_refused(chunk: int) -> None:
    with pytest.raises(InvalidRequest):
        await Member().source.chunk("n0", ImageQuestion(5, MARK.index, MARK.term, chunk))


async def test_damage_that_a_source_meets_is_reported_and_nothing_is_sent() -> None:
    member = Member()
    [data] = [path for path in member.disk.files() if path.name.endswith(".data")]
    member.disk.flip(data, 250)
    question = ImageQuestion(5, MARK.index, MARK.term, 1)
    assert (await member.source.chunk("n0", question)).data
    assert member.damaged == []
    with pytest.raises(StorageError) as caught:
        await member.source.chunk("n0", question._replace(chunk=2))
    assert caught.value.code is Code.DATA_DAMAGED and member.damaged == [MARK]
    other = Member()
    node = Getter("n2", n1=member, n2=other)
    assert await node.fetch() and node.has(MARK)
