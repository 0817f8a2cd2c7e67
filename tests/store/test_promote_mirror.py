"""A learner becomes the only member of a new cluster, with the entries that it knows to be committed."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from dledger.core.values import UNKNOWN_UID, HardState, Member, Membership, MembershipAt
from dledger.errors import Code, Refused, StorageError
from dledger.store.disk_store import DiskLogStore
from dledger.store.format.batch import Batch
from dledger.store.identity import Identity, init_directory, joined, load_identity
from dledger.store.image_files import ImageMark
from dledger.store.offline.recover import ForcedRecovery
from dledger.testing.virtual.sim_disk import CrashKind, CrashPoint, SimDisk, SimulatedCrash
from tests.store.helpers import ROOT, SIZE, corrupt, join, make_batches, read_all
from tests.store.test_recover import check_recovered

MEMBERS = {"n1": "h1:1", "n2": "h2:1", "n3": "h3:1", "n4": "h4:1"}
IDENTITY = joined(Identity("orders", "group", "n1", data_file_size=SIZE))
TERM, UID = 40, 5
LOG = make_batches(14, seed=3)
KNOWN = LOG[8]  # the last batch that the learner knows to be committed
ADDED = LOG[4]


def group_of(
    *, voters: tuple[str, ...] = ("n2", "n3", "n4"), learners: tuple[str, ...] = ("n1",), uid: int = UID
) -> Membership:
    uids = {"n1": uid}
    identities = tuple(
        Member(node, uids.get(node, 0), MEMBERS[node]) for node in sorted({*voters, *learners})
    )
    return Membership(voters, learners=learners, identities=identities)


def at(batch: Batch, membership: Membership) -> MembershipAt:
    return MembershipAt(batch.first_index, batch.term, membership)


BEFORE = MembershipAt(-1, -1, group_of(learners=()))


def make_learner(*later: MembershipAt, uid: int = UID, known: Batch = KNOWN, **state: bool) -> SimDisk:
    """A stopped learner whose log fills several data files. It was added by the batch ADDED."""
    disk = SimDisk()
    init_directory(ROOT, IDENTITY, disk=disk, incarnation=7)
    store = DiskLogStore.open(ROOT, disk=disk)
    store.append(LOG)
    memberships = (BEFORE, *(later or (at(ADDED, group_of()),)))
    store.save_hard_state(HardState(TERM, None, 8, memberships=memberships, uid=uid, **state))
    store.sync()
    store.save_checkpoint(known.last_index, None)
    store.close()
    return disk


def promotion_of(disk: SimDisk, cluster_id: str | None = None) -> ForcedRecovery:
    return ForcedRecovery(ROOT, "n1", MEMBERS, cluster_id=cluster_id, promotes_learner=True, disk=disk)


def promote(disk: SimDisk, cluster_id: str | None = None) -> None:
    with promotion_of(disk, cluster_id) as promotion:
        promotion.carry_out()


def kept(known: Batch = KNOWN) -> bytes:
    return join([batch for batch in LOG if batch.last_index <= known.last_index])


def check_promoted(disk: SimDisk, known: Batch = KNOWN) -> None:
    """The log has exactly the known entries, and the configuration of the new cluster."""
    check_recovered(disk, b"")
    store = DiskLogStore.open(ROOT, disk=disk)
    own = store.read(known.last_index + 1, store.end_index, 1 << 20, whole_batches=True)
    assert own.last_index == own.first_index == store.end_index
    assert [part for part in read_all(store).split(bytes(own.data)) if part.strip(b"\0")] == [kept(known)]
    assert len(store.hard_state.memberships) == 1 + sum(
        at.index <= known.last_index for at in (BEFORE, MembershipAt(ADDED.first_index, 0, group_of()))
    )
    store.close()


def refusal_of(disk: SimDisk) -> str:
    """The reason for which a learner is not promoted. Nothing has changed."""
    with pytest.raises(Refused) as caught:
        promotion_of(disk)
    assert caught.value.code is Code.PROMOTION_REFUSED
    assert load_identity(ROOT, disk=disk) == IDENTITY
    return caught.value.message


def test_the_log_is_cut_to_what_the_learner_knows_to_be_committed() -> None:
    disk = make_learner()
    with promotion_of(disk) as promotion:
        report = promotion.report
        assert (report.role, report.committed_index) == ("learner", KNOWN.last_index)
        assert report.uncommitted_count == LOG[-1].last_index - KNOWN.last_index > 0
        assert [member.node_id for member in report.dropped] == ["n2", "n3", "n4"]
        assert report.cluster_id.startswith("orders-r1-")
        promotion.carry_out()
    check_promoted(disk)


def test_a_learner_need_not_have_learned_its_uid() -> None:
    disk = make_learner(uid=UNKNOWN_UID)
    promote(disk)
    check_promoted(disk)


def test_a_learner_that_knows_all_its_entries_keeps_them() -> None:
    disk = make_learner(known=LOG[-1])
    promote(disk)
    check_promoted(disk, LOG[-1])


def test_a_batch_is_known_as_a_whole() -> None:
    """The checkpoint of a learner may name an entry within a batch."""
    batch = next(batch for batch in LOG[6:] if batch.last_index > batch.first_index)
    disk = make_learner(known=LOG[5])
    store = DiskLogStore.open(ROOT, disk=disk)
    store.save_checkpoint(batch.first_index, None)
    store.close()
    promote(disk)
    check_promoted(disk, batch)


def test_stored_sessions_and_images_show_later_commits_than_the_checkpoint() -> None:
    disk = make_learner()
    store = DiskLogStore.open(ROOT, disk=disk)
    store.images.writer(ImageMark(LOG[10].first_index, LOG[10].term, LOG[10].pos), b"sessions").finish()
    store.close()
    promote(disk)
    check_promoted(disk, LOG[10])
    disk = make_learner()
    store = DiskLogStore.open(ROOT, disk=disk)
    store.save_checkpoint(LOG[11].last_index, (LOG[11].last_index, b"sessions"))
    store.close()
    disk.unlink(ROOT / "checkpoint")
    promote(disk)
    check_promoted(disk, LOG[11])


def test_an_image_of_another_log_shows_nothing() -> None:
    disk = make_learner()
    store = DiskLogStore.open(ROOT, disk=disk)
    store.images.writer(ImageMark(LOG[10].first_index, LOG[10].term + 1, LOG[10].pos), b"").finish()
    store.close()
    promote(disk)
    check_promoted(disk)


@pytest.mark.parametrize("point", [CrashPoint.BEFORE, CrashPoint.AFTER])
def test_a_crash_leaves_the_learner_or_a_promotion_that_can_be_repeated(point: CrashPoint) -> None:
    """After a crash at any disk operation, the directory is the old learner's, or no node starts on it until
    the command is repeated, or it is the new cluster's."""
    whole = make_learner()
    run = whole.copy()
    promote(run, "new")
    seen = set()
    for number in range(1, len(run.operations) + 1):
        where = f"{number} {point.value} {run.operations[number - 1]}"
        disk = whole.copy()
        disk.schedule_crash(number, point)
        with pytest.raises(SimulatedCrash):
            promote(disk, "new")
        for kind, seed in ((CrashKind.PROCESS, 0), (CrashKind.POWER, 0), (CrashKind.POWER, 1)):
            twin = disk.copy()
            twin.crash(kind, Random(seed), reorder=seed > 0)
            try:
                identity = load_identity(ROOT, disk=twin)
            except StorageError as error:
                assert error.code is Code.RECOVERY_UNFINISHED, where
                assert "dledger mirror promote" in error.message, where
                seen.add("unfinished")
                promote(twin, "another id, which the repetition ignores")
                assert load_identity(ROOT, disk=twin).cluster_id == "new", where
            else:
                seen.add(identity.cluster_id)
                if identity.cluster_id == "orders":
                    store = DiskLogStore.open(ROOT, disk=twin)
                    assert store.identity == IDENTITY and store.tail == LOG[-1].tail, where
                    store.close()
                    promote(twin)
            check_promoted(twin)
    assert seen == {"orders", "unfinished", "new"}


def interrupted(disk: SimDisk) -> SimDisk:
    """The directory after a crash behind the first step of the promotion."""
    run = disk.copy()
    promote(run, "new")
    number = next(n for n, text in enumerate(run.operations, 1) if "identity" in text and "rename" in text)
    disk = disk.copy()
    disk.schedule_crash(number + 1, CrashPoint.AFTER)
    with pytest.raises(SimulatedCrash):
        promote(disk, "new")
    disk.crash(CrashKind.PROCESS, Random(0))
    return disk


def test_an_interrupted_promotion_is_not_continued_by_the_other_command() -> None:
    disk = interrupted(make_learner())
    with pytest.raises(Refused, match="dledger mirror promote"):
        ForcedRecovery(ROOT, "n1", MEMBERS, disk=disk)
    promote(disk)
    check_promoted(disk)
    disk = make_learner().copy()
    run = disk.copy()
    with ForcedRecovery(ROOT, "n1", MEMBERS, cluster_id="new", disk=run) as recovery:
        recovery.carry_out()
    number = next(n for n, text in enumerate(run.operations, 1) if "identity" in text and "rename" in text)
    disk.schedule_crash(number + 1, CrashPoint.AFTER)
    with pytest.raises(SimulatedCrash), ForcedRecovery(ROOT, "n1", MEMBERS, disk=disk) as recovery:
        recovery.carry_out()
    disk.crash(CrashKind.PROCESS, Random(0))
    with pytest.raises(Refused, match="dledger recover") as caught:
        promotion_of(disk)
    assert caught.value.code is Code.PROMOTION_REFUSED


def test_a_promotion_is_continued_under_its_first_id_and_says_so() -> None:
    disk = interrupted(make_learner())
    with promotion_of(disk, "another") as promotion:
        assert (promotion.report.cluster_id, promotion.report.is_repeated) == ("new", True)


def test_a_log_that_is_damaged_where_it_would_be_cut_is_left_alone() -> None:
    disk = make_learner()
    corrupt(disk, KNOWN, KNOWN)
    with pytest.raises(StorageError) as caught:
        promotion_of(disk)
    assert caught.value.code is Code.DATA_DAMAGED and load_identity(ROOT, disk=disk) == IDENTITY


def test_a_voter_is_not_promoted() -> None:
    as_voter = group_of(voters=("n1", "n2", "n3"), learners=())
    assert "dledger recover" in refusal_of(make_learner(at(ADDED, as_voter)))
    # It has received the entry that makes it a voter, and counts by it, committed or not.
    both = at(ADDED, group_of()), at(LOG[11], as_voter)
    assert "dledger recover" in refusal_of(make_learner(*both))


def test_a_configuration_that_is_cut_counts_for_nothing() -> None:
    without = group_of(voters=("n2", "n3"))
    disk = make_learner(at(ADDED, group_of()), at(LOG[11], without))
    with promotion_of(disk) as promotion:
        assert [member.node_id for member in promotion.report.dropped] == ["n2", "n3", "n4"]
        promotion.carry_out()
    check_promoted(disk)


def test_a_node_that_is_no_learner_of_the_known_log_is_not_promoted() -> None:
    # Its own addition is not committed, as far as it knows: the log behind it may be far longer.
    assert "has not caught up" in refusal_of(make_learner(at(LOG[10], group_of())))
    waiting = MembershipAt(-1, -1, group_of(uid=UNKNOWN_UID))
    assert "has not caught up" in refusal_of(make_learner(waiting, uid=UNKNOWN_UID))
    removed = at(ADDED, group_of()), at(LOG[7], group_of(learners=()))
    assert "was removed" in refusal_of(make_learner(*removed))
    assert "replaced" in refusal_of(make_learner(at(ADDED, group_of(uid=UID + 1))))


def test_a_learner_that_was_never_sent_the_log_is_not_promoted() -> None:
    disk = SimDisk()
    init_directory(ROOT, IDENTITY, disk=disk)
    with pytest.raises(Refused, match="never received its log") as caught:
        promotion_of(disk)
    assert caught.value.code is Code.PROMOTION_REFUSED


def test_a_learner_that_lost_its_log_is_not_promoted() -> None:
    assert "lost its log" in refusal_of(make_learner(rejoining=True))


def test_a_learner_that_waits_for_an_image_is_not_promoted() -> None:
    disk = make_learner()
    store = DiskLogStore.open(ROOT, disk=disk)
    base = next(border for border in store.borders() if ADDED.last_index < border.index <= KNOWN.last_index)
    store.purge_to(base)
    store.close()
    assert "no state image" in refusal_of(disk)
    with_sessions = disk.copy()
    store = DiskLogStore.open(ROOT, disk=with_sessions)
    store.save_checkpoint(KNOWN.last_index, (KNOWN.last_index, b"sessions"))
    store.close()
    assert "no state image" in refusal_of(with_sessions), "a survivor could be recovered, as the last resort"
    store = DiskLogStore.open(ROOT, disk=disk)
    mark = next(batch for batch in LOG if batch.first_index > base.index)
    store.images.writer(ImageMark(mark.first_index, mark.term, mark.pos), b"sessions").finish()
    identity = store.identity
    store.close()
    assert identity == replace(IDENTITY)
    promote(disk)
    check_recovered(disk, b"")
