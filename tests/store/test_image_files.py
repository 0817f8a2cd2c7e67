"""Files of state images: each crash, each failing operation and each wrong byte leaves an image or none."""

from __future__ import annotations

import errno
import json
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from dledger.errors import Code, ReadFailed, StorageError
from dledger.infra.files.disk import OsDisk
from dledger.store import image_files
from dledger.store.image_files import (
    CHUNK_BYTES,
    ImageFiles,
    ImageManifest,
    ImageMark,
    _crc,
    decode_manifest,
)
from dledger.testing.virtual.sim_disk import CrashKind, CrashPoint, SimDisk, SimulatedCrash

DIRECTORY = Path("/images")
OLD, NEW = ImageMark(10, 1, 1000), ImageMark(20, 2, 2000)
SESSIONS = Random(1).randbytes(50)
SMALL_CHUNK = 100


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of few bytes have several chunks, and a sync before the last one."""
    monkeypatch.setattr(image_files, "CHUNK_BYTES", SMALL_CHUNK)
    monkeypatch.setattr(image_files, "_SYNC_BYTES", 4 * SMALL_CHUNK)


def state_of(mark: ImageMark, size: int = 470) -> bytes:
    return Random(mark.index * 1000 + mark.term).randbytes(size)


def opened(disk: SimDisk) -> ImageFiles:
    files = ImageFiles(disk, DIRECTORY)
    files.open()
    return files


def write(files: ImageFiles, mark: ImageMark, sessions: bytes, state: bytes) -> ImageManifest:
    writer = files.writer(mark, sessions)
    try:
        for at in range(0, len(state), 33):
            writer.write(state[at : at + 33])
        return writer.finish()
    except StorageError:
        writer.abandon()
        raise


def content(files: ImageFiles) -> tuple[ImageMark, bytes, bytes] | None:
    newest = files.newest
    if newest is None:
        return None
    stored = files.stored()
    assert stored is not None, "a complete image cannot be read"
    return newest.mark, stored.sessions, b"".join(files.state(newest))


def check(disk: SimDisk, allowed: set[ImageMark | None], where: str) -> None:
    """The files have one of these images completely, nothing else but what a receiver continues, and work."""
    files = opened(disk)
    found = content(files)
    mark = None if found is None else found[0]
    assert mark in allowed, where
    assert found is None or found == (mark, SESSIONS, state_of(found[0])), where
    names = [path.name for path in disk.files() if ".arriving" not in path.name]
    assert len(names) == (0 if found is None else 2), (where, names)
    later = ImageMark(30, 3, 3000)
    write(files, later, SESSIONS, state_of(later))
    assert content(files) == (later, SESSIONS, state_of(later)), where
    assert len(disk.files()) == 2, (where, disk.files())


def write_both(disk: SimDisk, done: list[ImageMark]) -> None:
    files = opened(disk)
    for mark in (OLD, NEW):
        write(files, mark, SESSIONS, state_of(mark))
        done.append(mark)


def receive_both(disk: SimDisk, done: list[ImageMark]) -> None:
    files = opened(disk)
    for mark in (OLD, NEW):
        other = opened(SimDisk())
        receive(files, other, write(other, mark, SESSIONS, state_of(mark)))
        done.append(mark)


def receive(files: ImageFiles, source: ImageFiles, manifest: ImageManifest, upto: int = 1 << 30) -> int:
    """Copy an image, or its first chunks. Returns how many have arrived."""
    receiver = files.receiver(manifest)
    try:
        while not receiver.is_complete and receiver.next_chunk < upto:
            receiver.write(source.chunk(manifest, receiver.next_chunk))
        if receiver.is_complete:
            receiver.finish()
    finally:
        receiver.pause()
    return receiver.next_chunk


WORK: list[Callable[[SimDisk, list[ImageMark]], None]] = [write_both, receive_both]


def interrupted(
    work: Callable[[SimDisk, list[ImageMark]], None], arrange: Callable[[SimDisk], None]
) -> tuple[SimDisk, list[ImageMark], BaseException | None]:
    disk, done = SimDisk(), list[ImageMark]()
    arrange(disk)
    try:
        work(disk, done)
    except (SimulatedCrash, StorageError) as error:
        return disk, done, error
    return disk, done, None


def possible(done: list[ImageMark]) -> set[ImageMark | None]:
    """The images that may be there after the writing of the next one was interrupted."""
    last = done[-1] if done else None
    return {last, (OLD, NEW)[len(done)]} if len(done) < 2 else {last}


def operations(work: Callable[[SimDisk, list[ImageMark]], None]) -> list[str]:
    disk, done, error = interrupted(work, lambda disk: None)
    assert error is None and done == [OLD, NEW]
    return disk.operations


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("point", list(CrashPoint))
def test_a_crash_leaves_the_old_image_or_the_new_one_and_never_a_part(
    point: CrashPoint, work: Callable[[SimDisk, list[ImageMark]], None]
) -> None:
    kept = set[ImageMark | None]()
    for number, operation in enumerate(operations(work), 1):
        disk, done, error = interrupted(work, lambda disk, n=number: disk.schedule_crash(n, point))  # type: ignore[misc]
        assert isinstance(error, SimulatedCrash)
        where = f"{number} {point.value} {operation}"
        for seed in range(6):
            twin = disk.copy()
            twin.crash(CrashKind.POWER, Random(seed), reorder=bool(seed % 2))
            check(twin, possible(done), f"{where} (power, {seed})")
        disk.crash(CrashKind.PROCESS, Random(0))
        newest = opened(disk.copy()).newest
        kept.add(None if newest is None else newest.mark)
        check(disk, possible(done), where)
    assert kept == {None, OLD, NEW}


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_an_operation_that_fails_is_an_error_of_the_image_and_leaves_the_old_one(
    error: int, work: Callable[[SimDisk, list[ImageMark]], None]
) -> None:
    for number, operation in enumerate(operations(work), 1):
        disk, done, raised = interrupted(work, lambda disk, n=number: disk.fail_operation(n, error))  # type: ignore[misc]
        where = f"{number} {operation}"
        assert isinstance(raised, StorageError), where
        assert raised.code is (Code.DISK_FULL if error == errno.ENOSPC else Code.DISK_ERROR), where
        assert not disk.open_files, where
        for kind in CrashKind:
            twin = disk.copy()
            twin.crash(kind, Random(number))
            check(twin, possible(done), f"{where} {kind.value}")


@pytest.mark.usefixtures("small_chunks")
def test_a_crash_while_the_remains_of_a_crash_are_removed_leaves_the_same_image() -> None:
    steps = 0
    for number in range(1, len(operations(write_both)) + 1, 2):
        disk, done, _ = interrupted(
            write_both,
            lambda disk, n=number: disk.schedule_crash(n, CrashPoint.AFTER),  # type: ignore[misc]
        )
        disk.crash(CrashKind.POWER, Random(number))
        step = 1
        while True:
            twin = disk.copy()
            twin.schedule_crash(step, CrashPoint.AFTER)
            try:
                opened(twin)
            except SimulatedCrash:
                twin.crash(CrashKind.POWER, Random(step))
                check(twin, possible(done), f"{number} opening cut at {step}")
                step += 1
                steps += 1
            else:
                break
    assert steps


# -- receivers


@pytest.fixture
def source(small_chunks: None) -> tuple[ImageFiles, ImageManifest]:
    files = opened(SimDisk())
    return files, write(files, NEW, SESSIONS, state_of(NEW))


def test_a_receiver_continues_after_the_chunks_that_have_arrived(
    source: tuple[ImageFiles, ImageManifest],
) -> None:
    other, manifest = source
    assert len(manifest.crcs) == 6
    files = opened(SimDisk())
    for upto in (1, 1, 4, 4, 6):
        assert files.newest is None
        assert receive(files, other, manifest, upto) == upto
    assert content(files) == (NEW, SESSIONS, state_of(NEW))


@pytest.mark.parametrize("kind", list(CrashKind))
def test_a_receiver_continues_after_a_crash(
    kind: CrashKind, source: tuple[ImageFiles, ImageManifest]
) -> None:
    """After a pause all chunks that have arrived are durable. Without one, those on the disk are checked."""
    other, manifest = source
    for upto in range(len(manifest.crcs)):
        disk = SimDisk()
        receive(opened(disk), other, manifest, upto)
        disk.crash(kind, Random(upto))
        files = opened(disk)
        assert files.receiver(manifest).next_chunk == upto
        assert receive(files, other, manifest) == len(manifest.crcs)
        assert content(files) == (NEW, SESSIONS, state_of(NEW))


def test_chunks_that_a_crash_has_torn_arrive_again(source: tuple[ImageFiles, ImageManifest]) -> None:
    other, manifest = source
    found = set()
    for seed in range(40):
        disk = SimDisk()
        receiver = opened(disk).receiver(manifest)
        for number in range(5):
            receiver.write(other.chunk(manifest, number))
        disk.crash(CrashKind.POWER, Random(seed), reorder=bool(seed % 2))
        files = opened(disk)
        found.add(files.receiver(manifest).next_chunk)
        receive(files, other, manifest)
        assert content(files) == (NEW, SESSIONS, state_of(NEW))
    assert len(found) > 1


def test_a_chunk_that_has_changed_since_it_arrived_is_received_again(
    source: tuple[ImageFiles, ImageManifest],
) -> None:
    other, manifest = source
    disk = SimDisk()
    receive(opened(disk), other, manifest, 4)
    [data] = [path for path in disk.files() if path.name.endswith(".arriving")]
    disk.flip(data, 2 * SMALL_CHUNK)
    files = opened(disk)
    assert files.receiver(manifest).next_chunk == 2
    receive(files, other, manifest)
    assert content(files) == (NEW, SESSIONS, state_of(NEW))


def test_a_receiver_takes_no_chunk_of_another_image(source: tuple[ImageFiles, ImageManifest]) -> None:
    other, manifest = source
    files = opened(SimDisk())
    receiver = files.receiver(manifest)
    for wrong in (other.chunk(manifest, 1), b"", other.chunk(manifest, 0)[:-1]):
        with pytest.raises(StorageError) as caught:
            receiver.write(wrong)
        assert caught.value.code is Code.DATA_DAMAGED and receiver.next_chunk == 0
    receiver.write(other.chunk(manifest, 0))
    receiver.pause()
    receive(files, other, manifest)
    assert content(files) == (NEW, SESSIONS, state_of(NEW))


def test_another_image_starts_from_its_first_chunk(source: tuple[ImageFiles, ImageManifest]) -> None:
    other, manifest = source
    files = opened(SimDisk())
    receive(files, other, manifest, 3)
    newer = opened(SimDisk())
    second = write(newer, ImageMark(40, 2, 4000), SESSIONS, state_of(OLD))
    assert files.receiver(second).next_chunk == 0
    receive(files, newer, second)
    assert content(files) == (second.mark, SESSIONS, state_of(OLD))
    assert files.receiver(manifest).next_chunk == 0, "the chunks of the first one were removed"


def test_an_equal_mark_with_other_bytes_is_another_image(source: tuple[ImageFiles, ImageManifest]) -> None:
    """Machines may save equal states as different bytes."""
    other, manifest = source
    files = opened(SimDisk())
    receive(files, other, manifest, 3)
    assert files.receiver(replace(manifest, crcs=manifest.crcs[::-1])).next_chunk == 0


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("is_received", [False, True])
def test_the_remains_of_an_interrupted_image_take_no_space_while_the_next_one_is_written(
    is_received: bool, source: tuple[ImageFiles, ImageManifest]
) -> None:
    other, manifest = source
    disk = SimDisk()
    opened(disk).writer(OLD, SESSIONS).write(state_of(OLD))
    disk.crash(CrashKind.PROCESS, Random(0))
    files = opened(disk)
    if is_received:
        receive(files, other, manifest, 1)
    else:
        files.writer(NEW, SESSIONS)
    assert all(path.name.startswith(f"{NEW.index:020d}-") for path in disk.files()), disk.files()


def test_no_file_stays_open_if_the_sessions_do_not_fit(small_chunks: None) -> None:
    disk = SimDisk()
    disk.fail("pwritev", errno.ENOSPC)
    with pytest.raises(StorageError):
        opened(disk).writer(OLD, bytes(SMALL_CHUNK))
    assert not disk.open_files and not disk.files()


def test_no_file_stays_open_if_what_has_arrived_cannot_be_read(
    source: tuple[ImageFiles, ImageManifest],
) -> None:
    other, manifest = source
    disk = SimDisk()
    receive(opened(disk), other, manifest, 3)
    files = opened(disk)
    disk.fail("pread", errno.ENOMEM, nth=2)  # the first one is that of the manifest
    with pytest.raises(StorageError):
        files.receiver(manifest)
    assert not disk.open_files


# -- images with the same index


@pytest.mark.usefixtures("small_chunks")
def test_images_with_one_index_and_two_terms_do_not_mix() -> None:
    """A mark was truncated, and the next leader has put its own at the same index."""
    disk = SimDisk()
    files = opened(disk)
    first, second = ImageMark(10, 1, 1000), ImageMark(10, 2, 1000)
    write(files, first, SESSIONS, state_of(first))
    write(files, second, SESSIONS, state_of(second))
    assert content(files) == (second, SESSIONS, state_of(second))
    assert content(opened(disk.copy())) == (second, SESSIONS, state_of(second))
    files.discard(first)
    assert files.newest is not None, "it is another image"
    files.discard(second)
    assert files.newest is None and disk.files() == []


@pytest.mark.usefixtures("small_chunks")
def test_of_two_complete_images_that_a_crash_has_left_the_one_of_the_later_term_counts() -> None:
    """Its index may be lower: the log was truncated in between."""
    disk = SimDisk()
    early, late = ImageMark(50, 1, 5000), ImageMark(40, 2, 4000)
    for mark in (early, late):
        twin = SimDisk()
        write(opened(twin), mark, SESSIONS, state_of(mark))
        if not disk.exists(DIRECTORY):
            disk.mkdir(DIRECTORY)
        for path in twin.files():
            disk.set_content(path, twin.content(path))
    assert content(opened(disk)) == (late, SESSIONS, state_of(late))
    assert len(disk.files()) == 2


# -- damage and replacement


def write_after_a_later_one(disk: SimDisk) -> None:
    files = opened(disk)
    slow = files.writer(OLD, SESSIONS)
    slow.write(state_of(OLD))
    files._newest = opened(disk).newest  # another thread has completed it
    slow.finish()
    assert content(files) == (NEW, SESSIONS, state_of(NEW))


def receive_after_a_later_one(disk: SimDisk) -> None:
    other = opened(SimDisk())
    files, manifest = opened(disk), write(other, OLD, SESSIONS, state_of(OLD))
    receive(files, other, manifest)
    assert content(files) == (NEW, SESSIONS, state_of(NEW))


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("work", [write_after_a_later_one, receive_after_a_later_one])
def test_an_older_image_that_is_completed_later_does_not_replace_the_newest(
    work: Callable[[SimDisk], None],
) -> None:
    def made() -> SimDisk:
        disk = SimDisk()
        write(opened(disk), NEW, SESSIONS, state_of(NEW))
        return disk

    disk = made()
    first = len(disk.operations) + 1
    work(disk)
    assert len(disk.files()) == 2, disk.files()
    for number in range(first, len(disk.operations) + 1):
        for point in CrashPoint:
            disk = made()
            disk.schedule_crash(number, point)
            with pytest.raises(SimulatedCrash):
                work(disk)
            disk.crash(CrashKind.POWER, Random(number))
            check(disk, {NEW}, f"{number} {point}")


@pytest.mark.usefixtures("small_chunks")
def test_damage_of_any_byte_is_found_where_it_is_read() -> None:
    disk = SimDisk()
    manifest = write(opened(disk), NEW, SESSIONS, state_of(NEW))
    [data] = [path for path in disk.files() if path.name.endswith(".data")]
    for offset in range(manifest.size):
        twin = disk.copy()
        twin.flip(data, offset, 1 << offset % 8)
        files = opened(twin)
        bad = offset // SMALL_CHUNK
        for number in range(len(manifest.crcs)):
            if number == bad:
                with pytest.raises(StorageError) as caught:
                    files.chunk(manifest, number)
                assert caught.value.code is Code.DATA_DAMAGED
            else:
                files.chunk(manifest, number)
        assert (files.stored() is None) == (bad == 0), "the sessions are in the first chunk"


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("size", [0, 60, 519])
def test_a_shortened_file_is_damage(size: int) -> None:
    disk = SimDisk()
    manifest = write(opened(disk), NEW, SESSIONS, state_of(NEW))
    [data] = [path for path in disk.files() if path.name.endswith(".data")]
    disk.set_content(data, disk.content(data)[:size])
    with pytest.raises(StorageError) as caught:
        b"".join(opened(disk).state(manifest))
    assert caught.value.code is Code.DATA_DAMAGED


@pytest.mark.usefixtures("small_chunks")
def test_a_failing_read_is_damage_of_the_image() -> None:
    disk = SimDisk()
    files = opened(disk)
    manifest = write(files, NEW, SESSIONS, state_of(NEW))
    disk.fail("pread", errno.EBADF)
    with pytest.raises(StorageError) as caught:
        files.chunk(manifest, 0)
    assert caught.value.code is Code.DATA_DAMAGED


@pytest.mark.usefixtures("small_chunks")
def test_a_reader_of_an_image_that_is_replaced_meanwhile_reads_it_to_its_end_and_not_again() -> None:
    files = opened(SimDisk())
    manifest = write(files, OLD, SESSIONS, state_of(OLD))
    pieces = files.state(manifest)
    first = next(pieces)
    write(files, NEW, SESSIONS, state_of(NEW))
    assert first + b"".join(pieces) == state_of(OLD)
    with pytest.raises(ReadFailed):
        next(files.state(manifest))


# -- space


@pytest.mark.usefixtures("small_chunks")
def test_a_full_disk_leaves_the_old_image_and_nothing_of_the_new_one() -> None:
    disk = SimDisk()
    files = opened(disk)
    write(files, OLD, SESSIONS, state_of(OLD))
    before = disk.files()
    disk.capacity = disk.used_bytes(DIRECTORY) + 300
    writer = files.writer(NEW, SESSIONS)
    with pytest.raises(StorageError) as caught:
        writer.write(state_of(NEW))
    assert caught.value.code is Code.DISK_FULL
    writer.abandon()
    assert content(files) == (OLD, SESSIONS, state_of(OLD)) and disk.files() == before
    disk.capacity = 1 << 20
    write(files, NEW, SESSIONS, state_of(NEW))
    assert content(files) == (NEW, SESSIONS, state_of(NEW))


@pytest.mark.usefixtures("small_chunks")
def test_an_empty_state_without_sessions_is_an_image() -> None:
    disk = SimDisk()
    write(opened(disk), OLD, b"", b"")
    assert content(opened(disk)) == (OLD, b"", b"")
    files = opened(SimDisk())
    receiver = files.receiver(ImageManifest(OLD, 0, 0, (), SMALL_CHUNK))
    assert receiver.is_complete
    receiver.finish()
    assert content(files) == (OLD, b"", b"")


def test_the_directory_is_marked_before_the_first_image_that_replaces_entries() -> None:
    """An older release would not find the image. One that copies an image of the log replaces nothing."""
    marked: list[bool] = []
    disk = SimDisk()
    files = ImageFiles(disk, DIRECTORY, on_first=lambda: marked.append(files.newest is None))
    files.writer(OLD, SESSIONS, is_copy=True).finish()
    assert marked == []
    files.discard(OLD)
    files.writer(OLD, SESSIONS).finish()
    assert marked == [True]


# -- manifests

VALID = ImageManifest(NEW, 50, 2 * CHUNK_BYTES, (1, 2, 3))


def pieces_of(encoded: bytes) -> Iterator[bytes]:
    for size in range(len(encoded) - 1):  # the last byte is the end of the line
        yield encoded[:size]
    for at in range(len(encoded) - 1):
        for bit in range(8):
            yield encoded[:at] + bytes([encoded[at] ^ 1 << bit]) + encoded[at + 1 :]


def test_a_manifest_with_any_wrong_bit_or_without_its_end_is_invalid() -> None:
    encoded = VALID.encode()
    assert decode_manifest(encoded) == VALID
    for wrong in pieces_of(encoded):
        try:
            found = decode_manifest(wrong)
        except ValueError:
            continue
        assert found == VALID, wrong  # another notation of the same manifest


@pytest.mark.parametrize(
    "change",
    [
        {"mark": [-1, 2, 2000]},
        {"mark": [20, -1, 2000]},
        {"mark": [20, 2, -1]},
        {"mark": [1 << 63, 2, 2000]},
        {"mark": [20, 2]},
        {"mark": [20, 2, 2000, 7]},
        {"mark": 20},
        {"mark": ["20", 2, 2000]},
        {"mark": [20.0, 2, 2000]},
        {"mark": None},
        {"sessions_size": -1, "state_size": 2 * CHUNK_BYTES + 51},
        {"state_size": -1},
        {"state_size": 1 << 63},
        {"state_size": "7"},
        {"state_size": None},
        {"state_size": CHUNK_BYTES},
        {"state_size": 3 * CHUNK_BYTES},
        {"crcs": [1, 2]},
        {"crcs": [1, 2, 3, 4]},
        {"crcs": [1, 2, -3]},
        {"crcs": [1, 2, None]},
        {"crcs": 5},
        {"crcs": "abc"},
        {"chunk_bytes": 0},
        {"chunk_bytes": -1},
        {"chunk_bytes": CHUNK_BYTES + 1},
        {"chunk_bytes": None},
        {"chunk_bytes": "1"},
        {"chunk_bytes": float(CHUNK_BYTES)},
        {"chunk_bytes": 0.5, "sessions_size": 0, "state_size": 0, "crcs": []},
        {"chunk_bytes": True, "sessions_size": 1, "state_size": 0, "crcs": [1]},
        {"sessions_size": True, "state_size": 0, "crcs": [1]},
        {"crcs": [True, 2, 3]},
        {"crcs": [1 << 32, 2, 3]},
        {"is_copy": 1},
        {"version": 2},
        {"unknown": 1},
    ],
    ids=str,
)
def test_a_manifest_with_a_valid_sum_and_impossible_fields_is_invalid(change: dict[str, object]) -> None:
    fields = json.loads(VALID.encode())
    del fields["crc"]
    fields |= change
    with pytest.raises(ValueError):
        decode_manifest(json.dumps(fields | {"crc": _crc(fields)}).encode())


@pytest.mark.parametrize(
    "content", [b"", b"null", b"[]", b"{}", b"1", b'"x"', b"\xff", b"[" * 100_000, b'{"crc": 1}'], ids=len
)
def test_garbage_is_no_manifest(content: bytes) -> None:
    with pytest.raises(ValueError):
        decode_manifest(content)


# -- memory


def test_a_large_image_is_written_and_read_a_few_chunks_at_a_time(tmp_path: Path) -> None:
    size, piece = 64 << 20, bytes(300_000)
    files, copies = (ImageFiles(OsDisk(), tmp_path / name) for name in ("a", "b"))
    tracemalloc.start()
    try:
        writer = files.writer(NEW, SESSIONS)
        for _ in range(size // len(piece)):
            writer.write(piece)
        manifest = writer.finish()
        assert manifest.size > 60 << 20
        assert sum(len(part) for part in files.state(manifest)) == manifest.state_size
        receive(copies, files, manifest)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert copies.newest == manifest
    assert peak < 8 * CHUNK_BYTES
