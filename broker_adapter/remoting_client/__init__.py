"""The client of RocketMQ's remoting protocol, in Python only: for brokers of RocketMQ 4.x, 5.x and ours."""

from broker_adapter.remoting_client.admin import Admin
from broker_adapter.remoting_client.options import ClientOptions
from broker_adapter.remoting_client.producer import Producer
from broker_adapter.remoting_client.queue_choice import select_by_hash
from broker_adapter.remoting_client.route_data import BrokerAddresses, TopicRoute
from broker_adapter.remoting_client.values import (
    Message,
    MessageExt,
    MessageQueue,
    SendResult,
    SendStatus,
)

__all__ = [
    "Admin",
    "BrokerAddresses",
    "ClientOptions",
    "Message",
    "MessageExt",
    "MessageQueue",
    "Producer",
    "SendResult",
    "SendStatus",
    "TopicRoute",
    "select_by_hash",
]
