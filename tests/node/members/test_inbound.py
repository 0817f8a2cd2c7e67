"""What becomes of push streams that end, or are replaced, and of what is said on them."""

from __future__ import annotations

import pytest

from dledger.core.directories import FIRST_REJOINED
from dledger.core.messages import PushResponse, PushType
from dledger.core.values import UNKNOWN_UID
from dledger.errors import Code, InvalidRequest
from dledger.node.members.inbound import PeerRequests
from dledger.rpc.envelope import PeerClaims, PeerIdentity
from dledger.rpc.ports import FetchedFrames, ImageChunk, ImageQuestion
from dledger.rpc.push_stream import PushReceiver


class Events:
    def __init__(self) -> None:
        self.lost: list[tuple[str, int]] = []
        self.seen: list[tuple[str, int]] = []
        self.stopped: list[str] = []
        self.assigned: list[int] = []

    def receive(self, peer: str, message: object, payload: object) -> None: ...

    def directory_seen(self, peer: str, number: int) -> None:
        self.seen.append((peer, number))

    def directory_replaced(self, peer: str, reason: str) -> None:
        self.stopped.append(reason)

    def member_replaced(self, reason: str) -> None:
        self.stopped.append(reason)

    def uid_assigned(self, uid: int) -> None:
        self.assigned.append(uid)

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


async def no_image(peer: str, question: ImageQuestion) -> ImageChunk:
    raise AssertionError("nobody fetches an image")


def make_inbound() -> tuple[PeerRequests, Events]:
    events = Events()
    return PeerRequests(PeerIdentity("c", "g", "n", ("n", "m"), 1), events, no_fetch, no_image), events


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


def make_numbered(own: int, known: int) -> tuple[PeerRequests, Events]:
    events, numbers = Events(), {"n": own, "m": known}
    identity = PeerIdentity("c", "g", "n", ("n", "m"), 1, directory_of=numbers.__getitem__)
    return PeerRequests(identity, events, no_fetch, no_image), events


REJOINED = FIRST_REJOINED + 5


@pytest.mark.parametrize(
    ("own", "known", "claims", "seen"),
    [
        (3, 4, (4, 3), None),
        (3, 0, (4, 0), 4),  # the first message
        (3, 4, (REJOINED, 3), REJOINED),
        (REJOINED, 4, (4, 3), None),  # the peer does not know yet that this node has rejoined
        (3, 4, (0, 3), None),  # the peer is rejoining
        (0, 4, (4, REJOINED), None),  # this node is rejoining
    ],
)
def test_rule_11_the_newest_directories_are_admitted(
    own: int, known: int, claims: tuple[int, int], seen: int | None
) -> None:
    inbound, events = make_numbered(own, known)
    inbound.check_claims("m", PeerClaims(0, 0, *claims))
    assert events.seen == ([] if seen is None else [("m", seen)]) and not events.stopped


@pytest.mark.parametrize(("known", "directory"), [(REJOINED, 4), (4, 5), (5, 4), (REJOINED + 1, REJOINED)])
def test_rule_11_another_directory_of_a_peer_is_refused(known: int, directory: int) -> None:
    """What it says of this node does not count."""
    inbound, events = make_numbered(3, known)
    with pytest.raises(InvalidRequest) as caught:
        inbound.check_claims("m", PeerClaims(0, 0, directory, REJOINED))
    assert caught.value.code is Code.DIRECTORY_REPLACED
    assert not events.seen and not events.stopped


@pytest.mark.parametrize(("own", "expected"), [(3, REJOINED), (3, 4), (4, 3), (REJOINED, REJOINED + 1)])
def test_rule_11_a_node_with_another_directory_than_its_peer_knows_stops_itself_and_not_the_peer(
    own: int, expected: int
) -> None:
    inbound, events = make_numbered(own, 0)
    with pytest.raises(InvalidRequest) as caught:
        inbound.check_claims("m", PeerClaims(0, 0, 9, expected))
    assert caught.value.code is Code.UNEXPECTED_MEMBER
    assert len(events.stopped) == 1 and not events.seen


def make_known(own: int, known: int) -> tuple[PeerRequests, Events]:
    """A node with the directory 3 and a uid, which knows a uid of its peer."""
    events, uids = Events(), {"n": own, "m": known}
    identity = PeerIdentity(
        "c", "g", "n", (), 1, directory_of={"n": 3, "m": 4}.__getitem__, uid_of=uids.__getitem__
    )
    return PeerRequests(identity, events, no_fetch, no_image), events


@pytest.mark.parametrize(
    ("own", "known", "claims", "assigned"),
    [
        (0, 7, PeerClaims(7, 0, 4, 3), []),
        (0, UNKNOWN_UID, PeerClaims(7, 0, 9, 3), []),  # this node lags behind the configuration of its leader
        (0, 7, PeerClaims(8, 0, 9, 3), []),  # the peer was replaced, which this node does not know yet
        (8, 0, PeerClaims(0, UNKNOWN_UID, 4, 0), []),  # the peer does not know this node yet
        (UNKNOWN_UID, 0, PeerClaims(0, UNKNOWN_UID, 4, 0), []),
        (UNKNOWN_UID, 0, PeerClaims(0, UNKNOWN_UID, 4, 3), []),
        (UNKNOWN_UID, 0, PeerClaims(0, 9, 4, 3), [9]),
    ],
)
def test_rule_15_members_of_newer_configurations_are_admitted(
    own: int, known: int, claims: PeerClaims, assigned: list[int]
) -> None:
    inbound, events = make_known(own, known)
    inbound.check_claims("m", claims)
    assert events.assigned == assigned and not events.stopped


def test_rule_15_a_peer_that_was_replaced_is_refused() -> None:
    inbound, events = make_known(0, 7)
    with pytest.raises(InvalidRequest) as caught:
        inbound.check_claims("m", PeerClaims(0, 0, 4, 3))
    assert caught.value.code is Code.MEMBER_REPLACED
    assert not events.stopped


@pytest.mark.parametrize(
    ("own", "receiver", "directory", "stops"),
    [
        (0, 7, 5, True),  # another machine has taken the place of this one
        (7, 0, 5, False),  # the peer lags behind, and means the machine before this one
        (UNKNOWN_UID, 7, 5, False),  # the peer means another machine
        (UNKNOWN_UID, 0, 0, False),
        (0, UNKNOWN_UID, 5, False),  # the addition of that machine is not committed yet
    ],
)
def test_rule_15_a_message_for_another_machine_with_this_node_id_changes_nothing(
    own: int, receiver: int, directory: int, stops: bool
) -> None:
    inbound, events = make_known(own, 0)
    with pytest.raises(InvalidRequest) as caught:
        inbound.check_claims("m", PeerClaims(0, receiver, 4, directory))
    assert caught.value.code is Code.UNEXPECTED_MEMBER
    assert bool(events.stopped) == stops and not events.assigned and not events.seen
