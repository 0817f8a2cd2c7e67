"""The values in requests and responses of a NameServer, and their validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from broker_adapter.api import TopicConfig
from broker_adapter.errors import BrokerError, NameServerBusy, NameServerRefused, Status
from broker_adapter.wire.topic_names import check_topic_name
from dledger.core.values import MAX_TERM

#: The broker does not know its role yet: it is alive but not published.
UNKNOWN_ID = -1
NO_TERM = -1
#: Matches any role_epoch in a request to unregister.
ANY_EPOCH = -1

MAX_NAME = 255
MAX_NUMBER = (1 << 63) - 1
MAX_QUEUES = 65_536
MAX_FILTER_SERVERS = 16
#: Maximum length of a topic's message type, in characters.
MAX_MESSAGE_TYPE = 64
_PERMS = range(8)
_FLAGS = range(1 << 31)


class Registration(NamedTuple):
    """The registration of a broker. Only registrations of masters determine topics."""

    cluster: str
    broker_name: str  # a master and its slaves have the same name
    node_id: str
    broker_id: int  # 0: master, above 0: slave, -1: role not known
    address: str  # host:port at which clients reach the node
    term: int
    role_epoch: int
    http_address: str = ""
    data_version: int = 0  # grows when topics change
    topics: Sequence[TopicConfig] = ()
    expire_ms: int = 0  # 0: the NameServer's default
    ha_address: str = ""  # host:port at which slaves fetch the log of a RocketMQ broker
    filter_servers: Sequence[str] = ()  # host:port
    send_address: str = ""  # host:port of the send-only port of the write-only names, if any
    # host:port of the log's protocol on a node of this project; "" for other brokers
    node_address: str = ""
    members: Sequence[str] = ()  # node ids of all configured members, for their write-only names


class RegistrationAnswer(NamedTuple):
    """The currently published master of the broker name."""

    master_address: str = ""  # "": none
    master_term: int = NO_TERM
    master_ha_address: str = ""


class SendName(NamedTuple):
    """The write-only broker name of one member. Its only broker id is 0."""

    name: str
    address: str  # a send-only port
    is_writable: bool  # False: clients know the name, but do not send to it


def send_name(broker_name: str, node_id: str) -> str:
    """Return the write-only name of a member."""
    return f"{broker_name}-{node_id}"


class PublishedRoute(NamedTuple):
    """Brokers and queues of a topic. `queues` is empty if the topic has no route."""

    topic: str
    queues: Mapping[str, TopicConfig] = {}  # by broker name
    brokers: Mapping[str, Mapping[int, str]] = {}  # address by broker name and broker id; 0 is the master
    master_terms: Mapping[str, int] = {}  # of the broker names with a master
    clusters: Mapping[str, str] = {}  # cluster by broker name
    filter_servers: Mapping[str, Sequence[str]] = {}  # filter servers by broker address
    send_names: Mapping[str, Sequence[SendName]] = {}  # by broker name


class BrokerEntry(NamedTuple):
    """One row of the brokerLiveTable. Times are in milliseconds."""

    cluster: str
    broker_name: str
    node_id: str
    broker_id: int
    role: str
    address: str
    http_address: str
    term: int
    role_epoch: int
    last_update_ms: int  # time since the last registration
    expire_ms: int
    has_session: bool
    node_address: str


class ClusterInfo(NamedTuple):
    """The tables and the state of one NameServer."""

    version: str
    pid: int
    uptime_ms: int
    brokers: Sequence[BrokerEntry]
    topics: int
    sessions: int
    watchers: int
    config_entries: int
    write_wiped: Sequence[str]  # broker names
    limits_hit: Mapping[str, int]


class TableLimits(NamedTuple):
    """Limits of the tables. A registration that would exceed a limit is refused with NAMESRV_LIMIT."""

    max_broker_names: int = 256
    max_names_per_address: int = 64  # first registered from the same address
    max_nodes_per_name: int = 16
    max_topics: int = 20_000
    min_expire_ms: int = 10_000
    default_expire_ms: int = 120_000
    max_expire_ms: int = 600_000
    removed_member_ms: int = 3_600_000  # time until the write-only name of a removed member is deleted

    def expire_ms(self, wanted: int) -> int:
        """Return the requested expiry, limited to the permitted range. For 0, return the default."""
        return min(max(wanted, self.min_expire_ms), self.max_expire_ms) if wanted else self.default_expire_ms


def check_registration(registration: Registration, limits: TableLimits) -> None:
    """Check a registration.

    Raises NameServerRefused (NAMESRV_INVALID, with the field) or NameServerBusy (NAMESRV_LIMIT).
    """
    for field in ("cluster", "broker_name", "node_id"):
        check_name(field, getattr(registration, field))
    check_address("address", registration.address)
    for field in ("http_address", "ha_address", "send_address", "node_address"):
        if address := getattr(registration, field):
            check_address(field, address)
    if len(registration.filter_servers) > MAX_FILTER_SERVERS:
        raise invalid(
            f"the registration has {len(registration.filter_servers)} filter servers; the limit is "
            f"{MAX_FILTER_SERVERS}"
        )
    for address in registration.filter_servers:
        check_address("filter server", address)
    if len(registration.members) > limits.max_nodes_per_name:
        text = f"{len(registration.members)} members, more than {limits.max_nodes_per_name} per broker name"
        raise NameServerBusy(Status.NAMESRV_LIMIT, text)
    for member in registration.members:
        check_name("member", member)
    _check_number("broker_id", registration.broker_id, least=UNKNOWN_ID)
    for field in ("role_epoch", "data_version", "expire_ms"):
        _check_number(field, getattr(registration, field))
    # A node has no term before its first election.
    _check_number("term", registration.term, least=NO_TERM)
    if registration.term > MAX_TERM:
        raise NameServerRefused(
            Status.NAMESRV_TERM_REFUSED, f"term {registration.term} is above the maximum {MAX_TERM}"
        )
    check_topic_count(len(registration.topics), limits.max_topics)
    for topic in registration.topics:
        check_topic(topic)


def check_topic_count(count: int, limit: int) -> None:
    """Raise NameServerBusy (NAMESRV_LIMIT) if `limit` is exceeded."""
    if count > limit:
        raise NameServerBusy(
            Status.NAMESRV_LIMIT, f"the registration has {count} topics; the limit is {limit}"
        )


def check_topic(topic: TopicConfig) -> None:
    """Check a topic. Raises NameServerRefused (NAMESRV_INVALID)."""
    try:
        check_topic_name(topic.name)
    except BrokerError as error:
        raise invalid(error.message) from None
    for queues in (topic.read_queues, topic.write_queues):
        if not 0 <= queues <= MAX_QUEUES:
            raise invalid(f"topic {topic.name} has {queues} queues; expected 0 to {MAX_QUEUES}")
    if topic.perm not in _PERMS:
        raise invalid(f"topic {topic.name}: perm {topic.perm} is invalid: 4 is readable, 2 writable, 6 both")
    # Routes contain these two values. If a value could not be encoded, the topic would have no route.
    if topic.sys_flag not in _FLAGS:
        raise invalid(f"topic {topic.name}: sys_flag {topic.sys_flag} is not between 0 and {_FLAGS[-1]}")
    if len(topic.message_type) > MAX_MESSAGE_TYPE or not topic.message_type.isprintable():
        text = f"message type {topic.message_type[:MAX_MESSAGE_TYPE]!r}"
        raise invalid(
            f"topic {topic.name}: {text} has more than {MAX_MESSAGE_TYPE} characters, or unprintable ones"
        )


def check_name(field: str, text: str) -> None:
    """Raise NameServerRefused (NAMESRV_INVALID) unless the text has 1 to 255 printable characters and no
    spaces.
    """
    if not 0 < len(text) <= MAX_NAME or not text.isprintable() or " " in text:
        raise invalid(
            f"{field} {text[:MAX_NAME]!r} must have 1 to {MAX_NAME} printable characters without spaces"
        )


def check_address(field: str, text: str) -> None:
    """Raise NameServerRefused (NAMESRV_INVALID) unless the text is host:port with a connectable port."""
    check_name(field, text)
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise invalid(f"{field} {text!r} is not of the form host:port")


def _check_number(field: str, value: int, *, least: int = 0) -> None:
    if not least <= value <= MAX_NUMBER:
        raise invalid(f"{field} {value} is not between {least} and {MAX_NUMBER}")


def invalid(problem: str) -> NameServerRefused:
    """Return the error for a malformed request."""
    return NameServerRefused(Status.NAMESRV_INVALID, problem)
