"""Receive messages with the released Python client of RocketMQ 5, and acknowledge each.

    pip install rocketmq-python-client
    python consumer.py 127.0.0.1:20911 orders 3

Exits after receiving the given number of messages.
"""

import sys

from rocketmq import ClientConfiguration, Credentials, FilterExpression, SimpleConsumer

AWAIT_S = 5  # maximum wait of a receive for a message
INVISIBLE_S = 30  # messages that are not acknowledged within this time are delivered again


def main(address: str, topic: str, count: int) -> None:
    configuration = ClientConfiguration(address, Credentials())
    consumer = SimpleConsumer(configuration, "python-example", {topic: FilterExpression("new")}, AWAIT_S)
    consumer.startup()
    while count > 0:
        for message in consumer.receive(16, INVISIBLE_S):
            print("received", message.body.decode(), f"(attempt {message.delivery_attempt})")
            consumer.ack(message)  # the group does not receive it again, whatever fails afterwards
            count -= 1
    consumer.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
