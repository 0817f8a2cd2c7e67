"""docs/reference/troubleshooting.md: symptoms, exit codes, and the cause and fix of each error number."""

from __future__ import annotations

from broker_adapter.errors import Status
from dledger.errors import Code
from tests.docs.reference.exits import EXITS
from tests.docs.reference.markdown import GENERATED, table
from tests.docs.reference.symptoms import SYMPTOMS

_HEAD = ("number", "meaning", "cause", "fix", "class")
_PAGE = """# Troubleshooting

This page is for operators and users with a symptom, an error number or an exit code, and lists the cause and
the fix of each. `dledger explain NUMBER` prints the row of a number. Longer procedures are in
[operations](../operations.md#failures). [Guarantees](../guarantees.md#responses-to-an-append) states what a
caller may conclude from a response.

*In doubt* means that the operation may or may not have taken effect, or may take effect later.
"""


def page() -> str:
    lines = [GENERATED, "", *_PAGE.splitlines(), "", "## By symptom"]
    for symptom, causes in SYMPTOMS:
        lines += ["", f"### {symptom}", ""]
        lines += table(("check", "cause", "fix"), causes)
    lines += ["", "## By exit code", ""]
    lines += table(("code", "program", "meaning"), ((f"`{code}`", who, what) for code, who, what in EXITS))
    lines += ["", "## Numbers of the log", ""]
    lines += [
        "DLedger defines the numbers up to 508, this project those from 600. `class`: the Python exception.",
        "",
    ]
    lines += table(_HEAD, map(_log_row, Code))
    lines += ["", "## Numbers of the broker and the NameServer", ""]
    lines += ["`class`: the Python exception, and the ResponseCode that RocketMQ 4 clients receive.", ""]
    lines += table(_HEAD, map(_broker_row, Status))
    return "\n".join(lines) + "\n"


def _log_row(code: Code) -> tuple[str, ...]:
    raised = "" if code is Code.SUCCESS else code.error.__name__
    return f"{int(code)} {code.name}", code.meaning, code.cause, code.fix, raised


def _broker_row(status: Status) -> tuple[str, ...]:
    answer = status.response_code
    raised = f"{status.error.__name__}, {int(answer)} {answer.name}"
    return f"{int(status)} {status.name}", status.meaning, status.cause, status.fix, raised
