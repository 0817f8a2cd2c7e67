"""Writes stores as a broker of RocketMQ does, small enough for a test."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from broker_adapter.wire.consume_queue_unit import UNIT_SIZE, encode_units
from broker_adapter.wire.host import Host
from broker_adapter.wire.message import BLANK_MAGIC, MessageRecord, encode

FILE_SIZE = 4_096
UNITS_PER_FILE = 16
BORN, STORED = Host(bytes((10, 0, 0, 1)), 40_000), Host(bytes((10, 0, 0, 2)), 10_911)
_RESERVED = 8


class StoreWriter:
    """`put` messages, then `finish`. `begin`: where retention lets the log begin."""

    def __init__(self, root: Path, begin: int = 0) -> None:
        self.root = root
        self.begin = self.position = begin
        self.log = bytearray()
        self.units: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
        self.next: dict[tuple[str, int], int] = {}
        self.topics: dict[str, dict[str, Any]] = {}
        self.groups: dict[str, dict[str, Any]] = {}
        self.offsets: dict[str, dict[int, int]] = {}
        self.delays: dict[int, int] = {}

    def topic(self, name: str, queues: int = 1, perm: int = 6, **more: Any) -> None:
        entry = {"topicName": name, "readQueueNums": queues, "writeQueueNums": queues, "perm": perm}
        self.topics[name] = {
            **entry,
            "order": False,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            **more,
        }

    def start_queue(self, topic: str, queue_id: int, offset: int) -> None:
        """What retention has removed is not there."""
        self.next[topic, queue_id] = offset

    def put(
        self, topic: str, body: bytes, queue_id: int = 0, *, tag_code: int = 0, **fields: Any
    ) -> MessageRecord:
        key = topic, queue_id
        offset = self.next.get(key, 0)
        message = MessageRecord(
            topic,
            body,
            queue_id=queue_id,
            queue_offset=offset,
            born_timestamp=1_700_000_000_000 + offset,
            store_timestamp=1_700_000_001_000 + len(self.log),
            born_host=BORN,
            store_host=STORED,
        )._replace(**fields)
        size = len(encode(message))
        left = FILE_SIZE - len(self.log) % FILE_SIZE
        if size + _RESERVED > left:
            self.log += struct.pack(">II", left, BLANK_MAGIC) + bytes(left - _RESERVED)
        message = message._replace(physical_offset=self.begin + len(self.log))
        self.log += encode(message)
        if message.sys_flag & 12 not in (4, 12):
            self.next[key] = offset + 1
            self.units.setdefault(key, []).append((message.physical_offset, size, tag_code))
        return message

    def finish(self, *, clean: bool = True, checkpoint_ms: int = 0, config: bool = True) -> Path:
        (self.root / "commitlog").mkdir(parents=True, exist_ok=True)
        padded = bytes(self.log) + bytes(-len(self.log) % FILE_SIZE)
        for at in range(0, len(padded), FILE_SIZE):
            path = self.root / "commitlog" / f"{self.begin + at:020d}"
            path.write_bytes(padded[at : at + FILE_SIZE])
        for (topic, queue_id), units in self.units.items():
            self._write_units(topic, queue_id, units)
        if not clean:
            (self.root / "abort").write_text("")
        stamps = struct.pack(">qqq", checkpoint_ms, checkpoint_ms, checkpoint_ms)
        (self.root / "checkpoint").write_bytes(stamps.ljust(4096, b"\0"))
        if config:
            self._write_tables()
        return self.root

    def _write_units(self, topic: str, queue_id: int, units: list[tuple[int, int, int]]) -> None:
        folder = self.root / "consumequeue" / topic / str(queue_id)
        folder.mkdir(parents=True, exist_ok=True)
        first = self.next[topic, queue_id] - len(units)
        begin = first // UNITS_PER_FILE * UNITS_PER_FILE
        raw = encode_units([(0, 0x7FFFFFFF, 0)] * (first - begin) + units)
        size = UNITS_PER_FILE * UNIT_SIZE
        raw += bytes(-len(raw) % size)
        for at in range(0, len(raw), size):
            (folder / f"{begin * UNIT_SIZE + at:020d}").write_bytes(raw[at : at + size])

    def _write_tables(self) -> None:
        config = self.root / "config"
        config.mkdir(exist_ok=True)
        version = {"counter": 1, "stateVersion": 0, "timestamp": 1}
        (config / "topics.json").write_text(
            json.dumps({"dataVersion": version, "topicConfigTable": self.topics})
        )
        (config / "subscriptionGroup.json").write_text(
            json.dumps({"dataVersion": version, "subscriptionGroupTable": self.groups})
        )
        # As fastjson writes maps with numbers for keys.
        inner = ",".join(
            f'"{name}":{{{",".join(f"{queue}:{at}" for queue, at in queues.items())}}}'
            for name, queues in self.offsets.items()
        )
        (config / "consumerOffset.json").write_text(f'{{"offsetTable":{{{inner}}}}}')
        delays = ",".join(f"{level}:{offset}" for level, offset in self.delays.items())
        (config / "delayOffset.json").write_text(f'{{"offsetTable":{{{delays}}}}}')
