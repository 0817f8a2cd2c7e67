"""A survivor becomes the only member of a new cluster, whatever interrupts it."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from dledger.core.log_view import confirmed_memberships
from dledger.core.membership_change import ChangeKind, MemberStep, first_members, target_of
from dledger.core.values import MAX_TERM, NO_RECOVERY, HardState, Member, Membership, MembershipAt
from dledger.errors import Code, ConfigError, Refused, StorageError
from dledger.store.disk_store import DiskLogStore
from dledger.store.format.batch import encode_batch
from dledger.store.format.internal import Configuration, encode_internal
from dledger.store.identity import Identity, init_directory, joined, load_identity
from dledger.store.image_files import ImageMark
from dledger.store.offline.recover import MIN_TERM_ADVANCE, ForcedRecovery
from dledger.testing.virtual.sim_disk import CrashKind, CrashPoint, SimDisk, SimulatedCrash
from tests.store.helpers import ROOT, SIZE, make_batches, read_all

MEMBERS = {"n1": "h1:1", "n2": "h2:1", "n3": "h3:1"}
IDENTITY = Identity("orders", "group", "n1", data_file_size=SIZE, members=("n1", "n2", "n3"))
TERM = 40


def make_survivor(identity: Identity = IDENTITY, *, memberships: tuple[MembershipAt, ...] = ()) -> SimDisk:
    """A stopped node whose log fills two data files; the last entries are not known to be committed."""
    disk = SimDisk()
    init_directory(ROOT, identity, disk=disk, incarnation=7)
    store = DiskLogStore.open(ROOT, disk=disk)
    batches = make_batches(12, seed=3)
    store.append(batches)
    store.save_hard_state(HardState(TERM, "n2", 8, memberships=memberships))
    store.sync()
    store.save_checkpoint(batches[8].last_index, None)
    store.close()
    return disk


def recovery_of(disk: SimDisk, cluster_id: str | None = None) -> ForcedRecovery:
    return ForcedRecovery(ROOT, "n1", MEMBERS, cluster_id=cluster_id, disk=disk)


def recover(disk: SimDisk, cluster_id: str | None = None) -> None:
    with recovery_of(disk, cluster_id) as recovery:
        recovery.carry_out()


def newest(store: DiskLogStore) -> MembershipAt:
    place = store.base, store.term_runs, store.end_index
    return confirmed_memberships(store.hard_state.memberships, *place)[-1]


def check_recovered(disk: SimDisk, before: bytes, number: int = 1) -> None:
    store = DiskLogStore.open(ROOT, disk=disk)
    identity, state, at = store.identity, store.hard_state, newest(store)
    assert identity.is_joined and identity.members is None and identity.recovery == number
    assert identity.cluster_id != "orders" and identity.group == "group"
    assert read_all(store).startswith(before), "the survivor's log is kept"
    assert at.index == store.end_index == store.committed_checkpoint
    assert at.membership.nodes == at.membership.voters == ("n1",)
    assert state.term == store.tail.term == at.term > TERM + MIN_TERM_ADVANCE
    assert state.uid == at.membership.uid_of("n1") > 0
    assert state.voted_for == "n1" and not state.is_barred
    assert state.directory_of(f"n1\\{state.uid}") == at.membership.identities[0].directory != 0
    assert at.membership.recovery.number == number and at.membership.recovery.session_offset >= 1 << 48
    store.close()


def content(disk: SimDisk) -> bytes:
    store = DiskLogStore.open(ROOT, disk=disk.copy())
    return read_all(store)


def test_the_log_is_kept_and_the_node_is_the_only_member() -> None:
    disk = make_survivor()
    before = content(disk)
    recover(disk)
    check_recovered(disk, before)


def test_the_report_names_what_is_kept_and_who_is_dropped() -> None:
    with recovery_of(make_survivor()) as recovery:
        report = recovery.report
        batches = make_batches(12, seed=3)
        assert (report.end_index, report.end_term) == (batches[-1].last_index, batches[-1].term)
        assert report.committed_index == batches[8].last_index
        assert report.uncommitted_count == batches[-1].last_index - batches[8].last_index
        assert [member.node_id for member in report.dropped] == ["n2", "n3"]
        assert recovery.others == {("n2", "h2:1"), ("n3", "h3:1")}
        assert report.former_id == "orders" and report.cluster_id.startswith("orders-r1-")
        assert (report.role, report.is_repeated, report.lost_end) == ("voter", False, None)


def test_a_report_changes_nothing() -> None:
    disk = make_survivor()
    with recovery_of(disk):
        pass
    store = DiskLogStore.open(ROOT, disk=disk)
    assert store.identity == IDENTITY and store.hard_state == HardState(TERM, "n2", 8)


@pytest.mark.parametrize("point", [CrashPoint.BEFORE, CrashPoint.AFTER])
def test_a_crash_leaves_the_old_node_or_a_recovery_that_can_be_repeated(point: CrashPoint) -> None:
    """After a crash at any disk operation, the directory is the old node's, or no node starts on it until the
    command is repeated, or it is the new one's."""
    whole = make_survivor()
    before = content(whole)
    run = whole.copy()
    recover(run, "new")
    seen = set()
    for number in range(1, len(run.operations) + 1):
        where = f"{number} {point.value} {run.operations[number - 1]}"
        disk = whole.copy()
        disk.schedule_crash(number, point)
        with pytest.raises(SimulatedCrash):
            recover(disk, "new")
        for kind, seed in ((CrashKind.PROCESS, 0), (CrashKind.POWER, 0), (CrashKind.POWER, 1)):
            twin = disk.copy()
            twin.crash(kind, Random(seed), reorder=seed > 0)
            try:
                identity = load_identity(ROOT, disk=twin)
            except StorageError as error:
                assert error.code is Code.RECOVERY_UNFINISHED, where
                seen.add("unfinished")
                recover(twin, "another id, which the repetition ignores")
                assert load_identity(ROOT, disk=twin).cluster_id == "new", where
            else:
                seen.add(identity.cluster_id)
                if identity.cluster_id == "orders":
                    store = DiskLogStore.open(ROOT, disk=twin)
                    assert store.identity == IDENTITY and store.hard_state == HardState(TERM, "n2", 8), where
                    assert read_all(store) == before, where
                    store.close()
                    recover(twin)
            check_recovered(twin, before)
    assert seen == {"orders", "unfinished", "new"}


def test_a_repetition_can_be_interrupted_too() -> None:
    whole = make_survivor()
    before = content(whole)
    run = whole.copy()
    recover(run, "new")
    renamed = next(
        n
        for n, operation in enumerate(run.operations, 1)
        if "identity" in operation and "rename" in operation
    )
    whole = whole.copy()
    whole.schedule_crash(renamed + 6, CrashPoint.AFTER)
    with pytest.raises(SimulatedCrash):
        recover(whole, "new")
    whole.crash(CrashKind.POWER, Random(0))
    with pytest.raises(StorageError) as caught:
        load_identity(ROOT, disk=whole)
    assert caught.value.code is Code.RECOVERY_UNFINISHED
    number = 0
    while True:
        number += 1
        disk = whole.copy()
        disk.schedule_crash(number, CrashPoint.AFTER)
        try:
            recover(disk)
        except SimulatedCrash:
            disk.crash(CrashKind.POWER, Random(number))
            if load_identity(ROOT, disk=disk, unfinished=True).former_id is not None:
                recover(disk)
            check_recovered(disk, before)
        else:
            break


def test_the_second_recovery_has_a_greater_number_term_and_offset() -> None:
    disk = make_survivor()
    recover(disk)
    store = DiskLogStore.open(ROOT, disk=disk)
    first, state = newest(store), store.hard_state
    membership = target_of(
        first.membership, (MemberStep(ChangeKind.ADD, "n9", "h9:1", 5),), uid=state.uid + 7
    )
    membership = target_of(membership, (MemberStep(ChangeKind.PROMOTE, "n9"),), uid=0)
    assert membership.recovery == first.membership.recovery, "later configurations repeat it"
    at = MembershipAt(store.end_index + 1, state.term, membership)
    store.save_hard_state(replace(state, memberships=(*state.memberships, at)))
    head = encode_internal(Configuration(membership))
    store.append([encode_batch(store.tail, state.term, [], data_file_size=SIZE, head=head)])
    store.close()
    recover(disk)
    check_recovered(disk, b"", number=2)
    store = DiskLogStore.open(ROOT, disk=disk)
    second = newest(store)
    offsets = [at.membership.recovery.session_offset for at in (first, second)]
    assert offsets[1] - offsets[0] >= 1 << 48
    assert second.term - first.term >= MIN_TERM_ADVANCE
    assert second.membership.uid_of("n1") > state.uid + 7
    assert store.identity.cluster_id.startswith("orders-r2-")


def test_a_node_that_lost_the_end_of_its_log_is_recovered_without_its_bars() -> None:
    disk = make_survivor()
    store = DiskLogStore.open(ROOT, disk=disk)
    store.save_hard_state(
        replace(store.hard_state, rejoining=True, barred_term=TERM + 9, floor_term=TERM, floor_index=99)
    )
    store.close()
    with recovery_of(disk) as recovery:
        assert recovery.report.lost_end == (TERM, 99)
        recovery.carry_out()
    check_recovered(disk, b"")


@pytest.mark.parametrize("known", ["barred_term", "floor_term"])
def test_the_new_term_is_beyond_all_that_the_node_knows(known: str) -> None:
    """Other members may have led in it."""
    disk, late = make_survivor(), 1 << 40
    store = DiskLogStore.open(ROOT, disk=disk)
    lost = {"barred_term": TERM, "floor_term": TERM, "floor_index": 99, known: late}
    store.save_hard_state(replace(store.hard_state, rejoining=True, **lost))
    store.close()
    recover(disk)
    assert DiskLogStore.open(ROOT, disk=disk).hard_state.term >= late + MIN_TERM_ADVANCE


def test_without_a_later_term_nothing_is_recovered() -> None:
    disk = make_survivor()
    store = DiskLogStore.open(ROOT, disk=disk)
    store.save_hard_state(replace(store.hard_state, term=MAX_TERM - 1))
    store.close()
    with pytest.raises(StorageError, match="near the maximum") as caught:
        recovery_of(disk)
    assert caught.value.code is Code.TERM_REFUSED and load_identity(ROOT, disk=disk) == IDENTITY


def test_members_of_the_newest_configuration_count_not_those_of_the_file() -> None:
    identities = tuple(Member(node, uid, f"new-{node}:1") for node, uid in (("n1", 0), ("n7", 3), ("n8", 4)))
    log = make_batches(12, seed=3)
    changed = MembershipAt(
        log[4].first_index, log[4].term, Membership(("n1", "n7", "n8"), identities=identities)
    )
    undone = MembershipAt(
        log[-1].last_index + 1, TERM, Membership(("n1", "n9"), identities=(Member("n9", 8, "u:1"),))
    )
    disk = make_survivor(memberships=(MembershipAt(-1, -1, first_members(MEMBERS)), changed, undone))
    with recovery_of(disk) as recovery:
        assert [member.node_id for member in recovery.report.dropped] == ["n7", "n8"]
        asked = {address for _, address in recovery.others}
        assert asked == {"h2:1", "h3:1", "new-n7:1", "new-n8:1", "u:1"}, (
            "a lost entry may be in force elsewhere"
        )
        recovery.carry_out()
    store = DiskLogStore.open(ROOT, disk=disk)
    assert newest(store).membership.uid_of("n1") == 9
    assert MembershipAt(*undone) not in store.hard_state.memberships


def test_nothing_to_recover() -> None:
    disk = make_survivor(replace(IDENTITY, members=("n1",)))
    with pytest.raises(Refused, match="the only member") as caught:
        ForcedRecovery(ROOT, "n1", {"n1": "h1:1"}, disk=disk)
    assert caught.value.code is Code.RECOVERY_REFUSED
    disk = make_survivor(joined(IDENTITY))
    with pytest.raises(Refused, match="never received its log"):
        recovery_of(disk)
    with pytest.raises(Refused, match="other than orders"):
        recovery_of(make_survivor(), "orders")
    with pytest.raises(ConfigError) as differs:
        ForcedRecovery(ROOT, "n1", {"n1": "h1:1", "n2": "h2:1"}, disk=make_survivor())
    assert differs.value.code is Code.MEMBERS_DIFFER


def purged(disk: SimDisk) -> ImageMark:
    """Let the survivor's log start at its second file. Returns a mark for an image of what was before."""
    store = DiskLogStore.open(ROOT, disk=disk)
    base = store.borders()[0]
    store.purge_to(base)
    entry = store.entry(base.index + 1)
    store.close()
    return ImageMark(entry.index, entry.term, entry.pos)


def test_a_survivor_that_waits_for_an_image_is_refused() -> None:
    disk = make_survivor()
    mark = purged(disk)
    with pytest.raises(Refused, match="it has no state image") as caught:
        recovery_of(disk)
    assert caught.value.code is Code.RECOVERY_REFUSED
    assert load_identity(ROOT, disk=disk) == IDENTITY
    store = DiskLogStore.open(ROOT, disk=disk)
    writer = store.images.writer(mark._replace(term=mark.term + 1), b"sessions")
    writer.finish()
    store.close()
    with pytest.raises(Refused, match="no state image"):  # an image of another log
        recovery_of(disk)
    store = DiskLogStore.open(ROOT, disk=disk)
    store.images.discard(mark._replace(term=mark.term + 1))
    store.images.writer(mark, b"sessions").finish()
    store.close()
    damaged = disk.copy()
    data = next(path for path in damaged.files() if path.suffix == ".data")
    damaged.flip(data, 0)
    with pytest.raises(Refused, match="chunk 0 of"):
        recovery_of(damaged)
    with recovery_of(disk) as recovery:
        assert recovery.report.image_fault == ""
        recovery.carry_out()


def test_a_survivor_that_can_lead_but_has_no_image_is_named() -> None:
    disk = make_survivor()
    purged(disk)
    store = DiskLogStore.open(ROOT, disk=disk)
    store.save_checkpoint(store.end_index, (store.end_index, b"sessions"))
    store.close()
    with recovery_of(disk) as recovery:
        assert "no state image" in recovery.report.image_fault


def test_a_start_with_the_former_cluster_id_names_the_new_one() -> None:
    disk = make_survivor()
    recover(disk, "orders-2")
    with pytest.raises(StorageError, match='set cluster_id = "orders-2"') as caught:
        DiskLogStore.open(ROOT, disk=disk, cluster_id="orders")
    assert caught.value.code is Code.FOREIGN_DIRECTORY


def test_other_directories_keep_their_formats() -> None:
    for identity in (IDENTITY, joined(IDENTITY)):
        disk = SimDisk()
        init_directory(ROOT, identity, disk=disk)
        handle = disk.open(ROOT / "identity", write=False)
        stored = disk.pread(handle, 1 << 16, 0)
        assert b"recovery" not in stored and b"former_id" not in stored
        assert load_identity(ROOT, disk=disk) == identity
    assert first_members(MEMBERS).recovery == NO_RECOVERY
    assert b"recovery" not in encode_internal(Configuration(first_members(MEMBERS)))
