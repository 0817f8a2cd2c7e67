"""A process that appends messages to a classic CommitLog, and ends: in an orderly way, or by SIGKILL.

    python -m tests.interop.classic_writer ROOT FILE_SIZE FIRST COUNT close|keep|kill

Message number n goes to queue n % 4 of `orders`, at the offset n // 4. What recovery has found is
printed as JSON. Nothing makes ConsumeQueues of it: `keep` leaves
that to the next recovery.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from broker_adapter.log.classic.commit_log_files import CommitLogFiles, CommitLogOptions
from broker_adapter.log.classic.recovery import open_commit_log
from broker_adapter.wire.host import Host
from broker_adapter.wire.message import MessageRecord, encode
from dledger.infra.files.disk import OsDisk

TOPIC, QUEUES = "orders", 4
_HOST = Host(bytes((127, 0, 0, 1)), 10_911)


def body_of(number: int) -> bytes:
    """Of many sizes, so that files end in blanks of many sizes."""
    return b"%d:" % number + b"x" * (number * 37 % 3_000)


def append(log: CommitLogFiles, first: int, count: int) -> None:
    """In groups of three, each flushed."""
    for begin in range(first, first + count, 3):
        messages = [
            MessageRecord(
                TOPIC,
                body_of(number),
                f"UNIQ_KEY\1key{number}\2TAGS\1a\2KEYS\1k{number}\2",
                number % QUEUES,
                queue_offset=number // QUEUES,
                born_timestamp=int(time.time() * 1000),
                born_host=_HOST,
                store_timestamp=int(time.time() * 1000),
                store_host=_HOST,
            )
            for number in range(begin, min(begin + 3, first + count))
        ]
        places = log.place([len(encode(message)) for message in messages])
        log.append(
            [
                encode(message._replace(physical_offset=place))
                for message, place in zip(messages, places, strict=True)
            ]
        )
        log.flush()


def main() -> None:
    root, file_size, first, count, end = sys.argv[1:]
    log = open_commit_log(Path(root), OsDisk(), CommitLogOptions(int(file_size)))
    print(json.dumps(log.recovery._asdict()), flush=True)
    append(log, int(first), int(count))
    log.prepare()
    if end == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    log.close(keep_abort=end == "keep")


if __name__ == "__main__":
    main()
