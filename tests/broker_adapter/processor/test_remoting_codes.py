"""The table of request codes in docs/remoting.md names those that nodes answer, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from broker_adapter.processor.request import ADMIN_QUERIES, READS, RemotingRequest
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting_door.access import NEEDS
from broker_adapter.remoting_door.door import ADMIN_CHANGES, CHANGES, PULLS, REPLIES, SENDS

PAGE = Path(__file__).parents[3] / "docs" / "remoting.md"
#: What nodes ask clients; of the program that imports stores of RocketMQ (docs/moving-in.md).
ASKED = {RequestCode.CHECK_TRANSACTION_STATE, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED}
#: Of brokers on a classic log. Accounts: for administrators, as every code that NEEDS does not name.
OF_CLASSIC = {RequestCode.DELETE_EXPIRED_COMMITLOG}
OF_IMPORTS = {RequestCode.BEGIN_QUEUE, RequestCode.IMPORT_MESSAGES, RequestCode.READ_QUEUE}


def test_each_code_that_is_answered_is_in_the_table() -> None:
    """That each of NEEDS is answered, and nothing else, another test says."""
    section = PAGE.read_text().split("## Requests to a broker\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([\d, ]+) \|", section, re.MULTILINE)
    told = {int(code) for row in rows for code in row.split(",")}
    assert told - ASKED - OF_CLASSIC == set(NEEDS) - OF_IMPORTS


def test_no_request_that_changes_something_ends_with_its_caller() -> None:
    changing = {*SENDS, *CHANGES, *ADMIN_CHANGES, *REPLIES, RequestCode.HEART_BEAT}
    changing |= {
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    }
    for code in NEEDS:
        ends = RemotingRequest(RemotingCommand(code)).ends_with_caller
        assert not ends or code not in changing, code
        assert ends or code not in (*ADMIN_QUERIES, *READS, *PULLS), code
