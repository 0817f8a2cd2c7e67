"""`[program.settings]` of a node that runs a broker."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from broker_adapter.config.classic import ClassicSettings
from broker_adapter.config.remoting import Address, RemotingSettings
from broker_adapter.config.rocketmq_v2 import ClientServiceSettings
from broker_adapter.errors import IllegalMessage
from broker_adapter.wire.message import MAX_BODY_BYTES
from broker_adapter.wire.topic_names import check_topic_name
from dledger import Code, ConfigError

Positive = Annotated[int, Field(gt=0)]
_Text = Annotated[str, Field(min_length=1, max_length=255)]


class DeliverySettings(BaseModel):
    """`[program.settings.delivery]`: receipt handles, delays and transactions."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    invisible_ms: Positive = 60_000
    """Invisible time of a received message if the receive specifies none. Renewed while the
    client is alive.
    """
    max_renewed_ms: Positive = 10_800_000
    """Maximum total time of renewals."""
    heard_ms: Positive = 30_000
    """Time after which a silent client is considered disconnected."""
    release_ms: Positive = 1_000
    """Delay after which the messages of a disconnected client become visible."""
    max_pending_per_queue: Positive = 20_000
    """Maximum number of received but unacknowledged messages of one queue. Beyond it no new messages are
    delivered.
    """
    max_pending: Positive = 200_000
    """The same for all queues together."""
    abandoned_ms: Positive = 86_400_000
    """Time after which a visible message that was not received again counts as never delivered."""
    upkeep_ms: Positive = 10_000
    """Interval at which the master searches for abandoned messages."""
    max_delay_ms: Positive = 40 * 86_400_000
    """Maximum delay of a message. Beyond it: 738."""
    max_held_bytes: Positive = 64 << 20
    """Maximum memory for half messages, in bytes, shared by address. Beyond it: 706."""
    max_delayed: Positive = 2_000_000
    """Maximum number of pending delayed messages, in the log and an index on disk, shared by address. Beyond
    it: 706.
    """
    check_first_ms: Positive = 6_000
    """Time until the first transaction check of a half message."""
    check_again_ms: Positive = 30_000
    """Interval of further checks."""
    max_checks: Positive = 15
    """Number of unanswered checks after which a half message is rolled back."""
    retry_span_ms: Annotated[int, Field(ge=0, le=60_000)] = 15_000
    """A send with the topic, id and content of a stored message is a duplicate if both were created within
    this time. 0: store every send, including sends that a node forwards again after a failover.
    """
    max_waiting_bytes: Positive = 64 << 20
    """Maximum total size of requests waiting to be appended, in bytes, shared by address. Beyond it: 702."""
    max_given_bytes: Positive = 64 << 20
    """Maximum total size of messages in flight from the log to consumers, in bytes, shared by address. Above
    it, a receive returns up to 64 KiB and waits for larger messages.
    """


class BrokerSettings(BaseModel):
    """Settings of one broker, equal on all nodes. Sizes in bytes, times in ms."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: _Text = "broker-a"
    """Name of the broker, equal on all nodes of one log."""
    store: Literal["replicated", "classic"] = "replicated"
    """Kind of log: the nodes' replicated log, or a CommitLog in RocketMQ's format with slaves."""
    cluster: _Text = "DefaultCluster"
    """Name of the broker cluster."""
    directory: Path | None = None
    """Directory of ConsumeQueues and indexes. Default: next to the log's directory."""
    namesrv: tuple[Address, ...] = ()
    """host:port of all NameServers, of this project or RocketMQ's."""
    auto_create_topics: bool = True
    """Create a topic with the first message sent to it. A route request does not create it."""
    auto_create_groups: bool = True
    """Create a group on its first use."""
    auto_create_up_to: Positive = 8_000
    """Number of topics (or groups) above which clients cannot create any automatically: 770, 771.
    Administrators still can.
    """
    auto_create_per_client: Positive = 1_000
    """Maximum number of topics (or groups) created automatically for one address, per master. Beyond it: 770,
    771.
    """
    auto_create_expire_ms: Annotated[int, Field(ge=0)] = 604_800_000
    """Time after which an empty, unused, automatically created topic is deleted. 0: never."""
    auto_create_groups_expire_ms: Annotated[int, Field(ge=0)] = 604_800_000
    """Time after which an unused, automatically created group is deleted, with its offsets. 0: never."""
    default_queues: Annotated[int, Field(ge=1, le=1024)] = 4
    """Number of queues of an automatically created topic."""
    max_body_bytes: Annotated[int, Field(ge=1, le=MAX_BODY_BYTES)] = MAX_BODY_BYTES
    """Maximum size of a message body. Beyond it: 734."""
    max_held_pulls: Positive = 10_000
    """Maximum number of pulls and receives waiting for messages. Beyond it: 743."""
    max_wait_ms: Positive = 60_000
    """Maximum waiting time of a pull."""
    send_timeout_ms: Positive = 5000
    """Timeout of a send that specifies none."""
    role_change_report_ms: Positive = 5000
    """Time after which a master that is not writable yet logs this and offers leadership to a fitter node."""
    units_per_file: Positive = 300_000
    """Messages per ConsumeQueue file."""
    index_slots: Positive = 5_000_000
    """Hash slots per IndexFile."""
    index_items: Positive = 20_000_000
    """Keys per IndexFile."""
    checkpoint_ms: Positive = 5000
    """Interval at which derived files are synced and their checkpoint is written."""
    delivery: DeliverySettings = DeliverySettings()
    """Receipt handles, delays and transactions."""
    rocketmq_v2: ClientServiceSettings = ClientServiceSettings()
    """The service for RocketMQ 5 clients."""
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
                "remoting.listen requires rocketmq_v2.enabled = true, because that service also forwards "
                "remoting calls to the master"
            )
        return self

    @model_validator(mode="after")
    def _registers_what_it_serves(self) -> BrokerSettings:
        if self.namesrv and not self.remoting.listen:
            raise ValueError("namesrv requires remoting.listen, because routes direct clients to it")
        return self

    @model_validator(mode="after")
    def _classic_speaks_remoting(self) -> BrokerSettings:
        """Require the remoting port, which slaves and NameServers use."""
        if self.store != "classic":
            return self
        if not self.remoting.listen:
            raise ValueError('store = "classic" requires remoting.listen')
        if self.directory is not None:
            raise ValueError(
                'store = "classic" does not support directory: derived files are in the node\'s directory'
            )
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
    """Parse the settings. Raises ConfigError (CONFIG_INVALID) with each invalid key and the valid values."""
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
