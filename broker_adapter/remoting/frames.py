"""Cut a stream of bytes into frames."""

from __future__ import annotations

import struct

from broker_adapter.errors import FrameRefused
from broker_adapter.remoting.command import MAX_FRAME, RemotingCommand, decode, split_mark

_INT = struct.Struct(">i")
_MARK_END = 2 * _INT.size
_COMPACT_BYTES = 64 << 10


class FrameReader:
    """`feed` what came, then ask for `next` until there is none. After FrameRefused nothing can be read any
    more: where the next frame begins is not known."""

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        """`max_frame`: bytes after the length."""
        self._max_frame = max_frame
        self._buffer = bytearray()
        self._at = 0  # what is in front of it was taken

    @property
    def buffered(self) -> int:
        """Bytes that wait to be taken."""
        return len(self._buffer) - self._at

    @property
    def missing(self) -> int:
        """Bytes that are to come of a frame whose length is known."""
        return max(0, (self._size() or 0) - self.buffered)

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> RemotingCommand | None:
        """None: no frame is complete. FrameRefused (FRAME_INVALID); lengths are judged before the rest has
        come, so that nobody waits for what will not be taken."""
        size = self._size()
        if size is None or self.buffered < size:
            return None
        begin, self._at = self._at, self._at + size
        frame = bytes(memoryview(self._buffer)[begin + _INT.size : self._at])
        if self._at == len(self._buffer) or self._at >= _COMPACT_BYTES:
            del self._buffer[: self._at]
            self._at = 0
        return decode(frame)

    def _size(self) -> int | None:
        """Of the whole frame that is next. None: not known yet."""
        left = self.buffered
        if left < _INT.size:
            return None
        length: int = _INT.unpack_from(self._buffer, self._at)[0]
        if not _INT.size <= length <= self._max_frame:
            raise FrameRefused(f"a frame of {length} bytes; {_INT.size} to {self._max_frame} may be")
        if left >= _MARK_END:
            _, header = split_mark(_INT.unpack_from(self._buffer, self._at + _INT.size)[0])
            if header > length - _INT.size:
                raise FrameRefused(f"a header of {header} bytes in a frame of {length}")
        return _INT.size + length
