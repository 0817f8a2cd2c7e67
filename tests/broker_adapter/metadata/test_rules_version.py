"""Logs of an older release keep the meaning that its nodes gave them; a newer release's log is refused."""

from __future__ import annotations

import asyncio
import json
import struct

import pytest
from zlib_ng.zlib_ng import crc32

from broker_adapter.errors import NotMaster
from broker_adapter.metadata.commands import NO_GENERATION, NewGeneration, SetRulesVersion
from broker_adapter.metadata.proposals import Proposals
from broker_adapter.metadata.records import encode
from broker_adapter.metadata.rules_upgrade import RulesUpgrade
from broker_adapter.metadata.state import MetadataState
from dledger import RULES_VERSION, Code, StorageError
from tests.broker_adapter.metadata.samples import commit, put_group, put_topic


def image_of_0_1_0() -> bytes:
    payload = json.dumps({"appliedIndex": 7, "topics": [], "groups": []}).encode()
    return struct.pack(">4sBI", b"DMSI", 1, crc32(payload)) + payload


def test_a_log_and_an_image_of_0_1_0_have_the_first_rules() -> None:
    state = MetadataState()
    assert state.rules_version == 1
    state.load(image_of_0_1_0())
    assert (state.rules_version, state.applied_index) == (1, 7)


def test_the_entry_raises_the_rules_for_what_follows_it_and_images_keep_them() -> None:
    state, copy = MetadataState(), MetadataState()
    state.apply(5, encode(SetRulesVersion(RULES_VERSION)))
    state.apply(6, encode(SetRulesVersion(1)))
    assert state.rules_version == RULES_VERSION
    copy.load(state.save())
    assert copy.rules_version == RULES_VERSION
    copy.load(b"")
    assert copy.rules_version == 1


def test_rules_of_a_newer_release_in_the_log_or_an_image_stop_the_node_with_the_fix() -> None:
    state = MetadataState()
    with pytest.raises(StorageError, match=f"rules version {RULES_VERSION + 1}.*install") as caught:
        state.apply(5, encode(SetRulesVersion(RULES_VERSION + 1)))
    assert caught.value.code is Code.UNSUPPORTED_VERSION
    payload = json.dumps(
        {"appliedIndex": 7, "topics": [], "groups": [], "rulesVersion": RULES_VERSION + 1}
    ).encode()
    with pytest.raises(StorageError, match="install"):
        state.load(struct.pack(">4sBI", b"DMSI", 2, crc32(payload)) + payload)


class Log:
    """Applies what it is given at once; refuses the first `refusals` appends."""

    def __init__(self, refusals: int = 0) -> None:
        self.refusals = refusals
        self.appended = 0
        self.state = MetadataState(
            on_result=lambda request, outcome: self.proposals.on_result(request, outcome)
        )
        self.proposals = Proposals(self.append, new_request_id=lambda: self.appended.to_bytes(16, "big"))
        self.applied = asyncio.Event()

    async def append(self, body: bytes) -> int:
        if self.refusals:
            self.refusals -= 1
            raise NotMaster("not open yet")
        self.appended += 1
        self.state.apply(self.appended, body)
        self.applied.set()
        return self.appended


async def test_a_new_master_raises_the_rules_once_even_if_writes_open_later() -> None:
    log = Log(refusals=3)
    upgrade = RulesUpgrade(log.state, log.proposals)
    upgrade.start(1, 1)
    await log.applied.wait()
    await upgrade.stop()
    assert log.state.rules_version == RULES_VERSION
    upgrade.start(2, 2)
    await upgrade.stop()
    assert log.appended == 1


async def test_a_master_that_steps_down_stops_raising_the_rules() -> None:
    log = Log(refusals=1 << 30)
    upgrade = RulesUpgrade(log.state, log.proposals)
    upgrade.start(1, 1)
    await asyncio.sleep(0)
    await upgrade.stop()
    assert log.state.rules_version == 1 and not log.appended


def upgraded(state: MetadataState) -> MetadataState:
    """After the first entry of a master of this release."""
    state.apply(state.applied_index + 1, encode(SetRulesVersion(RULES_VERSION)))
    return state


@pytest.mark.parametrize("version", [1, 2])
def test_an_old_image_with_members_loads_and_the_raise_lets_its_group_commit(version: int) -> None:
    """The image is as release 0.1.0, or a node with rules version 2, wrote it."""
    value = {
        "appliedIndex": 3,
        "topics": [json.loads(encode(put_topic("t"))[20:])],
        "groups": [
            {
                "config": json.loads(encode(put_group("g"))[20:]),
                "generation": 2,
                "assignment": {"topics": ["t"], "members": {"10.0.0.1@7": [[0, [0, 1]]]}},
                "offsets": {"t": [[0, 5]]},
            }
        ],
        **({"rulesVersion": 2} if version == 2 else {}),
    }
    payload = json.dumps(value).encode()
    state = MetadataState()
    state.load(struct.pack(">4sBI", b"DMSI", version, crc32(payload)) + payload)
    assert state.rules_version == version
    group = state.group("g")
    assert group is not None and group.members == {"10.0.0.1@7"}
    state.apply(4, encode(commit("g", NO_GENERATION, ("t", 0, 6))))
    assert state.group("g") == group, "0.1.0 has refused this commit, and so must all nodes"
    upgraded(state).apply(6, encode(commit("g", NO_GENERATION, ("t", 0, 7))))
    group = state.group("g")
    assert group is not None and (group.offsets, group.members) == ({("t", 0): 7}, frozenset())


def test_nodes_that_resume_anywhere_in_an_old_log_with_members_agree() -> None:
    log = [
        put_topic("t"),
        put_group("g"),
        NewGeneration("g", frozenset({"a"})),
        commit("g", 2, ("t", 0, 5)),
        NewGeneration("g", frozenset({"a", "b"})),
        commit("g", 2, ("t", 0, 9)),  # of a member that has not learned of the new generation
        commit("g", NO_GENERATION, ("t", 0, 8)),
        commit("g", 4, ("t", 0, 6)),
        SetRulesVersion(RULES_VERSION),
        NewGeneration("g", frozenset({"a"})),
        commit("g", NO_GENERATION, ("t", 0, 7)),
    ]
    whole = MetadataState()
    offsets = []
    for index, command in enumerate(log):
        whole.apply(index, encode(command))
        group = whole.group("g")
        offsets.append(None if group is None else group.offsets.get(("t", 0)))
    assert offsets == [None, None, None, 5, 5, 5, 5, 6, 6, 6, 7]
    for resumed_at in range(len(log)):
        before, after = MetadataState(), MetadataState()
        for index, command in enumerate(log[:resumed_at]):
            before.apply(index, encode(command))
        after.load(before.save())
        for index, command in enumerate(log[resumed_at:], resumed_at):
            after.apply(index, encode(command))
        assert after.save() == whole.save(), resumed_at
