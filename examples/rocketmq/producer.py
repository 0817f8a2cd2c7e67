"""Send a few messages with the released Python client of RocketMQ 5.

    pip install rocketmq-python-client
    python producer.py 127.0.0.1:20911 orders

Pass the address of any node of `dledger cluster up --broker`. The topic is created automatically.
"""

import sys

from rocketmq import ClientConfiguration, Credentials, Message, Producer


def main(address: str, topic: str) -> None:
    producer = Producer(ClientConfiguration(address, Credentials()), [topic])
    producer.startup()
    for number in range(3):
        message = Message()
        message.topic = topic
        message.tag = "new"  # consumers may filter by it
        message.keys = f"order-{number}"
        message.body = f"order {number} from Python".encode()
        # Returns when a majority of the nodes has the message on disk.
        print("sent", producer.send(message).message_id)
    producer.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
