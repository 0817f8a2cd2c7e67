"""Bits of a message's sys_flag (RocketMQ's MessageSysFlag).

These are plain numbers for speed, because they are tested for each message.
"""

from __future__ import annotations

#: The producer has compressed the body; the broker does not decompress it.
COMPRESSED = 0x1
MULTI_TAGS = 0x2

#: The two bits for the transaction state of a message.
TRANSACTION_MASK = 0xC
TRANSACTION_NONE = 0x0
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC

#: The host has an address of 16 bytes.
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
HOST_BITS = BORN_HOST_V6 | STORE_HOST_V6

#: The number of the body's CompressionType; 0 also means zlib.
COMPRESSION_MASK = 0x700
