"""The failed state of a store. Memory and disk may differ, so no further write is allowed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dledger.errors import Code, StorageError
from dledger.infra.files.disk import Disk
from dledger.infra.files.platform import FULL
from dledger.store.files import SyncError
from dledger.store.format.layout import NodePaths
from dledger.store.opening import leave_marker
from dledger.store.space import full_error


class StoreFailure:
    """Records why a store has failed, until its node is restarted."""

    def __init__(self, disk: Disk, paths: NodePaths) -> None:
        self.reason: str | None = None
        self._disk = disk
        self._paths = paths

    def require_none(self) -> None:
        """Raise StorageError if the store has failed."""
        if self.reason is not None:
            raise StorageError(f"the store has failed and must be reopened: {self.reason}")

    def set(self, reason: str) -> StorageError:
        """Mark the store as failed and return the error to raise."""
        self.reason = reason
        return StorageError(reason)

    def after(self, what: str, error: StorageError | OSError) -> StorageError:
        """Mark the store as failed by an operation and return the error to raise."""
        self.reason = f"{what}: {error}"
        if isinstance(error, StorageError):
            return error
        if isinstance(error, SyncError):
            self.leave_marker()
            return StorageError(f"{what}: fdatasync failed: {error}", code=Code.FSYNC_FAILED)
        code = Code.DISK_FULL if error.errno in FULL else Code.DISK_ERROR
        return StorageError(f"{what}: {error}", code=code)

    def leave_marker(self) -> None:
        """Create a marker that makes the next start distrust the page cache."""
        leave_marker(self._disk, self._paths)

    @contextmanager
    def of_writing(self, what: str) -> Iterator[None]:
        """Mark the store as failed on an error in the block."""
        self.require_none()
        try:
            yield
        except (StorageError, OSError) as error:
            raise self.after(what, error) from error

    @contextmanager
    def none_if_full(self, what: str) -> Iterator[None]:
        """Like `of_writing`, for operations that run out of space before they change anything. The store then
        remains usable."""
        try:
            yield
        except StorageError as error:
            cause = error.__cause__
            if not isinstance(cause, OSError) or isinstance(cause, SyncError) or cause.errno not in FULL:
                raise
            self.reason = None
            raise full_error(what, cause) from cause
