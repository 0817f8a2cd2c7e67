"""docs/reference/troubleshooting.md: by symptom, then every error number with meaning, cause and fix."""

from __future__ import annotations

from broker_adapter import errors as broker
from broker_adapter.error_advice import BROKER_ADVICE
from dledger import errors as log
from dledger.error_advice import LOG_ADVICE
from tools.reference.exits import EXITS
from tools.reference.markdown import GENERATED, table
from tools.reference.symptoms import SYMPTOMS

_HEAD = ("number", "meaning", "cause", "fix", "class")
_PAGE = """# Troubleshooting

This page is for operators and users who see a symptom, an error number or an exit code.
`dledger explain NUMBER` prints the row of a number. What a caller may conclude from an answer is in
[guarantees](../guarantees.md#what-an-answer-means). Longer procedures are in
[operations](../operations.md#what-to-do-when).

*In doubt* means: the operation may or may not have been carried out, now or later.
"""


def page() -> str:
    lines = [GENERATED, "", *_PAGE.splitlines(), "", "## By symptom"]
    for symptom, causes in SYMPTOMS:
        lines += ["", f"### {symptom}", ""]
        lines += table(("look at", "cause", "fix"), causes)
    lines += ["", "## By exit code", ""]
    lines += table(("code", "of", "meaning"), ((f"`{code}`", who, what) for code, who, what in EXITS))
    lines += ["", "## Numbers of the log", ""]
    lines += [
        "Up to 508 they are DLedger's, from 600 on this project's. `class`: the Python exception.",
        "",
    ]
    lines += table(_HEAD, map(_log_row, log.Code))
    lines += ["", "## Numbers of the broker and the NameServer", ""]
    lines += ["`class` is the Python exception, and what clients of RocketMQ 4 are told (ResponseCode).", ""]
    lines += table(_HEAD, map(_broker_row, sorted(broker.Status)))
    return "\n".join(lines) + "\n"


def _log_row(code: log.Code) -> tuple[str, ...]:
    advice = LOG_ADVICE[code]
    raised = (
        type(log.error_for(code, "")).__name__ if advice.is_given and code is not log.Code.SUCCESS else ""
    )
    return f"{int(code)} {code.name}", advice.meaning, advice.cause, advice.fix, raised


def _broker_row(status: broker.Status) -> tuple[str, ...]:
    advice = BROKER_ADVICE[status]
    error = broker.error_for(status, "")
    told = f"{type(error).__name__}, {int(error.response_code)} {error.response_code.name}"
    return f"{int(status)} {status.name}", advice.meaning, advice.cause, advice.fix, told
