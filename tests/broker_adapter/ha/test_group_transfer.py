"""Who waits for slaves."""

from __future__ import annotations

import asyncio

from broker_adapter.log.classic.ha.group_transfer import GroupTransfer, SlaveAck

GAP = 1000
LONG_MS = 600_000


def waiting(transfer: GroupTransfer, offset: int, slaves: int = 1) -> asyncio.Task[SlaveAck]:
    return asyncio.ensure_future(transfer.wait(offset, LONG_MS, slaves))


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_each_is_answered_when_a_slave_has_its_own() -> None:
    transfer = GroupTransfer(GAP)
    transfer.acknowledged("a", 100)
    assert await transfer.wait(100, LONG_MS) is SlaveAck.PUT_OK
    tasks = [waiting(transfer, offset) for offset in (300, 200, 250)]
    await turns()
    assert transfer.waiting == 3
    transfer.acknowledged("a", 250)
    await turns()
    assert [task.done() for task in tasks] == [False, True, True] and transfer.waiting == 1
    transfer.acknowledged("b", 300)
    assert [await task for task in tasks] == [SlaveAck.PUT_OK] * 3
    assert transfer.push2slave_max_offset == 300 and transfer.counts == {"PUT_OK": 4}


async def test_without_a_slave_nobody_waits() -> None:
    transfer = GroupTransfer(GAP)
    assert await transfer.wait(1, LONG_MS) is SlaveAck.SLAVE_NOT_AVAILABLE
    transfer.acknowledged("a", 5)
    assert await transfer.wait(5 + GAP, LONG_MS) is SlaveAck.SLAVE_NOT_AVAILABLE
    task = waiting(transfer, 4 + GAP)
    await turns()
    assert not task.done()
    transfer.gone("a")  # it may come again before the time is over
    assert await transfer.wait(10, LONG_MS) is SlaveAck.SLAVE_NOT_AVAILABLE
    assert await transfer.wait(5, LONG_MS) is SlaveAck.PUT_OK  # it had it
    transfer.acknowledged("a", 4 + GAP)
    assert await task is SlaveAck.PUT_OK


async def test_the_time_of_a_wait_is_over() -> None:
    transfer = GroupTransfer(GAP)
    transfer.acknowledged("a", 0)
    assert await transfer.wait(10, 0) is SlaveAck.FLUSH_SLAVE_TIMEOUT
    assert await transfer.wait(10, 1) is SlaveAck.FLUSH_SLAVE_TIMEOUT
    assert not transfer.waiting


async def test_a_wait_whose_time_is_over_ends_no_other_wait() -> None:
    transfer = GroupTransfer(GAP)
    transfer.acknowledged("a", 0)
    before, behind = waiting(transfer, 10), waiting(transfer, 30)
    await turns()
    assert await transfer.wait(20, 1) is SlaveAck.FLUSH_SLAVE_TIMEOUT
    assert not before.done() and not behind.done()
    transfer.acknowledged("a", 30)
    assert [await before, await behind] == [SlaveAck.PUT_OK] * 2
    assert transfer.counts == {"PUT_OK": 2, "FLUSH_SLAVE_TIMEOUT": 1} and not transfer.waiting


async def test_more_than_one_slave() -> None:
    transfer = GroupTransfer(GAP)
    transfer.acknowledged("a", 100)
    assert await transfer.wait(100, LONG_MS, 2) is SlaveAck.SLAVE_NOT_AVAILABLE
    transfer.acknowledged("b", 50)
    task = waiting(transfer, 90, 2)
    transfer.acknowledged("a", 200)
    await turns()
    assert not task.done()
    transfer.acknowledged("b", 90)
    assert await task is SlaveAck.PUT_OK
    # What one slave has had counts for one, wherever that slave is now; for two both have to be there.
    transfer.gone("b")
    assert await transfer.wait(90, LONG_MS, 2) is SlaveAck.SLAVE_NOT_AVAILABLE


async def test_an_acknowledgement_is_never_taken_back() -> None:
    transfer = GroupTransfer(GAP)
    transfer.acknowledged("a", 100)
    transfer.acknowledged("a", 50)
    assert transfer.push2slave_max_offset == 100 and transfer.in_sync(100 + GAP - 1) == 1


async def test_who_waits_when_it_is_closed_is_told_that_nobody_knows() -> None:
    transfer = GroupTransfer(GAP)
    transfer.acknowledged("a", 0)
    task = waiting(transfer, 10)
    await turns()
    transfer.close()
    assert await task is SlaveAck.FLUSH_SLAVE_TIMEOUT
    assert await transfer.wait(10, LONG_MS) is SlaveAck.SLAVE_NOT_AVAILABLE


async def test_waits_that_are_given_up_leave_nothing() -> None:
    transfer = GroupTransfer(GAP)
    transfer.acknowledged("a", 0)
    tasks = [waiting(transfer, offset) for offset in range(1, 50)]
    await turns()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not transfer.waiting
