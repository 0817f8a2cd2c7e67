"""The table of request codes in docs/remoting.md names those that nodes answer, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from broker_adapter.processor.access import NEEDS
from broker_adapter.remoting.codes import RequestCode

PAGE = Path(__file__).parents[3] / "docs" / "remoting.md"
#: What nodes ask clients; of the program that imports stores of RocketMQ (docs/moving-in.md).
ASKED = {RequestCode.CHECK_TRANSACTION_STATE, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED}
OF_IMPORTS = {RequestCode.BEGIN_QUEUE, RequestCode.IMPORT_MESSAGES, RequestCode.READ_QUEUE}


def test_each_code_that_is_answered_is_in_the_table() -> None:
    """That each of NEEDS is answered, and nothing else, another test says."""
    section = PAGE.read_text().split("## Requests to a broker\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([\d, ]+) \|", section, re.MULTILINE)
    told = {int(code) for row in rows for code in row.split(",")}
    assert told - ASKED == set(NEEDS) - OF_IMPORTS
