"""The file `checkpoint`, with timestamps of durable data. Source: StoreCheckpoint of RocketMQ 5.5.

    0   8   physicMsgTimestamp: store timestamp of the newest message that is durable in the CommitLog, ms
    8   8   logicsMsgTimestamp: ... in the ConsumeQueues
    16  8   indexMsgTimestamp: ... in the IndexFiles
    24  8   masterFlushedOffset
    32  8   confirmPhyOffset
    64  8   flushed offset: the CommitLog is durable up to here       } this project's: RocketMQ keeps
    72  4   CRC32 of the 8 bytes before; without it there is no bound } these bytes as they are

The file has 4 KiB and is big endian. It is replaced atomically, because a torn timestamp could be later than
any message and hide damage.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from dledger.infra.files.disk import Disk, read_file, replace_file

SIZE = 4096
# RocketMQ's tolerance: messages of the last seconds before a checkpoint may be missing.
SLACK_MS = 3_000
_STAMPS = struct.Struct(">qqqqq")
_FLUSHED = struct.Struct(">q")
_CRC = struct.Struct(">I")
_FLUSHED_AT, _CRC_AT = 64, 72


@dataclass(slots=True)
class StoreCheckpoint:
    """Contents of a checkpoint.

    Timestamps are in ms since 1970; 0: unknown. `flushed_offset`: None if it was not recorded.
    """

    physic_ms: int = 0
    logics_ms: int = 0
    index_ms: int = 0
    master_flushed_offset: int = 0
    confirm_offset: int = 0
    flushed_offset: int | None = None

    @property
    def recovery_ms(self) -> int:
        """The timestamp that recovery uses.

        A file whose first message is not newer is complete up to that message.
        """
        return max(0, min(self.physic_ms, self.logics_ms) - SLACK_MS)

    def encode(self) -> bytes:
        content = bytearray(SIZE)
        _STAMPS.pack_into(
            content,
            0,
            self.physic_ms,
            self.logics_ms,
            self.index_ms,
            self.master_flushed_offset,
            self.confirm_offset,
        )
        if self.flushed_offset is not None:
            _FLUSHED.pack_into(content, _FLUSHED_AT, self.flushed_offset)
            _CRC.pack_into(content, _CRC_AT, crc32(content[_FLUSHED_AT:_CRC_AT]))
        return bytes(content)


def decode_checkpoint(content: bytes) -> StoreCheckpoint:
    """Decode a checkpoint. Accepts any bytes.

    Missing or negative values are treated as unknown; recovery then scans all files.
    """
    if len(content) < _STAMPS.size:
        return StoreCheckpoint()
    found = StoreCheckpoint(*(max(0, value) for value in _STAMPS.unpack_from(content)))
    if len(content) >= _CRC_AT + _CRC.size:
        (crc,) = _CRC.unpack_from(content, _CRC_AT)
        (flushed,) = _FLUSHED.unpack_from(content, _FLUSHED_AT)
        # The CRC of eight zeros is not zero, so a checkpoint of RocketMQ has no valid field.
        if crc == crc32(content[_FLUSHED_AT:_CRC_AT]) and flushed >= 0:
            found.flushed_offset = flushed
    return found


def load_checkpoint(disk: Disk, path: Path) -> StoreCheckpoint:
    try:
        return decode_checkpoint(read_file(disk, path))
    except FileNotFoundError:
        return StoreCheckpoint()


def save_checkpoint(disk: Disk, path: Path, checkpoint: StoreCheckpoint) -> None:
    """Replace the checkpoint durably. Raises OSError."""
    replace_file(disk, path, checkpoint.encode())
