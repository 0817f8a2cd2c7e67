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
    """ASYNC_FLUSH only: time between two flushes (`flushIntervalCommitLog`)."""
    file_size: Annotated[int, Field(ge=1 << 16, le=(1 << 31) - 1)] = 1 << 30
    """Bytes of a file of the CommitLog, fixed by the first one (`mappedFileSizeCommitLog`)."""
    disk_reserve_bytes: Annotated[int, Field(ge=0)] = 64 << 20
    """Space that new files leave free. Past it: 703."""
    file_reserved_hours: Positive = 72
    """Messages older than this may go (`fileReservedTime`)."""
    delete_when: Annotated[str, Field(pattern=r"^\d{1,2}(;\d{1,2})*$")] = "04"
    """Hours of the day at which they go (`deleteWhen`)."""
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
    sync_period_ms: Positive = 3_000
    """How often a slave copies topics, groups and offsets from its master (SlaveSynchronize)."""
