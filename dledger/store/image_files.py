"""State images in files: the newest image of a node, and at most one that is being written.

An image is the state after all entries before its mark in the log. It consists of a data file, with the
sessions and then the state machine's state, and a manifest with the checksums of all chunks of the data. The
manifest is renamed to its name last: an image without one does not exist. See Images in docs/formats.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from zlib_ng.zlib_ng import crc32

from dledger.errors import Code, ReadFailed, StorageError
from dledger.infra.files.disk import Buffer, Disk, read_around, read_file, replace_file, write_all
from dledger.infra.files.platform import FULL

CHUNK_BYTES = 1 << 20
_MANIFEST, _DATA, _ARRIVING = ".manifest", ".data", ".arriving"
#: Written bytes become durable in steps, so that no single sync delays the log's own.
_SYNC_BYTES = 8 << 20
_VERSION = 1


class ImageMark(NamedTuple):
    """The entry in the log that an image belongs to. Equal marks mean equal images of equal logs."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    term: int
    pos: int  # position of the entry

    @property
    def age(self) -> tuple[int, int]:
        """Later marks are greater, also after a truncation."""
        return self.term, self.index


@dataclass(frozen=True, slots=True)
class ImageManifest:
    """The description of a complete image."""

    mark: ImageMark
    sessions_size: int
    state_size: int
    crcs: tuple[int, ...]  # CRC32 of each chunk of the data
    chunk_bytes: int = CHUNK_BYTES
    is_copy: bool = False  # made from an image whose content is still in the log

    @property
    def size(self) -> int:
        return self.sessions_size + self.state_size

    def encode(self) -> bytes:
        fields = asdict(self) | {"mark": list(self.mark), "crcs": list(self.crcs), "version": _VERSION}
        return (json.dumps(fields | {"crc": _crc(fields)}) + "\n").encode()


def decode_manifest(content: bytes) -> ImageManifest:
    """Decode a manifest. Raises ValueError."""
    try:
        fields = json.loads(content)
        if fields.pop("crc") != _crc(fields) or fields.pop("version") != _VERSION:
            raise ValueError("the crc does not match, or the version is unknown")
        manifest = ImageManifest(
            **fields | {"mark": ImageMark(*fields["mark"]), "crcs": tuple(fields["crcs"])}
        )
        numbers = (*manifest.mark, manifest.sessions_size, manifest.state_size)
        if not all(type(number) is int and 0 <= number < 1 << 63 for number in numbers):
            raise ValueError("a number is out of range")
        if not all(type(crc) is int and 0 <= crc < 1 << 32 for crc in manifest.crcs):
            raise ValueError("a checksum is out of range")
        if type(manifest.is_copy) is not bool:
            raise ValueError(f"is_copy is {manifest.is_copy!r}")
        if type(manifest.chunk_bytes) is not int or not 0 < manifest.chunk_bytes <= CHUNK_BYTES:
            raise ValueError(f"chunks of {manifest.chunk_bytes} bytes")
        if len(manifest.crcs) != -(-manifest.size // manifest.chunk_bytes):
            raise ValueError(f"{len(manifest.crcs)} checksums for {manifest.size} bytes")
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    return manifest


def _crc(fields: dict[str, object]) -> int:
    return crc32(json.dumps(fields, sort_keys=True).encode())


class StoredImage(NamedTuple):
    """A complete image on this node, with its sessions."""

    manifest: ImageManifest
    sessions: bytes

    @property
    def mark(self) -> ImageMark:
        return self.manifest.mark


class ImageFiles:
    """The images of one node. Any thread may call any method."""

    def __init__(self, disk: Disk, directory: Path, *, on_first: Callable[[], None] = lambda: None) -> None:
        """`on_first` is called before the first image that replaces entries of the log."""
        self._disk = disk
        self._directory = directory
        self._on_first = on_first
        self._lock = Lock()
        self._newest: ImageManifest | None = None

    def open(self) -> None:
        """Find the newest complete image, and remove the remains of others. Raises OSError."""
        if self._disk.exists(self._directory):
            self.find()
            self._remove_others(keeps_arriving=True)

    def find(self) -> None:
        """Find the newest complete image. Raises OSError."""
        found: list[ImageManifest] = []
        for name in self._names():
            if name.endswith(_MANIFEST) and _ARRIVING not in name:
                manifest = self._read_manifest(self._directory / name)
                if manifest is not None:
                    found.append(manifest)
        self._newest = max(found, key=lambda manifest: manifest.mark.age, default=None)

    @property
    def newest(self) -> ImageManifest | None:
        """The newest complete image."""
        return self._newest

    def has_later(self, mark: ImageMark) -> bool:
        """Return True if the newest image is later than this mark."""
        return self._newest is not None and self._newest.mark.age > mark.age

    @property
    def newest_bytes(self) -> int:
        newest = self._newest
        return 0 if newest is None else newest.size

    def stored(self) -> StoredImage | None:
        """Return the newest image with its sessions; None if there is none or they cannot be verified."""
        manifest = self._newest
        if manifest is None:
            return None
        try:
            return StoredImage(manifest, b"".join(self.read(manifest, 0, manifest.sessions_size)))
        except (OSError, StorageError, ReadFailed):
            return None

    def state(self, manifest: ImageManifest) -> Iterator[bytes]:
        """Read the state machine's state in verified pieces. Raises the errors of `chunks`."""
        return self.read(manifest, manifest.sessions_size, manifest.size)

    def read(self, manifest: ImageManifest, begin: int, end: int) -> Iterator[bytes]:
        """Read a range of the data in verified pieces. Raises the errors of `chunks`."""
        size = manifest.chunk_bytes
        numbers = range(begin // size, -(-end // size))
        for number, chunk in zip(numbers, self.chunks(manifest, numbers), strict=True):
            start = number * size
            yield chunk[max(0, begin - start) : end - start]

    def chunks(self, manifest: ImageManifest, numbers: Iterable[int]) -> Generator[bytes, None, None]:
        """Read verified chunks, also if another image replaces this one after the first.

        Raises StorageError DATA_DAMAGED, and ReadFailed if the image was replaced.
        """
        path, size = self._path(manifest.mark, _DATA), manifest.chunk_bytes
        with self._reading(path) as handle:
            for number in numbers:
                length = min(size, manifest.size - number * size)
                data = read_around(self._disk, handle, length, number * size)
                if crc32(data) != manifest.crcs[number]:
                    raise StorageError(f"chunk {number} of {path} is damaged", code=Code.DATA_DAMAGED)
                yield data

    @contextmanager
    def _reading(self, path: Path) -> Iterator[int]:
        try:
            handle = self._disk.open(path, write=False)
        except FileNotFoundError:
            raise ReadFailed(f"another image has replaced {path.name}") from None
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error}", code=Code.DATA_DAMAGED) from error
        try:
            yield handle
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error}", code=Code.DATA_DAMAGED) from error
        finally:
            self._disk.close(handle)

    def chunk(self, manifest: ImageManifest, number: int) -> bytes:
        """Read a verified chunk. Raises the errors of `chunks`."""
        return next(self.chunks(manifest, [number]))

    def discard(self, mark: ImageMark) -> None:
        """Remove an image that is damaged, or that belongs to another log."""
        with self._lock:
            if self._newest is not None and self._newest.mark == mark:
                self._newest = None
                self._remove_others()

    def writer(self, mark: ImageMark, sessions: bytes, *, is_copy: bool = False) -> ImageWriter:
        """Start an image. Raises StorageError DISK_FULL or DISK_ERROR, as the writer does."""
        writer = ImageWriter(self, self._disk, self._path(mark, _ARRIVING), mark, is_copy=is_copy)
        try:
            writer.write_sessions(sessions)
        except StorageError:
            writer.abandon()
            raise
        return writer

    def receiver(self, manifest: ImageManifest) -> ImageReceiver:
        """Start or continue to receive an image. Raises the errors of `writer`."""
        path = self._path(manifest.mark, _ARRIVING)
        with _failures(path):
            self._make_directory()
            name = path.name + _MANIFEST
            known = self._read_manifest(path.with_name(name)) if name in self._names() else None
            if known != manifest:
                self._remove_arriving()
                self._disk.close(self._disk.open(path, create=True))  # before the sync of the directory
                replace_file(self._disk, path.with_name(name), manifest.encode())
            return ImageReceiver(self, self._disk, path, manifest)

    def complete(self, path: Path, manifest: ImageManifest) -> None:
        """Make an image with durable data the newest one, unless a newer one has been completed meanwhile,
        which the log may rely on already. Called by the writers."""
        if not manifest.is_copy:
            self._on_first()
        with self._lock:
            if self.has_later(manifest.mark):
                self.abandon(path)
                self.abandon(path.with_name(path.name + _MANIFEST))
                return
            self._disk.rename(path, self._path(manifest.mark, _DATA))
            self._disk.sync_directory(self._directory)
            replace_file(self._disk, self._path(manifest.mark, _MANIFEST), manifest.encode())
            self._newest = manifest
            self._remove_others()

    def begin(self, path: Path) -> int:
        """Create the data file of an image, and return its handle. Called by the writers."""
        with _failures(path):
            self._make_directory()
            self._remove_arriving()
            return self._disk.open(path, create=True)

    def abandon(self, path: Path) -> None:
        """Remove the data file of an image that is not completed. Called by the writers."""
        with suppress(OSError):
            self._disk.unlink(path)

    # -- inside

    def _make_directory(self) -> None:
        if not self._disk.exists(self._directory):
            self._disk.mkdir(self._directory)
            self._disk.sync_directory(self._directory.parent)

    def _names(self) -> list[str]:
        return self._disk.listdir(self._directory)

    def _path(self, mark: ImageMark, suffix: str) -> Path:
        return self._directory / f"{mark.index:020d}-{mark.term}{suffix}"

    def _read_manifest(self, path: Path) -> ImageManifest | None:
        try:
            return decode_manifest(read_file(self._disk, path))
        except ValueError:
            return None

    def _remove_others(self, *, keeps_arriving: bool = False) -> None:
        """Remove all files except those of the newest image; with `keeps_arriving`, also except those of an
        image that is being received. A crash leaves each image completely, or without a manifest."""
        newest = self._newest
        kept = () if newest is None else (self._path(newest.mark, _MANIFEST), self._path(newest.mark, _DATA))
        names = [name for name in self._names() if self._directory / name not in kept]
        names.sort(key=lambda name: not name.endswith(_MANIFEST))  # a manifest goes before its data
        for name in names:
            if not (keeps_arriving and _ARRIVING in name):
                self._disk.unlink(self._directory / name)
        if names:
            self._disk.sync_directory(self._directory)

    def _remove_arriving(self) -> None:
        for name in self._names():
            if _ARRIVING in name:
                self._disk.unlink(self._directory / name)


@contextmanager
def _failures(path: Path) -> Iterator[None]:
    """Convert the OSErrors of an image's file. No error of an image affects the log."""
    try:
        yield
    except OSError as error:
        code = Code.DISK_FULL if error.errno in FULL else Code.DISK_ERROR
        raise StorageError(f"cannot write the image {path}: {error}", code=code) from error


class _Unfinished:
    """The open data file of an image that is not complete."""

    def __init__(self, files: ImageFiles, disk: Disk, path: Path, handle: int) -> None:
        self._files = files
        self._disk = disk
        self._path = path
        self._handle = handle
        self._is_open = True

    def _close(self) -> None:
        """Close the file, but not again after a failure: its number may be that of another file by then."""
        if self._is_open:
            self._is_open = False
            self._disk.close(self._handle)


class ImageWriter(_Unfinished):
    """Writes an image of which only the parts exist so far. Call `write`, then `finish` or `abandon`."""

    def __init__(self, files: ImageFiles, disk: Disk, path: Path, mark: ImageMark, *, is_copy: bool) -> None:
        super().__init__(files, disk, path, files.begin(path))
        self._mark = mark
        self._is_copy = is_copy
        self._sessions_size = 0
        self._chunk = bytearray()
        self._crcs: list[int] = []
        self._at = self._synced = 0

    def write_sessions(self, sessions: bytes) -> None:
        self._sessions_size = len(sessions)
        self.write(sessions)

    def write(self, piece: Buffer) -> None:
        """Add the next piece of the state, of any size. Raises StorageError."""
        self._chunk += piece
        while len(self._chunk) >= CHUNK_BYTES:
            self._write_chunk(bytes(memoryview(self._chunk)[:CHUNK_BYTES]))
            del self._chunk[:CHUNK_BYTES]

    def finish(self) -> ImageManifest:
        """Make the image durable and the newest one. Raises StorageError."""
        if self._chunk:
            self._write_chunk(bytes(self._chunk))
        size = self._at - self._sessions_size
        manifest = ImageManifest(
            self._mark, self._sessions_size, size, tuple(self._crcs), CHUNK_BYTES, is_copy=self._is_copy
        )
        with _failures(self._path):
            self._disk.fdatasync(self._handle)
            self._close()
            self._files.complete(self._path, manifest)
        return manifest

    def abandon(self) -> None:
        with suppress(OSError):
            self._close()
        self._files.abandon(self._path)

    def _write_chunk(self, chunk: bytes) -> None:
        with _failures(self._path):
            self._at += write_all(self._disk, self._handle, [chunk], self._at)
            self._crcs.append(crc32(chunk))
            if self._at - self._synced >= _SYNC_BYTES:
                self._disk.fdatasync(self._handle)
                self._disk.drop_cache(self._handle, self._synced, self._at - self._synced)
                self._synced = self._at


class ImageReceiver(_Unfinished):
    """Receives an image chunk by chunk, and continues after the chunks that an earlier attempt has stored."""

    def __init__(self, files: ImageFiles, disk: Disk, path: Path, manifest: ImageManifest) -> None:
        super().__init__(files, disk, path, disk.open(path, create=True))
        self.manifest = manifest
        try:
            self.next_chunk = self._intact()
        except OSError:
            self._close()
            raise
        self._synced = self.next_chunk

    @property
    def is_complete(self) -> bool:
        return self.next_chunk == len(self.manifest.crcs)

    def write(self, chunk: bytes) -> None:
        """Store the next chunk. Raises StorageError, and DATA_DAMAGED for bytes of another image."""
        number, size = self.next_chunk, self.manifest.chunk_bytes
        expected = min(size, self.manifest.size - number * size)
        if self.is_complete or len(chunk) != expected or crc32(chunk) != self.manifest.crcs[number]:
            raise StorageError(f"chunk {number} does not match its manifest", code=Code.DATA_DAMAGED)
        with _failures(self._path):
            write_all(self._disk, self._handle, [chunk], number * size)
            self.next_chunk += 1
            if (self.next_chunk - self._synced) * size >= _SYNC_BYTES:
                self._disk.fdatasync(self._handle)
                self._disk.drop_cache(self._handle, self._synced * size, (number + 1 - self._synced) * size)
                self._synced = self.next_chunk

    def finish(self) -> None:
        """Make the complete image durable and the newest one. Raises StorageError."""
        assert self.is_complete
        with _failures(self._path):
            self._disk.fdatasync(self._handle)
            self._close()
            self._files.complete(self._path, self.manifest)

    def pause(self) -> None:
        """Keep what has arrived. A later receiver of the same image continues. Does nothing if it was paused
        before, or if `finish` has closed the file."""
        with suppress(OSError):
            if self._is_open:
                self._disk.fdatasync(self._handle)
        with suppress(OSError):
            self._close()

    def _intact(self) -> int:
        """Return the number of chunks at the start of the file that match their checksums."""
        size, end = self.manifest.chunk_bytes, self._disk.size(self._handle)
        for number, crc in enumerate(self.manifest.crcs):
            length = min(size, self.manifest.size - number * size)
            if number * size + length > end:
                return number
            if crc32(read_around(self._disk, self._handle, length, number * size)) != crc:
                return number
        return len(self.manifest.crcs)
