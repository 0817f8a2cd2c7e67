"""What a slave knows of its master: who it is, what it had, and whether the log has all that it said."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker_adapter.log.classic.ha.client import HaClientState, HaClientStatus
from broker_adapter.log.classic.node.replication import Replication


class Client:
    """Connected to a master by handshake until it is stopped."""

    def __init__(self, master_end: int | None) -> None:
        self.masters: list[str | None] = []
        self.set_master = self.masters.append
        self._now = HaClientStatus(HaClientState.TRANSFER, "m:1", 0, 0, 0, 1, 0.0, True, master_end, "")

    def status(self) -> HaClientStatus:
        return self._now

    async def stop(self) -> None:
        self._now = self._now._replace(state=HaClientState.SHUTDOWN, by_handshake=False, master_end=None)


def following(client: Client, ha_master: str = "", *, begin: int = 0, end: int = 100) -> Replication:
    log: Any = SimpleNamespace(begin_offset=begin, end_offset=end)
    settings: Any = SimpleNamespace(ha_master=ha_master)
    own: Any = None
    replication = Replication(log, settings, own, None, None, lambda: None, lambda error: None)
    replication._client = cast(Any, client)
    return replication


async def test_what_its_master_had_is_known_when_it_follows_no_more() -> None:
    """A change of roles that fails leaves it without a role: `role master` is given again."""
    replication = following(Client(150))
    await replication.stop()
    assert replication.lacking() == 50


@pytest.mark.parametrize(("configured", "told"), [("", ["n:1", None]), ("m:1", [])])
def test_a_name_server_names_the_master_unless_the_configuration_does(
    configured: str, told: list[str | None]
) -> None:
    client = Client(None)
    replication = following(client, configured)
    for address in ("n:1", "n:1", ""):
        replication.set_master(address)
    assert client.masters == told


@pytest.mark.parametrize(("begin", "has_all"), [(0, True), (1 << 20, False)])
async def test_a_log_without_its_begin_lacks_commands_that_its_master_has(begin: int, has_all: bool) -> None:
    client = Client(100)
    replication = following(client, begin=begin)
    assert replication.has_all is has_all
    await client.stop()
    assert not replication.has_all, "nobody knows which master is followed next"
