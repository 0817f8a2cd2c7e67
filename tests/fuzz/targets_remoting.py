"""Frames of the remoting protocol."""

from __future__ import annotations

import struct
from random import Random

from broker_adapter.errors import FrameRefused
from broker_adapter.remoting.codes import Language
from broker_adapter.remoting.command import HeaderForm, RemotingCommand, decode, encode
from broker_adapter.remoting.frames import FrameReader
from tests.fuzz.target import Target


def _frame(rng: Random) -> bytes:
    return encode(
        RemotingCommand(
            rng.choice((10, 34, 105, 310)),
            {f"k{i}": rng.choice(("", "1", "true", "Ä\x01\x02")) for i in range(rng.randrange(4))},
            rng.randbytes(rng.randrange(40)),
            opaque=rng.randrange(1 << 31),
            flag=rng.randrange(4),
            remark=rng.choice((None, "no")),
            language=rng.choice(list(Language)),
            form=rng.choice(list(HeaderForm)),
        )
    )


def with_lengths(data: bytes) -> bytes:
    """The frame's own, and its header's if that is longer than the frame."""
    if len(data) < 8:
        return data
    mark = int.from_bytes(data[4:8])
    length = min(mark & 0xFFFFFF, len(data) - 8)
    return struct.pack(">iI", len(data) - 4, (mark & 0xFF000000) | length) + data[8:]


def _read(data: bytes) -> None:
    """Twice: what is behind a frame is one, too."""
    reader = FrameReader()
    reader.feed(data + data)
    for _ in range(2):
        command = reader.next()
        if command is None:
            raise FrameRefused("it is not complete")
        encode(command)


TARGETS = (
    Target("remoting-frame", _frame, _read, (decode, FrameReader.next), (FrameRefused,), with_lengths),
)
