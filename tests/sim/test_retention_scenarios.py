"""Named histories of state images and purges: crashes between an image and its commit, full disks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dledger.core.messages import Append as AppendMessage
from dledger.core.messages import Message
from dledger.core.values import Base
from dledger.errors import Code, StorageError
from dledger.infra.files.disk import CrashKind
from dledger.replica.retention import RetentionLimits
from dledger.replica.shell import AppendOutcome
from dledger.store.image_files import ImageMark
from dledger.testing import Attempt
from tests.sim.cluster import KINDS, SOON_MS, Cluster

FILE = 1024
NEVER_MS = 1 << 40


class Retaining(Cluster):
    """Small files, a retention that only purges when it is asked to, and one session."""

    def __init__(self, nodes: int = 3, *, policy: RetentionLimits | None = None, **changes: object) -> None:
        policy = policy or RetentionLimits(hold_bytes=0, check_ms=20)
        options = {"data_file_size": FILE, "retention": policy} | changes
        super().__init__(nodes, **options)  # type: ignore[arg-type]
        self.session = -1
        self.stored: list[Attempt] = []  # batches of the session, by seq - 1

    def fill_files(self, count: int) -> None:
        """Batches of the session until the log has grown by so many files."""
        leader = self.elect()
        until = self.process(leader).replica.log_tail.pos + count * FILE
        if self.session < 0:
            self.session = self.open_session()
        while self.process(leader).replica.log_tail.pos < until:
            attempt = self.next_batch(leader)
            self.run_until(lambda attempt=attempt: attempt.is_acknowledged, limit_ms=SOON_MS)  # type: ignore[misc]

    def next_batch(self, leader: str) -> Attempt:
        attempt = self.write(leader, 3, session=(self.session, len(self.stored) + 1))
        self.stored.append(attempt)
        return attempt

    def ask_purge(self, leader: str) -> None:
        process = self.process(leader)
        process.post(lambda: process.replica.purge_before(1 << 40, 0, process.now_ms()) and None)

    def begin_of(self, node_id: str) -> int:
        return self.process(node_id).replica.core.log.begin_index

    def purge_everywhere(self) -> None:
        """An image, and a committed PURGE that every running node has carried out."""
        leader = self.elect()
        before = self.counts["purges committed"]
        self.ask_purge(leader)
        self.run_until(lambda: self.counts["purges committed"] > before, limit_ms=SOON_MS)
        base = max(self.invariants.housekeeping.bases, key=lambda base: base.index)
        self.run_until(
            lambda: all(self.begin_of(p.node_id) == base.index + 1 for p in self.processes()),
            limit_ms=SOON_MS,
        )

    def retry_all(self, leader: str) -> None:
        """Every batch of the session again: stored before, each is answered with its first result."""
        for attempt in self.stored:
            again = self.append(leader, again=attempt.append, session=attempt.append.session)
            self.run_until(lambda again=again: again.answer is not None, limit_ms=SOON_MS)  # type: ignore[misc]
            assert isinstance(again.answer, AppendOutcome), again.answer
            if isinstance(attempt.answer, AppendOutcome):
                assert again.answer.duplicate, f"{attempt.append.session} was stored again"
        self.fill_files(1)


def _purged_cluster(on_disk: bool) -> Retaining:
    """All nodes begin at a base, behind it is one committed image, and no session table is stored."""
    c = Retaining(on_disk=on_disk, checkpoint_every_ms=NEVER_MS)
    c.begin()
    c.fill_files(4)
    c.purge_everywhere()
    c.fill_files(2)
    c.run_until(c.is_settled, limit_ms=SOON_MS)
    return c


def _image_on(c: Retaining, leader: str, holders: set[str]) -> tuple[int, int]:
    """Session batches and an image behind them that only `holders` get. Returns the ends before and after."""
    before = c.end_of(leader)

    def gate(source: str, target: str, message: Message) -> bool:
        if isinstance(message, AppendMessage) and message.last_index > before:
            return target in holders
        # A majority may hold it, but nobody is to learn that.
        return not (source in holders and type(message).__name__ == "PushResponse")

    c.network.gate = gate
    for _ in range(3):
        c.next_batch(leader)
    c.ask_purge(leader)
    c.run_until(lambda: is_writing_image(c, leader), limit_ms=SOON_MS)
    return before, c.end_of(leader)


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize("kind", KINDS)
def test_image_that_nobody_knows_to_be_committed_serves_after_a_crash_of_all(
    kind: CrashKind, on_disk: bool
) -> None:
    """Every node begins at a base and has lost its session table: the image in the log is all there is. It is
    committed, but no node knows that before one leads."""
    for winner in ("n0", "n1", "n2"):
        c = _purged_cluster(on_disk)
        for node in c.profile.node_ids:
            c.crash(node, kind)
        c.only(winner)
        c.start()
        assert c.elect() == winner
        c.retry_all(winner)
        c.end()


@pytest.mark.slow
@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("winner", ["a holder", "another"])
def test_image_on_one_node_is_truncated_or_committed_after_a_crash_of_all(
    winner: str, kind: CrashKind, on_disk: bool
) -> None:
    """The leader alone has the newest image, and session batches before it, when all crash."""
    for life in range(6):
        c = _purged_cluster(on_disk)
        leader = c.elect()
        before, end = _image_on(c, leader, set())
        c.run_for(life)
        for node in c.profile.node_ids:
            c.nodes[node].rng.seed(life)
            c.crash(node, kind)
        candidate = leader if winner == "a holder" else c.others(leader)[0]
        c.only(candidate)
        c.start()
        if winner == "another":
            c.network.cut(leader, candidate)  # it would refuse its vote, and is not needed
        assert c.elect() == candidate
        if winner == "another":
            assert c.end_of(candidate) < end, "an image that was never pushed"
        c.network.heal_all()
        c.retry_all(candidate)
        c.purge_everywhere()
        c.retry_all(candidate)
        c.end()
        assert before < end


@pytest.mark.slow
@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize("kind", KINDS)
def test_image_on_two_nodes_that_do_not_know_it_committed(kind: CrashKind, on_disk: bool) -> None:
    """A majority holds the newest image, and all crash before anybody has counted."""
    for life in range(6):
        c = _purged_cluster(on_disk)
        leader = c.elect()
        holder, other = c.others(leader)
        _, end = _image_on(c, leader, {holder})
        c.run_until(lambda c=c, holder=holder, end=end: c.end_of(holder) == end, limit_ms=SOON_MS)  # type: ignore[misc]
        c.run_for(life)
        for node in c.profile.node_ids:
            c.nodes[node].rng.seed(life)
            c.crash(node, kind)
        c.network.gate = None
        c.boot(holder)
        c.boot(other)
        if c.end_of(holder) > c.end_of(other):
            assert c.elect() == holder, "the other one's log is shorter"
        c.retry_all(c.elect())
        c.boot(leader)
        c.retry_all(c.elect())
        c.end()


def test_a_node_that_was_given_a_base_and_half_an_image_crashes() -> None:
    """INSTALL_BASE, then power loss at every moment of the image's arrival: no session is forgotten."""
    for life in range(12):
        c = Retaining(on_disk=life % 2 == 1, checkpoint_every_ms=NEVER_MS, max_push_bytes=200, fsync_max_ms=5)
        c.begin()
        c.fill_files(1)
        late = c.others(c.elect())[0]
        c.isolate(late)
        c.fill_files(3)
        _purge_without(c, late)
        c.network.heal_all()
        c.run_until(lambda c=c, late=late: c.begin_of(late) > 0, limit_ms=SOON_MS)  # type: ignore[misc]
        c.run_for(2 * life)
        c.nodes[late].rng.seed(life)
        for node in c.profile.node_ids:
            c.crash(node, CrashKind.POWER)
        c.start()
        c.retry_all(c.elect())
        c.run_until(c.is_settled, limit_ms=SOON_MS)
        c.only(late)
        if c.leader() != late:
            c.crash(c.elect(), CrashKind.POWER)
        c.run_until(lambda c=c, late=late: c.leader() == late, limit_ms=SOON_MS)  # type: ignore[misc]
        c.elect()
        c.retry_all(late)
        c.end()


def test_a_node_whose_newest_image_is_damaged_takes_an_older_one_of_another_member() -> None:
    c = _purged_cluster(on_disk=False)
    node = c.others(c.elect())[0]
    c.crash(node, CrashKind.PROCESS)
    store = c.nodes[node].host.disk
    mark = ImageMark(store.end_index, store.entry(store.end_index).term, store.entry(store.end_index).pos)
    store.images.writer(mark, bytes(10)).finish()
    data = next(path for path in store._image_disk.files() if path.suffix == ".data")
    store._image_disk.flip(data, 0)
    c.boot(node)
    c.run_until(lambda: c.process(node).replica.core.image_index > c.begin_of(node), limit_ms=SOON_MS)
    assert c.process(node).replica.core.image_index < mark.index
    c.retry_all(c.elect())
    c.run_until(c.is_settled, limit_ms=SOON_MS)
    c.end()


def _purge_without(c: Retaining, late: str) -> None:
    leader, before = c.elect(), c.counts["purges committed"]
    c.ask_purge(leader)
    c.run_until(lambda: c.counts["purges committed"] > before, limit_ms=SOON_MS)
    others = [p.node_id for p in c.processes() if p.node_id != late]
    c.run_until(lambda: all(c.begin_of(n) > 0 for n in others), limit_ms=SOON_MS)


# -- how many images, how many purges


def test_operator_who_lets_everything_go_gets_one_image() -> None:
    """`purge --before` an index that is not written yet: else each image would call for the next."""
    c = Retaining()
    c.begin()
    c.fill_files(4)
    c.ask_purge(c.elect())
    c.run_for(SOON_MS)
    assert c.counts["images committed"] == c.counts["purges committed"] == 1
    c.end()


@pytest.mark.slow
@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_image_larger_than_max_bytes_does_not_call_for_images_for_ever(on_disk: bool) -> None:
    """An idle log must come to rest, however small max_bytes is, and under new leaders, too."""
    policy = RetentionLimits(max_bytes=FILE, hold_bytes=0, check_ms=20)
    c = Retaining(policy=policy, on_disk=on_disk, max_sessions=500)
    c.begin()
    for _ in range(60):  # each session takes some tens of bytes in an image
        c.open_session()
    c.fill_files(3)
    c.run_for(SOON_MS)
    image = c.process(c.elect()).replica.admission.state.image
    assert image.byte_size > FILE, "this is about large images"
    made = c.counts["images committed"]
    c.run_for(SOON_MS)
    assert c.counts["images committed"] == made
    for how in range(4):
        if how % 2:
            c.crash(c.elect(), CrashKind.POWER)
        else:
            for node in c.profile.node_ids:
                c.crash(node, CrashKind.PROCESS)
        for node in c.profile.node_ids:
            c.boot_if_down(node)
        c.elect()
        c.run_for(SOON_MS)
    # The no-op of each new leader is no reason for an image; that the log grew by another image would be.
    assert c.counts["images committed"] == made
    c.end()


def _full_disk(c: Retaining, node_id: str) -> None:
    """Until it restarts, no purge finds room there for the little that it has to write first."""

    def full(base: Base) -> None:
        raise StorageError("no room, says the test", code=Code.DISK_FULL)

    c.process(node_id).store.purge_to = full  # type: ignore[method-assign]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("role", ["leader", "follower"])
def test_purge_that_a_full_disk_put_off_outlives_a_restart(role: str, kind: CrashKind) -> None:
    """The stored session table covers the PURGE entry by then: it is not read again."""
    c = Retaining(on_disk=True, checkpoint_every_ms=20)
    leader = c.begin()
    c.fill_files(4)
    victim = leader if role == "leader" else c.others(leader)[0]
    _full_disk(c, victim)
    c.ask_purge(leader)
    c.run_until(lambda: c.counts["purges committed"] > 0, limit_ms=SOON_MS)
    c.run_for(1000)
    store = c.process(victim).store
    table = store.load_sessions()
    assert store.begin_index == 0 and table is not None
    base = max(c.invariants.housekeeping.bases, key=lambda base: base.index)
    assert table[0] > base.index
    c.crash(victim, kind)
    c.boot(victim)
    c.run_until(c.is_settled, limit_ms=SOON_MS)
    c.run_until(lambda: c.process(victim).store.begin_index == base.index + 1, limit_ms=SOON_MS)
    c.retry_all(c.elect())
    c.end()


def test_leader_whose_purge_is_put_off_does_not_write_it_again_and_again() -> None:
    """The borders of its own disk still offer what is purged for everybody."""
    policy = RetentionLimits(max_bytes=FILE, hold_bytes=0, check_ms=20)
    c = Retaining(policy=policy, on_disk=True)
    leader = c.begin()
    _full_disk(c, leader)
    c.fill_files(4)
    c.run_for(SOON_MS)
    end, purges = c.end_of(leader), c.counts["purges committed"]
    assert purges > 0
    c.run_for(SOON_MS)
    assert (c.end_of(leader), c.counts["purges committed"]) == (end, purges)


def is_writing_image(c: Retaining, leader: str) -> bool:
    return c.process(leader).replica.retainer.is_writing


def has_appended_purge(c: Retaining, leader: str) -> bool:
    return c.process(leader).replica.retainer._purge_pending


@pytest.mark.parametrize("until", [is_writing_image, has_appended_purge])
def test_leader_that_is_deposed_in_the_middle_of_a_purge_purges_when_it_leads_again(
    until: Callable[[Retaining, str], bool],
) -> None:
    """What was under way is truncated with the leadership, and must not be waited for in the next one."""
    c = Retaining()
    leader = c.begin()
    c.fill_files(4)
    c.ask_purge(leader)

    def gate(source: str, target: str, message: Message) -> bool:
        return not (leader in (source, target) and until(c, leader))

    c.network.gate = gate
    c.run_until(lambda: until(c, leader), limit_ms=SOON_MS)
    c.network.gate = None
    c.isolate(leader)
    c.run_until(lambda: c.leader() not in (None, leader), limit_ms=SOON_MS)
    c.fill_files(1)
    c.network.heal_all()
    c.run_until(c.is_settled, limit_ms=SOON_MS)
    assert c.counts["truncations"] and not c.counts["purges committed"]
    c.crash(c.elect(), CrashKind.PROCESS)
    c.only(leader)
    c.run_until(lambda: c.leader() == leader, limit_ms=SOON_MS)
    c.fill_files(1)
    c.purge_everywhere()
    c.end()


@pytest.mark.parametrize("slowest", ["n0", "n1", "n2"])
def test_purging_waits_for_the_slowest_follower(slowest: str) -> None:
    """Both followers are behind what could go: it must not depend on their names which one counts."""
    c = Retaining(5, policy=RetentionLimits(max_bytes=FILE, hold_bytes=1 << 20, check_ms=20))
    c.only("n4")
    c.begin()
    c.fill_files(2)
    c.run_until(c.is_settled, limit_ms=SOON_MS)
    slower = next(node_id for node_id in ("n0", "n1", "n2") if node_id != slowest)
    end = c.end_of(slowest)
    c.isolate(slowest)
    c.fill_files(3)
    c.isolate(slower)
    c.fill_files(4)
    c.run_for(SOON_MS)
    assert c.end_of(slowest) == end, "it is behind"
    assert 0 < c.begin_of("n4") <= end + 1, "the log of the leader has what it needs"
    c.end()
