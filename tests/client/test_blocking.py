"""The blocking face: same calls, from plain threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Queue
from typing import Any, cast

import pytest

from dledger import (
    Client,
    Code,
    DLedgerError,
    Indeterminate,
    InvalidRequest,
    Limits,
    NodeStatus,
    SessionExpired,
)
from dledger.client.blocking import SUBMITS_PER_SYNC
from dledger.infra.loops.loop_thread import LoopThread
from tests.client.fake_cluster import FakeCluster, refuse


class ClusterThread:
    """A fake cluster with an event loop of its own, as real servers have."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.cluster = FakeCluster(3)
        self._run(self.cluster.__aenter__())

    def _run(self, work: object) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()  # type: ignore[arg-type]

    def stop(self) -> None:
        self._run(self.cluster.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    thread = ClusterThread()
    yield thread.cluster
    thread.stop()


@pytest.fixture
def client(cluster: FakeCluster) -> Iterator[Client]:
    with Client(cluster.addresses, timeout=5.0) as client:
        yield client


def test_append_and_read(client: Client, cluster: FakeCluster) -> None:
    one = client.append(b"one")
    many = client.append_many([b"two", b"three"])
    entries = list(client.read())
    assert [(e.index, e.term, e.pos) for e in entries] == [tuple(r) for r in (one, *many)]
    assert [e.body for e in client.read(count=2)] == [b"one", b"two"]
    assert client.read_index() == many[-1].index


def test_many_threads_append_through_one_session(client: Client, cluster: FakeCluster) -> None:
    def work(name: int) -> list[int]:
        return [client.append(b"%d-%d" % (name, i)).index for i in range(30)]

    with ThreadPoolExecutor(8) as pool:
        indexes = list(pool.map(work, range(8)))
    assert all(mine == sorted(mine) for mine in indexes)
    assert len(cluster.log.bodies) == len({i for mine in indexes for i in mine}) == 240
    assert cluster.servers[0].opens == 1


def test_submit_keeps_the_order_of_its_thread(cluster: FakeCluster) -> None:
    with Client(cluster.addresses, limits=Limits(max_pending_bytes=2000)) as client:
        futures = [client.submit(b"%04d" % i) for i in range(500)]
        results = [future.result() for future in futures]
    assert cluster.log.bodies == [b"%04d" % i for i in range(500)]
    assert [r.index for r in results] == sorted(r.index for r in results)


def test_errors_are_those_of_the_async_client(client: Client, cluster: FakeCluster) -> None:
    client.append(b"a")
    with pytest.raises(InvalidRequest):
        client.append("text")  # type: ignore[arg-type]
    cluster.log.sessions.clear()
    with pytest.raises(SessionExpired):
        client.append(b"b")
    with pytest.raises(SessionExpired):
        client.append_many([b"b"])
    client.new_session()
    client.append(b"c")
    assert cluster.log.bodies == [b"a", b"c"]


@pytest.mark.parametrize("timeout", ["5", b"5", [5]])
def test_a_timeout_that_is_no_number_is_refused_at_once(client: Client, timeout: Any) -> None:
    for append in (client.append, client.submit):
        with pytest.raises(InvalidRequest, match="a timeout must be a number of seconds"):
            append(b"x", timeout=timeout)
    with pytest.raises(InvalidRequest, match="a timeout must be a number of seconds"):
        client.append_many([b"x"], timeout=timeout)


@pytest.mark.parametrize(
    "wrong", [{"limits": {}}, {"group": 5}, {"tls": "ca.pem"}, {"timeout": "3"}, {"stall_timeout": None}]
)
def test_options_of_another_type_are_refused_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"{next(iter(wrong))} must be"):
        Client("127.0.0.1:1", **wrong)


def test_a_server_that_is_not_among_the_configured_ones_is_reached_or_named(client: Client) -> None:
    for request in (client.scrub, client.backup):
        with pytest.raises(DLedgerError, match=r"127\.0\.0\.1:1: "):
            list(request("127.0.0.1:1"))  # type: ignore[operator]
        with pytest.raises(ValueError, match="is not an address"):
            list(request(None))  # type: ignore[operator]


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda client: list(client.read("0")), "from_index must be an integer"),
        (lambda client: list(client.read(None)), "from_index must be an integer"),
        (lambda client: list(client.read(1 << 63)), "from_index must be a 64-bit integer of at least -1"),
        (lambda client: list(client.read(-2)), "from_index must be a 64-bit integer of at least -1"),
        (lambda client: list(client.read(0, 0)), "count must be a 64-bit integer of at least 1"),
        (lambda client: next(client.follow("0")), "from_index must be an integer"),
        (lambda client: list(client.read(server=5)), "5 is not an address"),
        (lambda client: list(client.read(timeout=0)), "timeout must be more than 0"),
        (lambda client: client.leader(timeout=0), "timeout must be more than 0"),
        (lambda client: client.status(timeout="1"), "timeout must be a number"),
        (lambda client: client.read_index(timeout="1"), "timeout must be a number"),
        (lambda client: client.new_session(timeout=0), "timeout must be more than 0"),
        (lambda client: client.open_session(timeout="1"), "timeout must be a number"),
        (lambda client: list(client.scrub("127.0.0.1:1", bytes_per_second=-1)), "bytes_per_second must be"),
        (lambda client: client.transfer_leadership(None), "id of a node must be a text"),
        (lambda client: client.transfer_leadership(""), "id of a node must be a text"),
        (lambda client: client.purge(5, before_age_ms=5), "either before_index or before_age_ms"),
        (lambda client: client.purge("5"), "before_index must be an integer"),
        (lambda client: client.purge(-1), "before_index must be a 64-bit integer of at least 0"),
        (lambda client: client.purge(before_age_ms=1.5), "before_age_ms must be an integer"),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(
    client: Client, call: Callable[[Any], object], name: str
) -> None:
    with pytest.raises((InvalidRequest, ValueError), match=name):
        call(client)


@pytest.mark.parametrize(
    "wrong", [{"max_inflight_batches": 1.5}, {"gather_bytes": "1"}, {"max_batch_bytes": None}]
)
def test_limits_are_integers(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"{next(iter(wrong))} must be an integer"):
        Limits(**wrong)


def test_servers_are_addresses() -> None:
    with pytest.raises(TypeError, match="servers must be a sequence"):
        Client(cast(Any, None))
    for servers in ("http://127.0.0.1:20911", "h1 h2:1"):
        with pytest.raises(ValueError, match="is not an address"):
            Client(servers)


def test_bodies_that_are_no_sequence_are_refused(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="bodies must be a sequence of bytes"):
        client.append_many(cast(Any, None))


@pytest.mark.parametrize("servers", ["localhost", "localhost:abc", "h:0", "h:65536", ":1", [("h", 1)]])
def test_a_server_without_host_and_port_is_refused_at_once(servers: Any) -> None:
    with pytest.raises(ValueError, match="is not an address of the form host:port"):
        Client(servers)


def test_sessions(client: Client, cluster: FakeCluster) -> None:
    with client.session() as one, client.open_session() as two:
        assert two.session_id is not None
        one.append(b"1")
        two.append_many([b"2", b"3"])
        assert one.session_id not in (None, two.session_id)
    assert cluster.log.bodies == [b"1", b"2", b"3"]


def test_without_a_session_a_lost_answer_is_indeterminate(cluster: FakeCluster) -> None:
    cluster.servers[0].answers.append(refuse(Code.TERM_CHANGED))
    with Client(cluster.addresses, session=False) as client, pytest.raises(Indeterminate):
        client.append(b"a")


def test_the_cluster_can_be_looked_at_and_led(client: Client, cluster: FakeCluster) -> None:
    assert client.leader().node_id == "n0"
    assert client.transfer_leadership("n1") == (2, "n1")
    assert client.leader().node_id == "n1"
    assert all(isinstance(status, NodeStatus) for status in client.status().values())


def test_follow_is_ended_by_close_from_another_thread(cluster: FakeCluster) -> None:
    client = Client(cluster.addresses)
    client.append_many([b"1", b"2"])
    got: list[bytes] = []
    seen = threading.Event()

    def follow() -> None:
        for entry in client.follow(0):
            got.append(entry.body)
            if len(got) == 2:
                seen.set()

    thread = threading.Thread(target=follow)
    thread.start()
    assert seen.wait(5)
    client.close()
    thread.join(5)
    assert not thread.is_alive()
    assert got == [b"1", b"2"]


def test_a_read_may_be_left_early(client: Client) -> None:
    client.append_many([b"x"] * 500)
    follow = client.follow(0)
    assert next(follow).body == b"x"
    follow.close()  # type: ignore[attr-defined]
    assert next(client.read()).body == b"x"


def in_callback(client: Client, call: Callable[[], object]) -> object:
    """The result or the error of a call from a callback of a future, in the thread of the client."""
    caller, too_late = threading.current_thread(), object()
    results: Queue[object] = Queue()

    def run(_: object) -> None:
        if threading.current_thread() is caller:  # the future was done before it got the callback
            results.put(too_late)
            return
        try:
            results.put(call())
        except Exception as error:
            results.put(error)

    result = too_late
    while result is too_late:
        client.submit(b"x").add_done_callback(run)
        result = results.get(timeout=20)
    return result


def test_a_call_that_would_wait_for_its_own_thread_fails_and_changes_nothing(
    client: Client, cluster: FakeCluster
) -> None:
    calls = (lambda: client.append(b"y"), lambda: client.append_many([b"y"]), client.leader, client.close)
    for call in calls:
        assert "deadlock" in str(in_callback(client, call))
    assert set(cluster.log.bodies) == {b"x"}
    client.append(b"z")


def test_callbacks_may_submit(client: Client, cluster: FakeCluster) -> None:
    """Also the appends at which other threads wait for room."""
    for _ in range(SUBMITS_PER_SYNC + 1):
        future = in_callback(client, lambda: client.submit(b"y"))
        assert isinstance(future, Future)
        future.result(20)
    assert cluster.log.bodies.count(b"y") == SUBMITS_PER_SYNC + 1


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
@pytest.mark.filterwarnings("ignore")
def test_a_callback_that_wants_to_exit_does_not_end_the_thread_of_the_client(
    client: Client, error: type[BaseException]
) -> None:
    def fail(_: object) -> None:
        raise error

    client.submit(b"a").add_done_callback(fail)
    assert client.submit(b"b").result(20).index > 0
    thread = LoopThread()
    may_end = asyncio.Event()
    thread.start(may_end.wait()).add_done_callback(fail)
    thread.loop.call_soon_threadsafe(may_end.set)
    for _ in range(10):
        thread.run(asyncio.sleep(0))
    thread.stop()


def test_a_closed_client_says_so(cluster: FakeCluster) -> None:
    client = Client(cluster.addresses)
    client.close()
    client.close()
    for call in (lambda: client.append(b"a"), client.status, client.session, lambda: next(client.read())):
        with pytest.raises(RuntimeError, match="closed"):
            call()  # type: ignore[no-untyped-call]
    with pytest.raises(RuntimeError, match="closed"):
        client.__enter__()
