"""Mistakes of push streams and calls between nodes, as `planted` has the classic ones of Raft."""

from __future__ import annotations

from typing import Any

import pytest

from dledger.node.members import peers
from dledger.node.members.inbound import PeerRequests
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
