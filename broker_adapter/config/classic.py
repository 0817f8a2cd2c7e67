"""`[program.settings.classic]`: settings of a broker on a CommitLog in RocketMQ's format."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from broker_adapter.config.rocketmq_v2 import Positive

_Address = Annotated[str, Field(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]*):\d{1,5}$")]


class ClassicSettings(BaseModel):
    """Settings of the classic log. RocketMQ's names are in parentheses."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    broker_role: Literal["SYNC_MASTER", "ASYNC_MASTER", "SLAVE"] = "ASYNC_MASTER"
    """Role at the first start (`brokerRole`). Afterwards `dledger broker role` sets the role."""
    waits_for_slaves: bool = False
    """Make a slave that becomes master a SYNC_MASTER, whose sends wait for a slave."""
    flush: Literal["SYNC_FLUSH", "ASYNC_FLUSH"] = "SYNC_FLUSH"
    """SYNC_FLUSH acknowledges a send once it is durable on this node (`flushDiskType`)."""
    flush_interval_ms: Positive = 500
    """ASYNC_FLUSH only: interval of flush checks (`flushIntervalCommitLog`)."""
    flush_least_pages: Annotated[int, Field(ge=0)] = 4
    """ASYNC_FLUSH only: minimum number of 4 KiB pages per flush (`flushCommitLogLeastPages`)."""
    flush_thorough_interval_ms: Positive = 10_000
    """ASYNC_FLUSH only: maximum time between flushes, regardless of the number of pages
    (`flushCommitLogThoroughInterval`).
    """
    page_cache_busy_ms: Positive = 1_000
    """SYNC_FLUSH only: while an append has waited for the disk longer than this, further appends are refused:
    707 (`osPageCacheBusyTimeOutMills`).
    """
    file_size: Annotated[int, Field(ge=1 << 16, le=(1 << 31) - 1)] = 1 << 30
    """Size of a CommitLog file in bytes, fixed by the first file (`mappedFileSizeCommitLog`)."""
    disk_reserve_bytes: Annotated[int, Field(ge=0)] = 64 << 20
    """Free disk space that new files leave, in bytes. Beyond it: 703."""
    file_reserved_hours: Positive = 72
    """Messages older than this may be purged (`fileReservedTime`)."""
    delete_when: Annotated[str, Field(pattern=r"^([01]?[0-9]|2[0-3])(;([01]?[0-9]|2[0-3]))*$")] = "04"
    """Hours of the day at which old messages are purged (`deleteWhen`)."""
    disk_clean_percent: Annotated[int, Field(ge=10, le=95)] = 75
    """Disk usage in percent above which old files are purged at any hour (`diskMaxUsedSpaceRatio`)."""
    disk_forced_percent: Annotated[int, Field(ge=30, le=85)] = 85
    """Disk usage in percent above which the oldest files are purged regardless of their age
    (`diskSpaceCleanForciblyRatio`).
    """
    disk_full_percent: Annotated[int, Field(ge=35, le=90)] = 90
    """Disk usage in percent above which sends are refused: 703 (`diskSpaceWarningLevelRatio`)."""
    clean_forcibly: bool = True
    """Permit purging of files that are not old (`cleanFileForciblyEnable`)."""
    cut_damage: bool = False
    """Truncate a damaged log at the damage, which discards the durable messages after it. Use this for one
    start, if there is neither a slave nor a backup.
    """
    ha_listen: _Address = "localhost:10912"
    """host:port at which a master serves slaves (`haListenPort`)."""
    ha_advertise: _Address | Literal[""] = ""
    """host:port registered with NameServers. Default: the bound address."""
    ha_master: _Address | Literal[""] = ""
    """host:port of the master's HA port (`haMasterAddress`). Default: according to the NameServers."""
    ha_handshake: Literal["off", "preferred", "required"] = "preferred"
    """Handshake with which slave and master of this project identify each other. `off`: no handshake, as in
    RocketMQ; connects faster to a RocketMQ broker. `required`: serve and follow only brokers that complete
    the handshake.
    """
    ha_whole_log: bool = True
    """Send an empty slave the master's whole log; RocketMQ's master starts with its last file."""
    broker_id: Annotated[int, Field(ge=1, le=1024)] = 1
    """Broker id of this broker as a slave (`brokerId`)."""
    slave_read_enable: bool = True
    """Direct consumers that are far behind to a slave (`slaveReadEnable`)."""
    which_broker_when_consume_slowly: Annotated[int, Field(ge=1, le=1024)] = 1
    """Broker id of that slave (`whichBrokerWhenConsumeSlowly`)."""
    access_message_in_memory_max_ratio: Annotated[int, Field(ge=1, le=100)] = 40
    """Lag above which consumers are directed to a slave, as a percentage of the machine's memory
    (`accessMessageInMemoryMaxRatio`).
    """
    sync_period_ms: Positive = 3_000
    """Interval at which a slave copies topics, groups and offsets from its master (SlaveSynchronize)."""
