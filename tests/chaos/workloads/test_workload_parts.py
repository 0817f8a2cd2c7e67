"""Messages that can be recognised, and loads that keep their pace."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest

from chaos.trace.schema import problems
from chaos.workloads import closing
from chaos.workloads.closing import ClosedInTime
from chaos.workloads.log import AppendMode
from chaos.workloads.messages import UNREADABLE, Bodies, digest, lines_of, number_of, payload_of
from chaos.workloads.pacing import MAX_UNDER_WAY, Pacer, while_running
from chaos.workloads.spec import LoadSpec, Setting
from chaos.workloads.tally import LoadTally
from tests.chaos.workloads.load_world import World
from tests.node.local import until

Step = Callable[[], Awaitable[bool]]


def test_a_message_is_recognised_by_its_number() -> None:
    bodies = Bodies(Random(1), 50)
    for mid in (0, 7, (1 << 45) + 3):
        assert number_of(bodies.make(mid)) == mid
    assert [number_of(body) for body in (b"", b"7", b"x 7", b"-1 x", b"9" * 30 + b" x")] == [UNREADABLE] * 5


def test_lines_of_a_file_are_sent_in_turn(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"one\ntwo\n")
    setting = Setting(LoadSpec(), Random(1), lambda name: pytest.fail(name), lines_of(path))
    one, other = (Bodies(Random(1), 50, setting.payloads()) for _ in range(2))
    assert [one.make(1), other.make(2), one.make(3)] == [b"1 one", b"2 two", b"3 one"]
    assert payload_of(one.make(4)) == b"two"
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="no lines"):
        lines_of(path)


def test_equal_seeds_make_equal_messages() -> None:
    one, other = Bodies(Random(5), 50), Bodies(Random(5), 50)
    assert [one.make(n) for n in range(20)] == [other.make(n) for n in range(20)]
    assert digest(b"x") != digest(b"y") and len(digest(b"x")) == 16


def test_the_mean_size_is_what_open_loops_reckon_with() -> None:
    spec, rng = LoadSpec(clients=2, rate=1000, max_batch=8), Random(3)
    sizes = [spec.draw_size(rng) for _ in range(20_000)]
    assert max(sizes) == 8 and sizes.count(1) > 10_000
    assert sum(sizes) / len(sizes) == pytest.approx(spec.mean_size, rel=0.05)
    assert spec.clients * spec.rate_of_client(spec.mean_size) * spec.mean_size == pytest.approx(spec.rate)


def test_the_pieces_of_a_stream_are_as_much_rarer_as_they_are_longer() -> None:
    spec = LoadSpec(clients=3, rate=900)
    per_second = {way: spec.rate_of_client(way.messages(spec)) * way.messages(spec) for way in AppendMode}
    assert per_second == pytest.approx(dict.fromkeys(AppendMode, 300))
    assert (
        spec.rate_of_client(AppendMode.STREAM.messages(spec))
        < spec.rate_of_client(AppendMode.PLAIN.messages(spec)) / 4
    )


def test_a_tally_counts_batches_as_one_operation_and_all_their_messages() -> None:
    tally = LoadTally()
    for second in range(3):
        tally.ok(0, second * 10**9, 4)
    assert tally.acknowledged_between(0, 10**9) == 8 and tally.operations_between(0, 10**9) == 2
    assert tally.acknowledged_between(0, 10**18) == 12, "however long a machine has been up"


def test_a_tally_knows_how_much_was_read_in_a_time() -> None:
    tally = LoadTally()
    for second in range(4):
        tally.count_read(second * 10**9, 5)
    assert tally.read == 20 and tally.read_between(10**9, 2 * 10**9) == 10


class Slow:
    """Steps that do not end before they may."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.under_way = self.most = self.done = 0

    def worker(self) -> Step:
        async def step() -> bool:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            await self.may_end.wait()
            self.under_way -= 1
            self.done += 1
            return True

        return step


async def test_a_closed_loop_has_so_many_under_way_and_finishes_them() -> None:
    stop, slow = asyncio.Event(), Slow()
    running = asyncio.create_task(Pacer(3, 0, Random(1), LoadTally()).run(stop, slow.worker))
    await until(lambda: slow.under_way == 3)
    stop.set()
    slow.may_end.set()
    await running
    assert slow.most == slow.done == 3 and slow.under_way == 0


async def test_an_open_loop_goes_on_without_answers_up_to_its_limit() -> None:
    stop, slow = asyncio.Event(), Slow()
    tally = LoadTally()
    pace = Pacer(1, 100_000, Random(1), tally)
    running = asyncio.create_task(pace.run(stop, slow.worker))
    await until(lambda: tally.shed > 0)
    assert slow.under_way == MAX_UNDER_WAY
    stop.set()
    slow.may_end.set()
    await running
    assert slow.under_way == 0


async def test_work_ends_with_the_stop_or_with_its_error() -> None:
    stop = asyncio.Event()

    async def for_ever() -> None:
        await asyncio.Event().wait()

    async def broken() -> None:
        raise ValueError("broken")

    running = asyncio.create_task(while_running(stop, for_ever()))
    stop.set()
    await running
    with pytest.raises(ValueError, match="broken"):
        await while_running(asyncio.Event(), broken())


async def test_a_client_that_never_closes_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, LoadSpec())

    class Hung:
        async def __aenter__(self) -> str:
            return "opened"

        async def __aexit__(self, *about: object) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(closing, "CLOSE_S", 0.01)
    writer = world.writer("client:p0")
    async with ClosedInTime("p0", Hung(), writer, world.setting.tally) as client:
        assert client == "opened"
    assert world.setting.tally.unclosed == ["client p0 had not closed after 0.01 s"]
    writer.close()
    lines = [json.loads(line) for line in writer.path.read_text().splitlines()]
    assert not [problem for line in lines for problem in problems(line)]
    assert [(line["node"], line["size"]) for line in lines if line.get("e") == "unclosed"] == [
        ("p0", 10_000_000)
    ]
