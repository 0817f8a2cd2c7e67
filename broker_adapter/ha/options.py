"""Settings of master and slave. The defaults, and the names in the texts, are RocketMQ's."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from broker_adapter.classic.commit_log import MAX_BODY_BYTES


class Handshake(Enum):
    """Whether a slave asks its master for the handshake, which brokers of RocketMQ's own do not know."""

    OFF = "off"
    PREFERRED = "preferred"  # a master that does not answer it in time gets reports
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class HaOptions:
    """Of a master. Bytes, seconds, counts."""

    transfer_batch_bytes: int = 32 << 10  # of a frame: haTransferBatchSize
    heartbeat_s: float = 5.0  # nothing was sent for so long: haSendHeartbeatInterval
    housekeeping_s: float = 20.0  # nothing came for so long: haHousekeepingInterval
    max_gap_bytes: int = 256 << 20  # haMaxGapNotInSync
    require_handshake: bool = False
    connections: int = 64
    per_address: int = 16
    unsent_bytes: int = 256 << 10  # that a slave does not read: no more of the log is read for it
    read_ahead_bytes: int = 1 << 20  # of the log at once, for slaves that are behind

    def __post_init__(self) -> None:
        if not 1 <= self.transfer_batch_bytes <= 4 << 20 > self.transfer_batch_bytes + 12:
            # RocketMQ's slave has a buffer of 4 MiB, and waits for ever for a frame that does not fit.
            raise ValueError(f"transfer_batch_bytes is {self.transfer_batch_bytes}: 1 to 4194291 may be")
        if not 0 < self.heartbeat_s < self.housekeeping_s:
            raise ValueError(f"heartbeat_s is {self.heartbeat_s}, housekeeping_s {self.housekeeping_s}")
        if min(self.connections, self.per_address, self.unsent_bytes, self.read_ahead_bytes) < 1:
            raise ValueError("connections, per_address, unsent_bytes and read_ahead_bytes are positive")


@dataclass(frozen=True, slots=True)
class HaClientOptions:
    """Of a slave. Bytes, seconds.

    `whole_log`: a slave that has nothing gets all that the master has; RocketMQ's gets its last file only. By
    handshake that is what the master still has; without, all if the master has its first file, else the last
    one."""

    handshake: Handshake = Handshake.OFF
    whole_log: bool = False
    report_durable: bool = False  # only what is on the disk; RocketMQ's reports what it has written
    heartbeat_s: float = 5.0  # between reports: haSendHeartbeatInterval
    housekeeping_s: float = 20.0  # nothing came for so long: haHousekeepingInterval
    connect_s: float = 10.0
    probe_s: float = 3.0  # Handshake.PREFERRED: for the master to answer it
    retry_first_s: float = 0.2
    retry_most_s: float = 5.0
    max_body_bytes: int = MAX_BODY_BYTES
