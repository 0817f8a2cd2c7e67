"""`[program.settings.classic]`: a broker on a CommitLog of RocketMQ's own form, with `store = "classic"`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from broker_adapter.config.rocketmq_v2 import Positive

_Address = Annotated[str, Field(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]*):\d{1,5}$")]


class ClassicSettings(BaseModel):
    """Names in brackets are RocketMQ's."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    broker_role: Literal["SYNC_MASTER", "ASYNC_MASTER", "SLAVE"] = "ASYNC_MASTER"
    """The role at the first start; later it is what `dledger broker role` decided (`brokerRole`)."""
    waits_for_slaves: bool = False
    """A slave that becomes master is a SYNC_MASTER: sends wait for a slave."""
    flush: Literal["SYNC_FLUSH", "ASYNC_FLUSH"] = "SYNC_FLUSH"
    """Whether a send is answered when it is durable here (`flushDiskType`)."""
    flush_interval_ms: Positive = 500
    """ASYNC_FLUSH only: time between two looks whether to flush (`flushIntervalCommitLog`)."""
    flush_least_pages: Annotated[int, Field(ge=0)] = 4
    """ASYNC_FLUSH only: fewer pages of 4 KiB wait (`flushCommitLogLeastPages`)."""
    flush_thorough_interval_ms: Positive = 10_000
    """ASYNC_FLUSH only: ... but not longer than this (`flushCommitLogThoroughInterval`)."""
    page_cache_busy_ms: Positive = 1_000
    """SYNC_FLUSH only: while an append has waited longer than this for the disk, others are refused: 707
    (`osPageCacheBusyTimeOutMills`)."""
    file_size: Annotated[int, Field(ge=1 << 16, le=(1 << 31) - 1)] = 1 << 30
    """Bytes of a file of the CommitLog, fixed by the first one (`mappedFileSizeCommitLog`)."""
    disk_reserve_bytes: Annotated[int, Field(ge=0)] = 64 << 20
    """Space that new files leave free. Past it: 703."""
    file_reserved_hours: Positive = 72
    """Messages older than this may go (`fileReservedTime`)."""
    delete_when: Annotated[str, Field(pattern=r"^([01]?[0-9]|2[0-3])(;([01]?[0-9]|2[0-3]))*$")] = "04"
    """Hours of the day at which they go (`deleteWhen`)."""
    disk_clean_percent: Annotated[int, Field(ge=10, le=95)] = 75
    """Old files go at any hour when more of the disk is used (`diskMaxUsedSpaceRatio`)."""
    disk_forced_percent: Annotated[int, Field(ge=30, le=85)] = 85
    """The oldest files go, however young, when more of the disk is used (`diskSpaceCleanForciblyRatio`)."""
    disk_full_percent: Annotated[int, Field(ge=35, le=90)] = 90
    """Producers are refused (703) when more of the disk is used (`diskSpaceWarningLevelRatio`)."""
    clean_forcibly: bool = True
    """Whether files go that are not old (`cleanFileForciblyEnable`)."""
    cut_damage: bool = False
    """Open a log that is damaged: cut it there, with all behind it, although that was durable once. For one
    start, when there is no slave and no backup to take it from."""
    ha_listen: _Address = "localhost:10912"
    """host:port at which a master serves slaves (`haListenPort`)."""
    ha_advertise: _Address | Literal[""] = ""
    """host:port that NameServers are told. Default: the address that is bound."""
    ha_master: _Address | Literal[""] = ""
    """host:port of the master's HA port (`haMasterAddress`). Default: what NameServers say."""
    ha_handshake: Literal["off", "preferred", "required"] = "preferred"
    """By which slave and master of this project know each other. `off`: as RocketMQ does, which is quicker
    where the other one is RocketMQ's; `required`: nobody else is served, or followed."""
    ha_whole_log: bool = True
    """A slave that has nothing gets all that its master has; RocketMQ's begins at its last file."""
    broker_id: Annotated[int, Field(ge=1, le=1024)] = 1
    """The id of this broker as a slave (`brokerId`)."""
    slave_read_enable: bool = True
    """Consumers that are far behind are sent to a slave (`slaveReadEnable`)."""
    which_broker_when_consume_slowly: Annotated[int, Field(ge=1, le=1024)] = 1
    """The id of the slave that they are sent to (`whichBrokerWhenConsumeSlowly`)."""
    access_message_in_memory_max_ratio: Annotated[int, Field(ge=1, le=100)] = 40
    """Percent of the machine's memory: who is further behind reads from a slave
    (`accessMessageInMemoryMaxRatio`)."""
    sync_period_ms: Positive = 3_000
    """How often a slave copies topics, groups and offsets from its master (SlaveSynchronize)."""
