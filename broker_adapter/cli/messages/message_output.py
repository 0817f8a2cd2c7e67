"""Output of messages on stdout: as lines or as JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import BinaryIO

from broker_adapter.client import MessageExt

Write = Callable[[BinaryIO, MessageExt], None]


def write_line(out: BinaryIO, message: MessageExt) -> None:
    out.write(message.body + b"\n")


def write_json(out: BinaryIO, message: MessageExt) -> None:
    out.write(json.dumps(message_to_json(message), ensure_ascii=False).encode() + b"\n")


def message_to_json(message: MessageExt) -> dict[str, object]:
    """Return the JSON form of a message.

    A UTF-8 body is in "body"; any other body is in "body_base64". Times are ms since 1970.
    """
    shown: dict[str, object] = {
        "topic": message.topic,
        "queue": message.queue.queue_id,
        "offset": message.queue_offset,
        "message_id": message.message_id,
        "offset_id": message.offset_message_id,
        "tag": message.tags or None,
        "keys": list(message.keys),
        "properties": dict(message.properties),
        "store_timestamp": message.store_timestamp,
        "born_timestamp": message.born_timestamp,
    }
    try:
        shown["body"] = message.body.decode()
    except UnicodeDecodeError:
        shown["body_base64"] = base64.b64encode(message.body).decode()
    return shown
