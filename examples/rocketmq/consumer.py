"""Receive messages with the released Python client of RocketMQ 5, and acknowledge each.

    pip install rocketmq-python-client
    python consumer.py 127.0.0.1:20911 orders 3

Ends after so many messages.
"""

import sys

from rocketmq import ClientConfiguration, Credentials, FilterExpression, SimpleConsumer

AWAIT_S = 5  # a receive waits so long for a message
INVISIBLE_S = 30  # what is not acknowledged in this time comes again


def main(address: str, topic: str, count: int) -> None:
    configuration = ClientConfiguration(address, Credentials())
    consumer = SimpleConsumer(configuration, "python-example", {topic: FilterExpression("new")}, AWAIT_S)
    consumer.startup()
    while count > 0:
        for message in consumer.receive(16, INVISIBLE_S):
            print("received", message.body.decode(), f"(attempt {message.delivery_attempt})")
            consumer.ack(message)  # from now on it is done for this group, whatever fails
            count -= 1
    consumer.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
