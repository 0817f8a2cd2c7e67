"""Mistakes of push streams and calls between nodes, as `planted` has the classic ones of Raft."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from dledger.core.messages import PositionRequest, PositionResponse
from dledger.core.rejoining import RejoinProcess
from dledger.node.members import peers
from dledger.node.members.inbound import PeerRequests
from dledger.rpc.envelope import PeerClaims
from tests.sim.planted_stalls import leader_that_commits_nothing_stays


def ended_streams_kept(patch: pytest.MonkeyPatch) -> None:
    """A stream that said GOODBYE is never removed, and ids are compared across incarnations: a node that
    rejoined with a lower one can never push again, and its heartbeats keep it leader."""
    original = PeerRequests.push_ended

    def push_opened(inbound: PeerRequests, stream: Any) -> None:
        older = inbound._streams.get(stream.peer)
        if older is not None and older.stream_id > stream.stream_id:
            stream.replace()
            return
        if older is not None:
            older.replace()
        inbound._streams[stream.peer] = stream

    def push_ended(inbound: PeerRequests, stream: Any, *, said_goodbye: bool) -> None:
        if not said_goodbye:
            original(inbound, stream, said_goodbye=said_goodbye)

    patch.setattr(PeerRequests, "push_opened", push_opened)
    patch.setattr(PeerRequests, "push_ended", push_ended)


def rejoined_leader_never_pushes(patch: pytest.MonkeyPatch) -> None:
    """`ended_streams_kept`, and a leader that commits nothing stays: writes stop for good."""
    ended_streams_kept(patch)
    leader_that_commits_nothing_stays(patch)


def lost_streams_not_reported(patch: pytest.MonkeyPatch) -> None:
    """A follower is not told that the stream of its leader broke: it waits for the whole time-out."""

    def push_ended(inbound: PeerRequests, stream: Any, *, said_goodbye: bool) -> None:
        if inbound._streams.get(stream.peer) is stream:
            del inbound._streams[stream.peer]

    patch.setattr(PeerRequests, "push_ended", push_ended)


def votes_given_up_early(patch: pytest.MonkeyPatch) -> None:
    """A question for a vote ends with the election: where disks take longer than that, nobody is elected."""
    patch.setattr(peers, "_VOTE_WITHIN_S", 0.15)


def stream_not_opened_again(patch: pytest.MonkeyPatch) -> None:
    """A leader whose stream has ended once never pushes to that follower again."""

    async def keep_stream(link: peers.PeerLink) -> None:
        await link._run_stream(link._client.open_push(link._next_stream_id()))

    patch.setattr(peers.PeerLink, "_keep_stream", keep_stream)


def earlier_directories_admitted(patch: pytest.MonkeyPatch) -> None:
    """A disk that returns after its node has rejoined votes and counts as if it were the newer one."""
    patch.setattr(PeerRequests, "check_claims", lambda *_: None)


def own_directory_not_compared(patch: pytest.MonkeyPatch) -> None:
    """The node with the earlier disk is refused, but answers others: it elects them."""
    original = PeerRequests.check_claims

    def check(inbound: PeerRequests, peer: str, claims: PeerClaims) -> None:
        original(inbound, peer, claims._replace(receiver_directory=0))

    patch.setattr(PeerRequests, "check_claims", check)


def reported_before_the_directory_is_recorded(patch: pytest.MonkeyPatch) -> None:
    """Members learn of a new directory by its messages alone: the node counts before all know it."""
    original = RejoinProcess.on_request

    def on_request(process: RejoinProcess, peer: str, request: PositionRequest) -> None:
        original(process, peer, replace(request, directory=0))

    patch.setattr(RejoinProcess, "on_request", on_request)


def directories_not_passed_on(patch: pytest.MonkeyPatch) -> None:
    """A member that rejoins is not told which directories the others have replaced."""
    original = RejoinProcess.on_response

    def on_response(process: RejoinProcess, peer: str, response: PositionResponse) -> None:
        own = tuple(pair for pair in response.directories if pair[0] == process.core.node_id)
        original(process, peer, replace(response, directories=own))

    patch.setattr(RejoinProcess, "on_response", on_response)


def reports_of_earlier_directories_kept(patch: pytest.MonkeyPatch) -> None:
    """What the earlier disk of a member contains counts as what its newest one contains."""
    original = RejoinProcess.learn

    def learn(process: RejoinProcess, directories: Mapping[str, int]) -> None:
        kept = dict(process._reports)
        original(process, directories)
        process._reports.update(kept)

    patch.setattr(RejoinProcess, "learn", learn)
