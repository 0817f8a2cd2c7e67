"""What becomes of push streams that end, or are replaced, and of what is said on them."""

from __future__ import annotations

from dledger.core.messages import PushResponse, PushType
from dledger.errors import Code
from dledger.node.members.inbound import PeerRequests
from dledger.rpc.envelope import PeerIdentity
from dledger.rpc.ports import FetchedFrames
from dledger.rpc.push_stream import PushReceiver


class Events:
    def __init__(self) -> None:
        self.lost: list[tuple[str, int]] = []

    def receive(self, peer: str, message: object, payload: object) -> None: ...

    def leader_stream_lost(self, leader_id: str, stream_id: int) -> None:
        self.lost.append((leader_id, stream_id))


class Stream(PushReceiver):
    def __init__(self, stream_id: int, incarnation: int = 7) -> None:
        super().__init__("m", stream_id, incarnation)
        self.said: list[PushResponse] = []
        self.is_replaced = False

    def respond(self, response: PushResponse) -> None:
        self.said.append(response)

    def replace(self) -> None:
        self.is_replaced = True


async def no_fetch(first_index: int, last_index: int, max_bytes: int, *, uncommitted: bool) -> FetchedFrames:
    raise AssertionError("nobody fetches")


def make_inbound() -> tuple[PeerRequests, Events]:
    events = Events()
    return PeerRequests(PeerIdentity("c", "g", "n", ("n", "m"), 1), events, no_fetch), events


def test_rule_5_the_end_of_the_newest_stream_without_a_goodbye_is_a_sign_and_no_other() -> None:
    inbound, events = make_inbound()
    old, new, last = Stream(1), Stream(2), Stream(3)
    inbound.push_opened(old)
    inbound.push_opened(new)
    assert old.is_replaced and not new.is_replaced
    inbound.push_ended(old, said_goodbye=False)
    assert events.lost == []
    inbound.push_ended(new, said_goodbye=False)
    assert events.lost == [("m", 2)]
    inbound.push_opened(last)
    inbound.push_ended(last, said_goodbye=True)
    assert events.lost == [("m", 2)]


def test_rule_6_a_response_goes_to_the_stream_it_belongs_to_or_nowhere() -> None:
    inbound, _ = make_inbound()
    old, new = Stream(1), Stream(2)
    inbound.push_opened(old)
    inbound.push_opened(new)
    for stream_id in (1, 2):
        response = PushResponse(1, "n", stream_id, Code.SUCCESS, PushType.APPEND, 5, 0, 5)
        inbound.respond("m", response)
    assert not old.said and [one.stream_id for one in new.said] == [2]
