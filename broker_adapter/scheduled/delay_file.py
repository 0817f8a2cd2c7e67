"""An index of delayed messages: a SQLite file in the directory of derived files.

Writing the first row creates the file. Rows are written to SQLite's write-ahead log, in order and without a
sync. The file is synced before a checkpoint refers to the index. There are three connections, for writing,
reading and syncing, so that readers do not wait for a sync.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Lock

from broker_adapter.delivery_state.delay_index import DelayedRow, DuePosition, RowEnd, RowPut

FILE_NAME = "delayed_messages.sqlite"
# Suffixes of the files that SQLite creates.
SUFFIXES = ("", "-wal", "-shm")

_FORMAT = 1
# Changes per write transaction: about 0.1 s on the applying thread.
_BATCH = 4_000
# Size at which the write-ahead log is restarted, which blocks writers. SQLite itself restarts it only if a
# checkpoint completes while there are no readers or writers.
_LOG_BYTES = 32 << 20
# Maximum wait for readers before a restart (ms). After this time, the next checkpoint tries again.
_READERS_MS = 100
_SCHEMA = f"""
BEGIN;
CREATE TABLE delayed (
    version INTEGER PRIMARY KEY,
    number INTEGER NOT NULL,
    due_ms INTEGER NOT NULL,
    pos INTEGER NOT NULL,
    size INTEGER NOT NULL,
    element INTEGER NOT NULL,
    topic TEXT NOT NULL,
    client BLOB NOT NULL,
    put INTEGER NOT NULL,
    ended INTEGER
);
CREATE INDEX by_due ON delayed (due_ms) WHERE ended IS NULL;
CREATE INDEX by_number ON delayed (number) WHERE ended IS NULL AND number <> version;
CREATE INDEX by_end ON delayed (ended) WHERE ended IS NOT NULL;
PRAGMA user_version = {_FORMAT};
COMMIT;
"""
_ROW = "number, version, due_ms, pos, size, element, topic, client"
_PUT = "INSERT OR REPLACE INTO delayed VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)"
_END = "UPDATE delayed SET ended = ? WHERE version = ?"
_FIND = f"SELECT {_ROW} FROM delayed WHERE version = ? AND number = version AND ended IS NULL"
_FIND_MOVED = f"SELECT {_ROW} FROM delayed WHERE number = ? AND number <> version AND ended IS NULL"
_DUE = (
    f"SELECT {_ROW} FROM delayed WHERE ended IS NULL AND due_ms >= ? AND due_ms <= ?"
    " AND (due_ms > ? OR version > ?) ORDER BY due_ms, version LIMIT ?"
)
_IN_ORDER = f"SELECT {_ROW} FROM delayed WHERE ended IS NULL AND version > ? ORDER BY version LIMIT ?"
_OF_TOPIC = (
    f"SELECT {_ROW} FROM delayed WHERE ended IS NULL AND version > ? AND topic = ? ORDER BY version LIMIT ?"
)
_COLLECT = "DELETE FROM delayed WHERE version IN (SELECT version FROM delayed WHERE ended <= ? LIMIT ?)"


class DelayFile:
    """Implements DelayIndex."""

    def __init__(self, path: Path, *, synchronous: str = "NORMAL", batch: int = _BATCH) -> None:
        """Open an index. `synchronous` is SQLite's pragma; "OFF" for tests without machine crashes."""
        self.batch = batch
        self._path = path
        self._synchronous = synchronous
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._syncing, self._writing = Lock(), Lock()
        self._is_written = False  # since the last sync

    # -- changes -----------------------------------------------------------------------------------------

    def write(self, puts: Sequence[RowPut], ends: Sequence[RowEnd]) -> None:
        self._is_written = True
        with _failures():
            connection = self._open()
            with self._writing, connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany(_PUT, map(_stored, puts))
                connection.executemany(_END, [(at, version) for version, at in ends])

    def cut(self, at: int) -> None:
        if not self._path.exists():
            return
        self._is_written = True
        with _failures():
            connection = self._open()
            with self._writing, connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("DELETE FROM delayed WHERE put > ?", (at,))
                connection.execute("UPDATE delayed SET ended = NULL WHERE ended > ?", (at,))
                connection.execute("DELETE FROM delayed WHERE ended <= ?", (at,))

    def collect(self, at: int, limit: int) -> None:
        if self._writer is not None:
            with _failures(), self._writing, self._writer as connection:
                connection.execute(_COLLECT, (at, limit))

    def sync(self) -> None:
        with self._syncing, _failures():
            if self._writer is None or not self._is_written:
                return
            self._is_written = False
            with closing(self._connect()) as connection:
                # This syncs the write-ahead log, copies its pages that no reader uses into the file, and
                # syncs the file.
                (is_busy, *_) = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                if is_busy:
                    raise OSError(errno.EBUSY, f"{self._path} is in use by another process")
                if self._is_log_long():
                    connection.execute(f"PRAGMA busy_timeout = {_READERS_MS}")
                    with self._writing:
                        _begin_log_anew(connection)

    def wipe(self) -> None:
        with self._syncing:
            self._close()
            found = [path for suffix in SUFFIXES if os.path.lexists(path := Path(f"{self._path}{suffix}"))]
            for path in reversed(found):  # delete the main file last: without it the others are useless
                path.unlink()
            if found:
                handle = os.open(self._path.parent, os.O_RDONLY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)

    def close(self) -> None:
        with self._syncing:
            self._close()

    # -- reading -----------------------------------------------------------------------------------------

    def find(self, number: int) -> DelayedRow | None:
        found = self._rows(_FIND, (number,)) or self._rows(_FIND_MOVED, (number,))
        return found[0] if found else None

    def due(self, after: DuePosition, last_due_ms: int, limit: int) -> list[DelayedRow]:
        due_ms, version = after
        return self._rows(_DUE, (due_ms, last_due_ms, due_ms, version, limit))

    def in_order(self, after: int, limit: int, topic: str | None = None) -> list[DelayedRow]:
        if topic is None:
            return self._rows(_IN_ORDER, (after, limit))
        return self._rows(_OF_TOPIC, (after, topic, limit))

    # -- internal ----------------------------------------------------------------------------------------

    def _rows(self, query: str, arguments: tuple[object, ...]) -> list[DelayedRow]:
        if self._reader is None:
            return []
        with _failures():
            return [DelayedRow(*row) for row in self._reader.execute(query, arguments)]

    def _open(self) -> sqlite3.Connection:
        if self._writer is None:
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            writer = self._connect()
            try:
                (version,) = writer.execute("PRAGMA user_version").fetchone()
                if version == 0:
                    writer.executescript(_SCHEMA)
                elif version != _FORMAT:
                    raise OSError(
                        errno.EINVAL, f"{self._path} has format version {version}, expected {_FORMAT}"
                    )
                if self._is_log_long():
                    # Otherwise the write-ahead log would grow if every process ended before its first
                    # checkpoint.
                    _begin_log_anew(writer)
                self._reader = self._connect()
            except BaseException:
                writer.close()
                raise
            self._writer = writer
        return self._writer

    def _is_log_long(self) -> bool:
        log = Path(f"{self._path}-wal")
        return log.exists() and log.stat().st_size >= _LOG_BYTES

    def _connect(self) -> sqlite3.Connection:
        """Open a connection for use on any thread. The caller must serialize access."""
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            connection.execute("PRAGMA wal_autocheckpoint = 0")
        except BaseException:
            connection.close()
            raise
        return connection

    def _close(self) -> None:
        for connection in (self._reader, self._writer):
            if connection is not None:
                connection.close()
        self._reader = self._writer = None


def _stored(put: RowPut) -> tuple[object, ...]:
    number, version, *rest = put.row
    return version, number, *rest, put.at


def _begin_log_anew(connection: sqlite3.Connection) -> None:
    """Restart the write-ahead log if no reader is using it."""
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()


@contextmanager
def _failures() -> Iterator[None]:
    """Convert SQLite errors to OSError, so that callers treat them as disk errors and not as damaged log
    entries.
    """
    try:
        yield
    except sqlite3.Error as error:
        is_full = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
        raise OSError(
            errno.ENOSPC if is_full else errno.EIO, f"cannot write the index of delayed messages: {error}"
        ) from error
