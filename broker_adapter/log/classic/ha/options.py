"""Replication settings of master and slave. The defaults are RocketMQ's, and comments give its names."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from broker_adapter.log.classic.commit_log import MAX_BODY_BYTES


class Handshake(Enum):
    """Use of the handshake by a slave. RocketMQ brokers do not support it."""

    OFF = "off"
    PREFERRED = "preferred"  # falls back to plain reports if the master does not respond in time
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class HaOptions:
    """Settings of a master, in bytes, seconds and counts."""

    # Maximum frame size: haTransferBatchSize, which is 32 KiB in RocketMQ. A batch of messages fits into one.
    transfer_batch_bytes: int = 256 << 10
    heartbeat_s: float = 5.0  # since the last transfer: haSendHeartbeatInterval
    housekeeping_s: float = 20.0  # since the last report: haHousekeepingInterval
    max_gap_bytes: int = 256 << 20  # haMaxGapNotInSync
    require_handshake: bool = False
    connections: int = 64
    per_address: int = 16
    unsent_bytes: int = 256 << 10  # buffered for a slave; above it, the master stops reading the log for it
    read_ahead_bytes: int = 1 << 20  # size of a read for slaves with a large lag

    def __post_init__(self) -> None:
        if not 1 <= self.transfer_batch_bytes <= 4 << 20 > self.transfer_batch_bytes + 12:
            # RocketMQ's slave has a buffer of 4 MiB and waits forever for a larger frame.
            raise ValueError(f"transfer_batch_bytes is {self.transfer_batch_bytes}; expected 1 to 4194291")
        if not 0 < self.heartbeat_s < self.housekeeping_s:
            raise ValueError(
                f"invalid intervals: heartbeat_s {self.heartbeat_s}, housekeeping_s {self.housekeeping_s}"
            )
        if min(self.connections, self.per_address, self.unsent_bytes, self.read_ahead_bytes) < 1:
            raise ValueError("connections, per_address, unsent_bytes and read_ahead_bytes must be positive")


@dataclass(frozen=True, slots=True)
class HaClientOptions:
    """Settings of a slave, in bytes and seconds.

    `whole_log`: an empty slave copies the master's whole log. Otherwise it copies only the last file, as
    RocketMQ's slave does. With the handshake, the slave copies all data that the master still has. Without
    it, the slave can copy the whole log only if the master still has its first file; otherwise it copies only
    the last file.
    """

    handshake: Handshake = Handshake.OFF
    whole_log: bool = False
    report_durable: bool = False  # report durable data only; RocketMQ's slave reports written data
    heartbeat_s: float = 5.0  # between reports: haSendHeartbeatInterval
    housekeeping_s: float = 20.0  # since the last transfer: haHousekeepingInterval
    connect_s: float = 10.0
    probe_s: float = 3.0  # Handshake.PREFERRED: timeout for the master's response
    retry_first_s: float = 0.2
    retry_most_s: float = 5.0
    max_body_bytes: int = MAX_BODY_BYTES
