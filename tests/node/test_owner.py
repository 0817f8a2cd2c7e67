"""Programs that own a node: appends in one step, changes of role, positions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from dledger import (
    AppendOutcome,
    Assigned,
    Code,
    DLedgerError,
    Indeterminate,
    InvalidRequest,
    NodeServer,
    NotLeader,
    Overloaded,
    ReadFailed,
    Role,
    RoleEvent,
)
from dledger.core.values import ENTRY_HEADER_SIZE
from dledger.replica.admission import AppendLimits
from dledger.replica.owned_append import Fill, prepare
from dledger.rpc.log_client import LogClient
from dledger.store.api import ReservedEnd
from dledger.store.format.batch import MAGIC_NORMAL
from tests.node.local import GROUP, leader_of, running_nodes, until
from tests.node.test_bad_days import read_all
from tests.replica.replica_world import Host, World
from tests.replica.test_admission import SMALL
from tests.replica.test_admission_queue import Room


class Filler:
    """A `fill` that keeps what it was told and numbers its bodies without a hole."""

    def __init__(self, *bodies: bytes | bytearray | memoryview) -> None:
        self.bodies = bodies
        self.calls: list[Assigned] = []

    def __call__(self, assigned: Assigned) -> Sequence[bytes | bytearray | memoryview]:
        self.calls.append(assigned)
        return self.bodies

    @property
    def sizes(self) -> list[int]:
        return [len(body) for body in self.bodies]


def epoch(host: Host) -> tuple[int, int]:
    return host.core.term, host.core.role_epoch


def take(host: Host, token: object, *bodies: bytes, expected: tuple[int, int] | None = None) -> Assigned:
    """What the shell does with an append of the owner, without its flush."""
    filler = Filler(*bodies)
    batch, head, count = prepare(host.replica, filler.sizes, filler, expected or epoch(host), host.now)
    host.replica.admission.gather(token, batch, head, count, host.now + 1000, host.now)
    [assigned] = filler.calls
    return assigned


def state_of(host: Host) -> tuple[object, ...]:
    admission = host.replica.admission
    clock = admission.state.clock
    return (
        admission.tail,
        admission.gathered_bytes,
        admission.pending_bytes,
        len(admission._waiters),
        clock.last_stamp_ms,
    )


def refused(
    host: Host, filler: Filler, sizes: list[int] | None = None, expected: tuple[int, int] | None = None
) -> DLedgerError:
    """Refused before `fill`, with nothing changed."""
    before = state_of(host)
    sizes = filler.sizes if sizes is None else sizes
    with pytest.raises(DLedgerError) as caught:
        prepare(host.replica, sizes, filler, expected or epoch(host), host.now)
    assert not filler.calls and state_of(host) == before
    return caught.value


# -- one replica: places


def test_places_are_those_at_which_the_bodies_are_stored() -> None:
    host = Host("a", ["a"]).lead_alone()
    told = [take(host, 0, b"a", b"bb")]
    host.now += 150  # a stamp is due: an entry of the log's own comes first
    told.append(take(host, 1, b"", b"ccc"))
    host.now += 20
    told.append(take(host, 2, b"dddd"))
    host.replica.flush(host.now)
    host.disk()
    stored = [(e.index, e.pos, e.body) for e in host.entries() if e.magic == MAGIC_NORMAL]
    bodies = [b"a", b"bb", b"", b"ccc", b"dddd"]
    places = [(a.first_index + i, pos) for a in told for i, pos in enumerate(a.positions)]
    assert stored == [(*place, body) for place, body in zip(places, bodies, strict=True)]
    outcomes = [host.shell.appends[token] for token in range(3)]
    assert outcomes == [AppendOutcome(a.first_index, len(a.positions), a.term, a.positions[0]) for a in told]
    heads = [e.index for e in host.entries() if e.magic != MAGIC_NORMAL]
    assert told[1].first_index - 1 in heads, "the second batch begins with a stamp"


def test_places_are_in_the_next_data_file_if_the_batch_does_not_fit() -> None:
    host = Host("a", ["a"]).lead_alone()
    size = host.store.data_file_size
    left = size - host.replica.admission.tail.pos
    while left > 1 << 20:
        take(host, object(), bytes(900_000))
        left = size - host.replica.admission.tail.pos
        host.replica.flush(host.now)
        host.disk()
    [position] = take(host, "over", bytes(left - ENTRY_HEADER_SIZE)).positions
    assert position == size
    host.replica.flush(host.now)
    host.disk()
    assert host.entries()[-1].pos == size


def test_stamps_are_those_of_the_log_and_do_not_fall_with_a_new_leader() -> None:
    world = World("a", "b", "c")
    leader = world.elect("a")
    stamps = []
    for _ in range(30):
        for host in world.hosts.values():
            host.now += 13
        stamps.append(take(leader, object(), b"x").stamp_ms)
        leader.replica.flush(leader.now)
        world.carry()
    other = world["b"]
    # What b was sent it has only just seen: no time has passed for it since the last stamp.
    anchors = other.replica.admission.state.clock._anchors
    anchors[-1] = anchors[-1]._replace(learned_ms=other.now + 3000, floor_ms=0)
    for host in world.hosts.values():
        host.replica.wall_ms = lambda: 1_000_000  # nor do the clocks show that any has passed
    world.elect("b")
    stamps.append(take(other, "new", b"y").stamp_ms)
    assert stamps == sorted(stamps) and stamps[-1] > stamps[0]


# -- one replica: refusals


def test_another_epoch_than_expected_is_refused() -> None:
    host = Host("a", ["a"]).lead_alone()
    term, role_epoch = epoch(host)
    for expected in ((term - 1, role_epoch), (term, role_epoch - 1), (term + 1, role_epoch + 1)):
        error = refused(host, Filler(b"x"), expected=expected)
        assert isinstance(error, NotLeader) and error.code is Code.ROLE_EPOCH_CHANGED


def test_follower_refuses_and_names_the_leader() -> None:
    world = World("a", "b", "c")
    leader = world.elect("a")
    error = refused(world["b"], Filler(b"x"), expected=epoch(leader))
    assert isinstance(error, NotLeader) and (error.code, error.leader_id) == (Code.NOT_LEADER, "a")


def test_leader_that_hands_over_refuses() -> None:
    world = World("a", "b", "c")
    leader = world.elect("a")
    leader.replica.transfer(leader.now, "transfer", "b")
    assert refused(leader, Filler(b"x")).code is Code.LEADER_TRANSFERRING


@pytest.mark.parametrize(
    ("sizes", "code"),
    [
        ([], Code.REQUEST_WITH_EMPTY_BODYS),
        ([3, -1], Code.UNEXPECTED_ARGUMENT),
        ([101], Code.BODY_TOO_LARGE),
        ([100, 100, 57], Code.BATCH_TOO_LARGE),
        ([1] * 6, Code.BATCH_TOO_LARGE),
    ],
)
def test_sizes_beyond_the_limits_are_refused(sizes: list[int], code: Code) -> None:
    host = Host("a", ["a"], limits=SMALL).lead_alone()
    error = refused(host, Filler(), sizes)
    assert isinstance(error, InvalidRequest) and error.code is code


def test_no_more_than_may_be_pending_is_taken() -> None:
    host = Host("a", ["a"], limits=SMALL).lead_alone()
    for number in range(SMALL.max_pending_appends):
        take(host, number, b"x")
    error = refused(host, Filler(b"x"))
    assert isinstance(error, Overloaded) and error.code is Code.LEADER_PENDING_FULL
    bytes_host = Host("a", ["a"], limits=AppendLimits(max_pending_bytes=300)).lead_alone()
    take(bytes_host, "first", bytes(100))
    assert refused(bytes_host, Filler(bytes(100))).code is Code.LEADER_PENDING_FULL


def test_without_room_nothing_waits_and_room_is_asked_for() -> None:
    host = Host("a", ["a"]).lead_alone()
    room = Room(host)
    assert refused(host, Filler(b"x")).code is Code.LEADER_PENDING_FULL
    assert room.wanted == 1
    room.is_full = True
    assert refused(host, Filler(b"x")).code is Code.DISK_FULL
    tail = host.replica.log_tail
    room.end = ReservedEnd(tail.pos + ENTRY_HEADER_SIZE + 1, tail.index + 1)
    assert take(host, "fits", b"x").positions == [tail.pos]


def test_others_that_wait_for_room_are_not_overtaken() -> None:
    host = Host("a", ["a"]).lead_alone()
    room = Room(host)
    host.append("waits", b"w")
    room.open()
    assert refused(host, Filler(b"x")).code is Code.LEADER_PENDING_FULL


@pytest.mark.parametrize(
    "bodies",
    [(b"x",), (b"x", b"yy", b"z"), (b"xx", b"y"), (b"x", memoryview(bytes(8)).cast("i"))],
    ids=["fewer", "more", "longer", "items that are no bytes"],
)
def test_bodies_of_other_sizes_change_nothing(bodies: tuple[bytes, ...]) -> None:
    host = Host("a", ["a"]).lead_alone()
    before = state_of(host)
    with pytest.raises(ValueError, match="fill returned"):
        prepare(host.replica, [1, 2], Filler(*bodies), epoch(host), host.now)
    assert state_of(host) == before


def test_fill_that_raises_changes_nothing() -> None:
    host = Host("a", ["a"]).lead_alone()
    before = state_of(host)

    def fill(assigned: Assigned) -> list[bytes]:
        raise ZeroDivisionError(assigned.first_index)

    with pytest.raises(ZeroDivisionError):
        prepare(host.replica, [1], fill, epoch(host), host.now)
    assert state_of(host) == before
    assert take(host, "next", b"x").first_index == before[0].index + 1  # type: ignore[attr-defined]


def test_fill_that_appends_itself_is_found_out() -> None:
    host = Host("a", ["a"]).lead_alone()

    def fill(_: Assigned) -> list[bytes]:
        take(host, "inner", b"y")
        return [b"x"]

    with pytest.raises(ValueError, match="fill has appended"):
        prepare(host.replica, [1], fill, epoch(host), host.now)
    host.replica.flush(host.now)
    host.disk()
    assert isinstance(host.shell.appends["inner"], AppendOutcome)


def test_leadership_that_ends_answers_what_is_gathered_and_what_is_written() -> None:
    world = World("a", "b", "c")
    leader = world.elect("a")
    take(leader, "written", b"w")
    leader.replica.flush(leader.now)
    take(leader, "gathered", b"g")
    world.cut = {"a"}
    world["b"].now += 3000
    leader.pass_time(3000)  # no majority answers
    written, gathered = leader.shell.appends["written"], leader.shell.appends["gathered"]
    assert isinstance(written, Indeterminate) and written.code is Code.TERM_CHANGED
    assert isinstance(gathered, NotLeader)


# -- one replica: the barrier


def test_notice_of_a_leadership_names_its_no_op() -> None:
    world = World("a", "b", "c")
    for node_id in ("a", "b", "a"):
        leader = world.elect(node_id)
        take(leader, object(), b"x")
        leader.replica.flush(leader.now)
        world.carry()
        notice = leader.shell.roles[-1]
        assert notice.role is Role.LEADER
        assert notice.barrier_index == leader.core.barrier_index
        for host in world.hosts.values():
            others = [n for n in host.shell.roles if n.role is not Role.LEADER]
            assert others and {n.barrier_index for n in others} == {-1}


# -- nodes


def current(node: NodeServer) -> tuple[int, int]:
    return node.term, node.role_epoch


async def store(node: NodeServer, *bodies: bytes | bytearray | memoryview) -> AppendOutcome:
    filler = Filler(*bodies)
    return await node.append_batch(filler.sizes, filler, expected=current(node))


async def test_batches_are_committed_and_read_on_every_node(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 3) as servers:
        leader = leader_of(servers)
        buffer = bytearray(b"two three")
        outcome = await store(leader, b"one", memoryview(buffer)[:3], buffer[4:])
        buffer[:] = bytes(9)
        assert outcome.count == 3 and outcome.term == leader.term
        assert leader.committed_index >= outcome.index + 2
        assert leader.committed_pos == outcome.pos + 3 * ENTRY_HEADER_SIZE + 11
        for server in servers:
            await server.wait_committed(outcome.index + 2)
            assert await server.wait_applied(outcome.index + 2) == server.applied_index
            assert await read_all(server) == [b"one", b"two", b"three"]


async def test_many_batches_at_once_keep_their_order(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 3) as servers:
        leader = leader_of(servers)
        futures = []
        told: list[Assigned] = []
        for number in range(200):
            filler = Filler(*[b"%d.%d" % (number, i) for i in range(5)])
            futures.append(leader.append_batch(filler.sizes, filler, expected=current(leader)))
            told += filler.calls
        outcomes = await asyncio.gather(*futures)
        assert [(o.index, o.pos) for o in outcomes] == [(a.first_index, a.positions[0]) for a in told]
        bodies = await read_all(leader)
        assert bodies == [b"%d.%d" % (number, i) for number in range(200) for i in range(5)]
        assert leader.metrics.append_latency.counts and sum(leader.metrics.append_latency.counts) == 200


async def test_stale_epoch_is_refused_by_a_node_that_leads_again(tmp_path: Path) -> None:
    async with running_nodes(tmp_path) as (node,):
        filler = Filler(b"x")
        with pytest.raises(NotLeader) as caught:
            node.append_batch([1], filler, expected=(node.term, node.role_epoch - 2))
        assert caught.value.code is Code.ROLE_EPOCH_CHANGED and not filler.calls


async def test_refusal_of_a_follower_names_the_address_of_the_leader(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 3) as servers:
        leader = leader_of(servers)
        follower = next(s for s in servers if s is not leader)
        await until(lambda: follower.leader_id == leader.leader_id)
        with pytest.raises(NotLeader) as caught:
            follower.append_batch([1], Filler(b"x"), expected=current(leader))
        assert caught.value.leader_address == leader.address


async def test_errors_out_of_fill_reach_the_caller_and_leave_the_node_alone(tmp_path: Path) -> None:
    async with running_nodes(tmp_path) as (node,):

        def fill(_: Assigned) -> list[bytes]:
            raise LookupError("no such queue")

        with pytest.raises(LookupError):
            node.append_batch([1], fill, expected=current(node))
        with pytest.raises(ValueError, match="fill returned"):
            node.append_batch([2], Filler(b"x"), expected=current(node))
        await store(node, b"after")
        assert await read_all(node) == [b"after"]


async def test_batch_without_a_majority_is_indeterminate_after_its_time(tmp_path: Path) -> None:
    slow = {"timing": {"heartbeat_ms": 500, "election_min_ms": 5000, "election_max_ms": 6000}}
    async with running_nodes(tmp_path, 3, slow) as servers:
        leader = leader_of(servers)
        await leader.wait_applied()
        for server in [s for s in servers if s is not leader]:
            await server.stop()
            servers.remove(server)
        filler = Filler(b"x")
        future = leader.append_batch([1], filler, expected=current(leader), timeout=0.05)
        with pytest.raises(Indeterminate) as caught:
            await future
        assert caught.value.code is Code.WAIT_QUORUM_ACK_TIMEOUT
        other = leader.append_batch([1], filler, expected=current(leader), timeout=60.0)
        cancelled = leader.append_batch([1], filler, expected=current(leader))
        cancelled.cancel()
        await leader.stop()
        servers.remove(leader)
        with pytest.raises(Indeterminate):
            await other
        with pytest.raises(NotLeader):
            leader.append_batch([1], filler, expected=current(leader))


async def test_clients_may_not_append_to_a_node_that_is_owned(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 1, owned=True) as (node,):
        client = LogClient(node.address, GROUP)
        stream = client.open_append_stream()
        await stream.send(1, [b"raw"], None, 5000)
        answer = await stream.receive()
        assert isinstance(answer.error, InvalidRequest)
        assert answer.error.code is Code.APPENDS_BY_OWNER_ONLY
        with pytest.raises(InvalidRequest) as caught:
            await client.open_session(5)
        assert caught.value.code is Code.APPENDS_BY_OWNER_ONLY
        await store(node, b"the owner's")
        assert await read_all(node) == [b"the owner's"]
        await client.close()


async def test_roles_are_told_in_order_and_at_once_to_who_comes_late(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 3) as servers:
        leader = leader_of(servers)
        events: list[RoleEvent] = []
        leader.on_role(events.append)
        assert len(events) == 1
        assert events[0][:4] == (Role.LEADER, leader.term, leader.role_epoch, leader.config.node_id)
        await leader.wait_committed(events[0].barrier_index)
        entry = leader._replica.core.log
        assert entry.term_at(events[0].barrier_index) == leader.term
        assert entry.term_at(events[0].barrier_index - 1) < leader.term
        await until(lambda: all(f.push_state == "APPEND" for f in leader.node_status().followers))
        await leader._shell.transfer(None)
        await until(lambda: events[-1].leader_id not in (None, leader.config.node_id))
        later = [(e.term, e.role_epoch) for e in events]
        assert later == sorted(later)
        assert [e.role for e in events[:2]] == [Role.LEADER, Role.FOLLOWER]
        assert events[-1].barrier_index == -1


async def test_listener_that_raises_harms_nobody_and_may_append(
    tmp_path: Path,
) -> None:
    stored: list[asyncio.Future[AppendOutcome]] = []

    def listen(node: NodeServer) -> None:
        def fail(_: RoleEvent) -> None:
            raise RuntimeError("of the listener")

        def write(event: RoleEvent) -> None:
            if event.role is Role.LEADER:
                filler: Fill = Filler(b"first")
                stored.append(node.append_batch([5], filler, expected=(event.term, event.role_epoch)))

        node.on_role(fail)
        node.on_role(write)

    async with running_nodes(tmp_path, 1, prepare=listen) as (node,):
        await until(lambda: bool(stored))
        outcome = await stored[0]
        assert outcome.index > 0, "behind the no-op"
        assert await read_all(node) == [b"first"]


async def test_wait_committed_ends_with_an_error_when_its_time_is_over(tmp_path: Path) -> None:
    async with running_nodes(tmp_path) as (node,):
        with pytest.raises(ReadFailed):
            await node.wait_committed(1000, 0.01)


async def test_cluster_time_is_that_of_the_stamps(tmp_path: Path) -> None:
    async with running_nodes(tmp_path) as (node,):
        before = node.cluster_time_ms()
        filler = Filler(b"x")
        await node.append_batch([1], filler, expected=current(node))
        assert before <= filler.calls[0].stamp_ms <= node.cluster_time_ms()
