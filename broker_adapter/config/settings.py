"""`[program.settings]` of a node with a broker on it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from broker_adapter.config.classic import ClassicSettings
from broker_adapter.config.remoting import RemotingSettings
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

    invisible_ms: Positive = 60_000
    """How long a received message is invisible to others, if the receive names no time. Renewed while its
    client is heard of."""
    max_renewed_ms: Positive = 10_800_000
    """Longest time for which it is renewed in all."""
    heard_ms: Positive = 30_000
    """A client that was not heard of for so long is gone."""
    release_ms: Positive = 1_000
    """Messages of a client that is gone become visible after this."""
    max_pending_per_queue: Positive = 20_000
    """Messages of one queue that are received and not acknowledged. Past it nothing fresh is given."""
    max_pending: Positive = 200_000
    """The same of all queues."""
    abandoned_ms: Positive = 86_400_000
    """A message that is visible again for so long, and that nobody wants, counts as never given."""
    upkeep_ms: Positive = 10_000
    """How often the master looks for abandoned messages."""
    max_delay_ms: Positive = 40 * 86_400_000
    """Longest delay of a message. Past it: 738."""
    max_held_bytes: Positive = 64 << 20
    """Bytes of memory of half messages. Past it: 706."""
    max_delayed: Positive = 2_000_000
    """Delayed messages that wait, in the log and in an index on the disk. Past it: 706."""
    check_first_ms: Positive = 6_000
    """When the producer of a half message is first asked for its outcome."""
    check_again_ms: Positive = 30_000
    """Time until it is asked again."""
    max_checks: Positive = 15
    """After so many checks without an answer a half message is rolled back."""
    max_waiting_bytes: Positive = 64 << 20
    """Bytes of requests that wait for their append."""
    max_given_bytes: Positive = 64 << 20
    """Bytes of messages on their way from the log to consumers. Past it a receive waits for room."""


class BrokerSettings(BaseModel):
    """One broker, wherever it is master. Sizes in bytes, times in ms."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: _Text = "broker-a"
    """Name of the broker, the same on all nodes of one log."""
    store: Literal["replicated", "classic"] = "replicated"
    """The log: that of the group of nodes, or a CommitLog of RocketMQ's own form with slaves of its own."""
    cluster: _Text = "DefaultCluster"
    """Name of the cluster of brokers."""
    directory: Path | None = None
    """Directory of ConsumeQueues and indexes. Default: beside the log's."""
    namesrv: tuple[_Text, ...] = ()
    """host:port of all NameServers."""
    auto_create_topics: bool = True
    """The first message to a topic creates it. Asking for its route does not."""
    auto_create_groups: bool = True
    """The first use of a group creates it."""
    auto_create_up_to: Positive = 8_000
    """With so many topics (or groups) none is created by use any more; admins still create them. Past it:
    770, 771."""
    auto_create_per_client: Positive = 1_000
    """Topics (or groups) that one address may create by use, at one master. Past it: 770, 771."""
    auto_create_expire_ms: Annotated[int, Field(ge=0)] = 604_800_000
    """A topic created by use is deleted when it is empty and unused for so long. 0: never."""
    auto_create_groups_expire_ms: Annotated[int, Field(ge=0)] = 604_800_000
    """A group created by use is deleted, with its offsets, when it is unused for so long. 0: never."""
    default_queues: Annotated[int, Field(ge=1, le=1024)] = 4
    """Queues of a topic created by use."""
    max_body_bytes: Annotated[int, Field(ge=1, le=MAX_BODY_BYTES)] = MAX_BODY_BYTES
    """Largest body of a message. Past it: 734."""
    max_held_pulls: Positive = 10_000
    """Pulls, and receives, that wait for messages. Past it: 743."""
    max_wait_ms: Positive = 60_000
    """How long a pull may wait for messages."""
    send_timeout_ms: Positive = 5000
    """How long a send that names no time-out may take."""
    role_change_report_ms: Positive = 5000
    """A master that is not writable for so long says so, and looks for a fitter one."""
    units_per_file: Positive = 300_000
    """Messages of one ConsumeQueue file."""
    index_slots: Positive = 5_000_000
    """Hash slots of one IndexFile."""
    index_items: Positive = 20_000_000
    """Keys of one IndexFile."""
    checkpoint_ms: Positive = 5000
    """How often derived files are synced and their checkpoint is written."""
    delivery: DeliverySettings = DeliverySettings()
    """Receiving by receipt handles, delays and transactions."""
    rocketmq_v2: ClientServiceSettings = ClientServiceSettings()
    """The service for clients of RocketMQ 5."""
    classic: ClassicSettings = ClassicSettings()
    """The log with `store = "classic"`."""
    remoting: RemotingSettings = RemotingSettings()
    """The port for clients of RocketMQ's remoting protocol (4.x)."""

    @field_validator("namesrv", mode="before")
    @classmethod
    def _to_tuple(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value

    @field_validator("directory", mode="before")
    @classmethod
    def _to_path(cls, value: object) -> object:
        return Path(value) if isinstance(value, str) and value else value

    @model_validator(mode="after")
    def _remoting_goes_by_the_proxy(self) -> BrokerSettings:
        if not self.remoting.listen:
            return self
        if not self.rocketmq_v2.enabled:
            raise ValueError(
                "remoting.listen needs rocketmq_v2.enabled: nodes pass both kinds of calls on so"
            )
        return self

    @model_validator(mode="after")
    def _classic_speaks_remoting(self) -> BrokerSettings:
        """Its slaves and NameServers know it by that."""
        if self.store != "classic":
            return self
        if not self.remoting.listen:
            raise ValueError('store = "classic" needs remoting.listen')
        if self.namesrv:
            raise ValueError('store = "classic" registers by remoting.namesrv: name the NameServers there')
        if self.directory is not None:
            raise ValueError('store = "classic" has its derived files in the node\'s directory')
        return self

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
