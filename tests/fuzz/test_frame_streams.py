"""Ports of the remoting protocol survive frames that are valid or nearly so."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_adapter.remoting.command import RemotingCommand, encode
from tests.fuzz.frame_streams import PORTS, BrokerPort, NameServerPort, Streams, wanted_of

_FRAMES = 2_000


@pytest.mark.process
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("fuzz-calls")
@pytest.mark.parametrize("port", PORTS)
async def test_streams_of_frames_are_answered_or_closed(
    port: type[BrokerPort | NameServerPort], tmp_path: Path
) -> None:
    streams = Streams(20260101, tmp_path)
    await streams.run(port, _FRAMES)
    assert streams.counts["closed: no frame"] and not streams.counts["closed: else"]
    assert streams.counts["code 0"] > 100 and streams.counts["code 1"]


def test_what_a_stream_has_to_lead_to() -> None:
    asked, one_way = encode(RemotingCommand(10, opaque=7)), encode(RemotingCommand.oneway(10))
    assert wanted_of(asked + one_way + asked) == ({7: 2}, False, True)
    assert wanted_of(asked + asked[:9]) == ({7: 1}, False, False)
    assert wanted_of(asked + b"\xff" * 9) == ({7: 1}, True, False)
