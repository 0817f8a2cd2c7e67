"""On a real node: a group made by use goes with its offsets, and each kind of use keeps it."""

from __future__ import annotations

from pathlib import Path

from broker_adapter.api import GroupConfig, OutgoingMessage, QueueOffset
from broker_adapter.errors import Status
from broker_adapter.metadata.commands import ExpireGroup
from tests.broker_adapter.cluster import brokers
from tests.broker_adapter.sending import send_to


async def test_a_group_made_by_use_expires_unless_it_is_used_or_is_an_administrators(tmp_path: Path) -> None:
    settings = {"auto_create_groups_expire_ms": 600_000}  # the looks are made here
    async with brokers(tmp_path, 1, settings=settings) as cluster:
        program = await cluster.master()
        broker, delivery, expiry, use = (
            program.broker,
            program.delivery,
            program.group_expiry,
            program.group_use,
        )
        await broker.put_group(GroupConfig("ours"))
        await send_to(program, "T", [OutgoingMessage(b"1"), OutgoingMessage(b"2")], queue_id=0)
        place = [QueueOffset("T", 0, 1)]
        for name in ("committed", "gone", "heard", "pulled", "asked"):
            await broker.commit_offsets(name, place)
        received = await delivery.receive("received", "T", client_id="c")
        assert received and program.delivery_state.has_pending("received")
        names = {group.name for group in broker.groups()}
        assert all(use.idle_ms(name) < 60_000 for name in names - {"ours"}), "creation is use"

        async def looks() -> set[str]:
            for _ in range(2):
                await expiry.sweep()
            return {group.name for group in broker.groups()}

        assert await looks() == names
        use._since_ms -= 700_000
        use._used_ms.clear()  # a long time passes
        await broker.commit_offsets("committed", place)
        delivery.heard_of("c", "heard")
        await broker.pull("T", 0, 0, group="pulled")
        await broker.offsets("asked")
        assert await looks() == names - {"gone"}
        assert expiry.expired == 1
        await broker.commit_offsets("gone", [QueueOffset("T", 0, 0)])
        assert await broker.offsets("gone") == [QueueOffset("T", 0, 0)]

        found = program.metadata.group("received")
        assert found is not None
        seen = ExpireGroup("received", found.generation, program.metadata.progress(found))
        assert (await program.proposals.propose(seen)).status is Status.GENERATION_STALE, "in flight"
        await delivery.ack("received", "T", [one.handle for one in received])
        use._used_ms.clear()
        before = program.delivery_state.of_group("received").progress
        assert before > 0 and "received" not in await looks()
        assert program.delivery_state.of_group("received").progress == 0, "its cursors went, too"
