"""Every method survives calls that are valid or nearly so, and servers open their data afterwards."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from broker_adapter.v2 import definition_pb2, service_pb2
from dledger.errors import Code
from dledger.v1 import log_pb2, peer_pb2
from tests.fuzz import calls_run
from tests.fuzz.calls import SERVICES, Call, _bad_number, methods_of
from tests.fuzz.registry import CORPUS

_CALLS = 80
_PROTO = CORPUS.parents[2] / "proto"


def test_every_service_is_called() -> None:
    written = {
        f"{re.search(r'^package (.+);', text, re.M)[1]}.{service}"  # type: ignore[index]
        for path in _PROTO.rglob("*.proto")
        for text in [path.read_text()]
        for service in re.findall(r"^service (\w+)", text, re.M)
    }
    called = {method.containing_service.full_name for server in SERVICES for method, _ in methods_of(server)}
    assert len(written) == 5 and written == called


@pytest.mark.process
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", calls_run.NAMES)
@pytest.mark.xdist_group("fuzz-calls")
async def test_calls_that_were_kept_and_some_more_leave_a_server_that_serves(
    name: str, tmp_path: Path
) -> None:
    async with calls_run.CallFuzzing([name], 20260101, tmp_path) as fuzzing:
        (caller,) = fuzzing._callers.values()
        made = [call for calls in calls_run.corpus_of(name) for call in calls]
        for number in range(len(made) + _CALLS):
            call = made[number] if number < len(made) else caller.next_call()
            problem = await fuzzing.problem(caller, call)
            assert not problem, f"{call.to_json()[:2000]}\n{problem}"
        assert not await calls_run.after(caller.server, is_restarted=True)


def test_a_call_is_kept_as_text() -> None:
    call = Call("log", "/dledger.v1.LogService/Append", (b"\0\xff", b""), (("a", "b"),))
    assert Call.from_json(call.to_json()) == call


def test_numbers_that_nobody_knows_and_internal_errors_are_found() -> None:
    bug = definition_pb2.Status(code=definition_pb2.INTERNAL_SERVER_ERROR)
    sent = service_pb2.SendMessageResponse(entries=[service_pb2.SendResultEntry(status=bug)])
    assert _bad_number(sent) == "an internal error"
    assert _bad_number(log_pb2.AppendResponse(status=log_pb2.Status(code=int(Code.INTERNAL_ERROR))))
    assert "4711" in _bad_number(log_pb2.AppendResponse(status=log_pb2.Status(code=4711)))
    assert not _bad_number(peer_pb2.VoteResponse(refusal=peer_pb2.Refusal(code=int(Code.UNKNOWN_GROUP))))
    assert not _bad_number(log_pb2.AppendResponse())
