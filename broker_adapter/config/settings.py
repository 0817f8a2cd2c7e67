"""`[program.settings]` of a node with a broker on it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from broker_adapter.config.rocketmq_v2 import ClientServiceSettings
from broker_adapter.errors import IllegalMessage
from broker_adapter.format.message import MAX_BODY_BYTES
from broker_adapter.format.topic_names import check_topic_name
from dledger import Code, ConfigError

Positive = Annotated[int, Field(gt=0)]
_Text = Annotated[str, Field(min_length=1, max_length=255)]


class DeliverySettings(BaseModel):
    """`[program.settings.delivery]`: of consuming by receipt handles, delays and transactions."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    #: What is received without a time of its own; renewed while its client is heard of.
    invisible_ms: Positive = 60_000
    #: ... but not longer than this in all: what a client never got, though it lives, comes back one day.
    max_renewed_ms: Positive = 10_800_000
    #: A client that was not heard of for so long is gone.
    heard_ms: Positive = 30_000
    #: What a client held that went becomes visible after this.
    release_ms: Positive = 1_000
    max_pending_per_queue: Positive = 20_000
    max_pending: Positive = 200_000
    #: What is visible again for so long without anybody wanting it counts as never given.
    abandoned_ms: Positive = 86_400_000
    #: How often the master looks for what is pending for nothing.
    upkeep_ms: Positive = 10_000
    max_delay_ms: Positive = 86_400_000
    #: Delayed and half messages are kept in memory and in the state image: all of them, at most.
    max_held_bytes: Positive = 64 << 20
    check_first_ms: Positive = 6_000
    check_again_ms: Positive = 30_000
    max_checks: Positive = 15
    max_waiting_bytes: Positive = 64 << 20
    #: Of messages on their way from the log to consumers; a receive waits for room.
    max_given_bytes: Positive = 64 << 20


class BrokerSettings(BaseModel):
    """Sizes in bytes, times in ms. `name` is one for all nodes of the log: it is one broker, wherever it is
    master."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: _Text = "broker-a"
    cluster: _Text = "DefaultCluster"
    #: Where ConsumeQueues and indexes are; beside the log's directory if not given.
    directory: Path | None = None
    namesrv: tuple[_Text, ...] = ()
    auto_create_topics: bool = True
    auto_create_groups: bool = True
    #: Beyond so many topics, or groups, none comes into being by itself: the rest is for admins.
    auto_create_up_to: Positive = 8_000
    #: Topics that one address may have come into being, at one master.
    auto_create_per_client: Positive = 1_000
    #: A topic that came into being by itself goes when it is empty and was not used for so long. 0: never.
    auto_create_expire_ms: Annotated[int, Field(ge=0)] = 604_800_000
    default_queues: Annotated[int, Field(ge=1, le=1024)] = 4
    max_body_bytes: Annotated[int, Field(ge=1, le=MAX_BODY_BYTES)] = MAX_BODY_BYTES
    max_held_pulls: Positive = 10_000
    max_wait_ms: Positive = 60_000
    send_timeout_ms: Positive = 5000
    #: A master that cannot become writable for so long says so, and looks for a fitter one.
    role_change_report_ms: Positive = 5000
    units_per_file: Positive = 300_000
    index_slots: Positive = 5_000_000
    index_items: Positive = 20_000_000
    checkpoint_ms: Positive = 5000
    delivery: DeliverySettings = DeliverySettings()
    #: The service for clients of RocketMQ 5.
    rocketmq_v2: ClientServiceSettings = ClientServiceSettings()

    @field_validator("namesrv", mode="before")
    @classmethod
    def _to_tuple(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value

    @field_validator("directory", mode="before")
    @classmethod
    def _to_path(cls, value: object) -> object:
        return Path(value) if isinstance(value, str) and value else value

    @field_validator("name", "cluster")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        try:
            check_topic_name(value)
        except IllegalMessage as error:
            raise ValueError(error.message.replace("topic", "name")) from None
        return value


def parse_settings(content: Mapping[str, Any], where: str = "program.settings") -> BrokerSettings:
    """ConfigError (CONFIG_INVALID) names each wrong key and what is valid."""
    try:
        return BrokerSettings.model_validate(dict(content))
    except ValidationError as error:
        faults = "; ".join(_fault(fault) for fault in error.errors())
        raise ConfigError(f"{where}: {faults}", code=Code.CONFIG_INVALID) from None


def _fault(fault: Any) -> str:
    key = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        model = DeliverySettings if len(fault["loc"]) > 1 else BrokerSettings
        return f"{key} is unknown; valid are {', '.join(model.model_fields)}"
    return f"{key}: {fault['msg'].removeprefix('Value error, ')} (it is {fault['input']!r})"
