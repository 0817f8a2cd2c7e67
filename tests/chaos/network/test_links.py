"""Links over real sockets: what each impairment does to traffic, and what the counters say of it."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from chaos.network.impairment import Impairment, LinkCounters, combined
from chaos.network.links import MAX_CONNECTIONS, MAX_WAITING_BYTES, Links
from tests.chaos.network.helpers import call, linked
from tests.node.local import until
from tests.process.cluster import free_ports

A_TO_B, B_TO_A = ("a", "b"), ("b", "a")


async def test_without_trouble_all_bytes_pass_and_are_counted() -> None:
    async with linked() as links, call(links) as one:
        text = bytes(range(256)) * 4000
        one.writer.write(text)
        assert await one.reader.readexactly(len(text)) == text
        assert links.counters(A_TO_B).passed_bytes == len(text)
        assert links.counters(B_TO_A).passed_bytes == len(text)
        assert links.counters(A_TO_B).connections == 1


async def test_a_cut_link_holds_all_back_and_goes_on_where_it_was() -> None:
    async with linked() as links, call(links) as one:
        assert await one.ask(b"before") == b"before"
        fault = links.begin(Impairment(cut=True), [A_TO_B])
        asked = asyncio.create_task(one.ask(b"during"))
        await until(lambda: links.since(fault).held > 0)
        assert not asked.done()
        done = links.end(fault)
        assert await asked == b"during"
        assert done.hurt_by(fault.impairment) and done.passed == 0


async def test_a_one_way_cut_stops_answers_on_connections_of_the_other_side() -> None:
    """b hears nothing of a: neither what a asks, nor what a answers."""
    async with linked() as links, call(links, "b", "a") as of_b:
        fault = links.begin(Impairment(cut=True), [A_TO_B])
        asked = asyncio.create_task(of_b.ask(b"hello"))
        await until(lambda: links.since(fault).held > 0)
        assert links.counters(B_TO_A).passed == 1, "the question arrived"
        assert not asked.done(), "the answer did not"
        links.heal()
        assert await asked == b"hello"


async def test_nobody_connects_over_a_cut_link() -> None:
    async with linked() as links:
        fault = links.begin(Impairment(cut=True), [B_TO_A])
        async with call(links) as one:
            asked = asyncio.create_task(one.ask(b"hello"))
            await until(lambda: links.since(fault).held > 0)
            assert links.counters(A_TO_B).passed == 0
            links.end(fault)
            assert await asked == b"hello"


async def test_the_end_of_a_process_does_not_pass_a_cut_link() -> None:
    async with linked() as links, call(links) as one:
        await one.ask(b"hello")
        fault = links.begin(Impairment(cut=True), [A_TO_B])
        one.writer.close()
        await until(lambda: links.since(fault).held > 0)
        links.end(fault)
        assert await one.reader.read() == b""


async def test_hang_swallows_and_breaks_the_connection_in_the_end() -> None:
    async with linked() as links, call(links) as one:
        await one.ask(b"hello")
        fault = links.begin(Impairment(hang=True), [A_TO_B])
        one.writer.write(b"x" * (4 * MAX_WAITING_BYTES))
        await one.writer.drain()
        await until(lambda: links.since(fault).swallowed > 2)
        done = links.end(fault)
        assert done.hurt_by(fault.impairment) and done.passed == 0
        assert await one.is_reset()
    async with linked() as links, call(links) as one:
        assert await one.ask(b"again") == b"again"


async def test_reset_breaks_connections_and_refuses_new_ones_until_it_is_over() -> None:
    async with linked() as links, call(links) as one:
        await one.ask(b"hello")
        fault = links.begin(Impairment(reset=True), [A_TO_B])
        assert await one.is_reset()
        async with call(links) as other:
            assert await other.is_reset()
        assert links.end(fault).hurt_by(fault.impairment)
        async with call(links) as third:
            assert await third.ask(b"again") == b"again"


async def test_a_reset_chance_of_one_breaks_the_connection_with_its_next_piece() -> None:
    async with linked() as links, call(links) as one:
        await one.ask(b"hello")
        fault = links.begin(Impairment(reset_chance=1.0), [B_TO_A])
        one.writer.write(b"x")
        assert await one.is_reset()
        assert links.since(fault).resets == 1


async def test_delay_keeps_the_order_and_ends_with_the_fault() -> None:
    async with linked() as links, call(links) as one:
        fault = links.begin(Impairment(delay_ms=600_000, jitter_ms=1000), [A_TO_B])
        for n in range(50):
            one.writer.write(b"%04d" % n)
            await asyncio.sleep(0)
        asked = asyncio.create_task(one.reader.readexactly(200))
        await until(lambda: links.counters(A_TO_B).connections == 1)
        links.end(fault)
        assert await asked == b"".join(b"%04d" % n for n in range(50))


async def test_a_small_delay_delays_and_says_so() -> None:
    async with linked() as links, call(links) as one:
        loop = asyncio.get_running_loop()
        fault = links.begin(Impairment(delay_ms=30), [A_TO_B, B_TO_A])
        began = loop.time()
        assert await one.ask(b"hello") == b"hello"
        assert loop.time() - began >= 0.06
        assert links.end(fault).delayed == 2


async def test_a_throttled_link_passes_no_more_than_its_rate() -> None:
    async with linked() as links, call(links) as one:
        loop = asyncio.get_running_loop()
        fault = links.begin(Impairment(bytes_per_second=1 << 20), [A_TO_B])
        began, text = loop.time(), b"x" * (256 << 10)
        one.writer.write(text)
        assert await one.reader.readexactly(len(text)) == text
        # The last piece, of 64 KiB at most, begins when those before it have had their time.
        assert loop.time() - began >= 192 / 1024
        assert links.end(fault).delayed > 0


async def test_a_cut_link_holds_a_bounded_number_of_bytes() -> None:
    async with linked() as links, call(links) as one:
        await one.ask(b"hello")
        fault = links.begin(Impairment(cut=True), [A_TO_B])
        text = b"x" * (64 * MAX_WAITING_BYTES)
        one.writer.write(text)
        await until(lambda: links.since(fault).held > 0)
        assert one.writer.transport.get_write_buffer_size() > 32 * MAX_WAITING_BYTES
        links.end(fault)
        got = 0
        while got < len(text):
            got += len(await one.reader.read(1 << 20))


async def test_connections_beyond_the_limit_are_reset() -> None:
    async with linked() as links:
        links.begin(Impairment(cut=True), [A_TO_B])
        callers = [call(links) for _ in range(MAX_CONNECTIONS + 1)]
        for one in callers[:-1]:
            await one.__aenter__()
        await until(lambda: links.counters(A_TO_B).connections == MAX_CONNECTIONS)
        last = await callers[-1].__aenter__()
        assert await last.is_reset()
        for one in callers:
            await one.__aexit__(None, None, None)


async def test_two_faults_on_one_link_end_one_by_one() -> None:
    async with linked() as links, call(links) as one:
        first = links.begin(Impairment(cut=True), [A_TO_B])
        second = links.begin(Impairment(cut=True), [A_TO_B, B_TO_A])
        asked = asyncio.create_task(one.ask(b"hello"))
        await until(lambda: links.since(second).held > 0)
        links.end(first)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not asked.done() and links.faults == (second,)
        links.end(second)
        assert await asked == b"hello"


async def test_a_fault_on_an_idle_link_hurt_nobody() -> None:
    async with linked() as links:
        for impairment in (
            Impairment(cut=True),
            Impairment(hang=True),
            Impairment(delay_ms=5),
            Impairment(reset=True),
        ):
            fault = links.begin(impairment, [A_TO_B])
            assert not links.end(fault).hurt_by(impairment)


async def test_links_that_do_not_exist_are_refused() -> None:
    async with linked() as links:
        with pytest.raises(ValueError, match="'a', 'c'"):
            links.begin(Impairment(cut=True), [("a", "c")])


async def test_a_target_that_is_down_breaks_the_connection() -> None:
    down = f"127.0.0.1:{free_ports(1)[0]}"
    async with Links(["a"], {"b": down}, Random(7)) as links, call(links) as one:
        assert await one.is_reset()


def test_impairments_combine() -> None:
    both = combined(
        [Impairment(delay_ms=10, bytes_per_second=500), Impairment(delay_ms=5, bytes_per_second=100)]
    )
    assert both == Impairment(delay_ms=15, bytes_per_second=100)
    assert combined([Impairment(reset_chance=0.5), Impairment(reset_chance=0.5)]).reset_chance == 0.75
    assert combined([]) == Impairment()
    with pytest.raises(ValueError, match="reset_chance"):
        Impairment(reset_chance=2)
    with pytest.raises(ValueError, match="negative"):
        Impairment(delay_ms=-1)


def test_counters_subtract_and_add_up() -> None:
    assert LinkCounters(passed=5, held=2) - LinkCounters(passed=3) == LinkCounters(passed=2, held=2)
    assert LinkCounters.total([LinkCounters(passed=1), LinkCounters(passed=2)]) == LinkCounters(passed=3)


async def test_another_port_of_a_target_shares_its_links() -> None:
    """What is cut between two nodes is cut on every port that they have."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    links = Links(["a", "b"], {"a": address, "b": address, "b/ha": address}, Random(1))
    async with server, links:
        assert set(links.addresses_of("a")) == {"b", "b/ha"}
        assert set(links.addresses_of("b")) == {"a"}, "nobody reaches himself over a link"
        host, _, port = links.addresses_of("a")["b/ha"].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"before")
        assert await reader.readexactly(6) == b"before"
        fault = links.begin(Impairment(cut=True), [A_TO_B])
        writer.write(b"during")
        await until(lambda: links.since(fault).held > 0)
        links.end(fault)
        assert await reader.readexactly(6) == b"during"
        writer.close()
