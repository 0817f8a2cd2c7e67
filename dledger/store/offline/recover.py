"""Founds a new cluster on the log of one member: of a survivor, if a majority of its group is lost for good,
or of a learner that becomes a group of its own.

A group without a majority neither elects a leader nor changes its members. An operator may then continue
with the log of one survivor, which may lack acknowledged entries: those that only lost members had. The new
cluster must never be mistaken for the former one, whose members may return:

- It has another cluster id, so its nodes and those of the former cluster refuse each other.
- It is in a term beyond any that the lost members can have reached. No entry of the new log has therefore the
  index and the term of an entry of the former one, and NameServers prefer its master to a former one.
- Its configuration ends all sessions, and gives new ones other ids (dledger.core.values.Recovery): the former
  cluster may have opened a session at an index at which the new one opens another.

A survivor keeps its whole log, because entries that it does not know to be committed may have been
acknowledged. A learner is a copy of a group that may still run: its log is cut to the entries that it knows
to be committed, so that it contains nothing that the group may never have stored.

The steps are durable one after the other. The first gives the directory an identity with which no node
starts; the last one completes the identity. An interrupted recovery is repeated, with the cluster id of the
first attempt.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import NamedTuple

from dledger.core.directories import with_own_directory
from dledger.core.log_view import confirmed_memberships
from dledger.core.membership_change import first_members
from dledger.core.values import (
    MAX_SESSION_OFFSET,
    MAX_TERM,
    UNKNOWN_UID,
    HardState,
    Member,
    Membership,
    MembershipAt,
    Recovery,
    member_key,
)
from dledger.errors import Code, ConfigError, ReadFailed, Refused, StorageError
from dledger.infra.files.disk import Disk, OsDisk
from dledger.store.api import Damage, EntryDamaged
from dledger.store.disk_store import DiskLogStore
from dledger.store.format.batch import encode_batch
from dledger.store.format.internal import (
    Configuration,
    ImageEnd,
    decode_internal,
    encode_internal,
    strip_stamp,
)
from dledger.store.format.layout import NodePaths
from dledger.store.identity import Identity, member_list, recovered, recovering, save_identity

#: The new term is this far beyond the known ones, plus a random number below it. The lost members would need
#: an election every 100 ms for nineteen days to come that far. Nodes with an empty log accept it (rule 5).
MIN_TERM_ADVANCE = 1 << 24
#: Indexes stay below the first number, so all ids of a former cluster are below those of the next one. The
#: random rest distinguishes two clusters that were founded on two members of the same group.
_MIN_OFFSET_ADVANCE, _OFFSET_RANGE = 1 << 48, 1 << 56
_GENERATED_SUFFIX = re.compile(r"-r\d+-[0-9a-f]{6}$")


class RecoveryReport(NamedTuple):
    """The state of the survivor, and the result of its recovery."""

    node_id: str
    group: str
    former_id: str  # of the cluster
    cluster_id: str  # of the new cluster
    number: int  # of forced recoveries, including this one
    role: str  # in the newest configuration: "voter", "leaving", "learner", or "" if it is no member
    is_repeated: bool  # an interrupted recovery is continued
    committed_index: int  # last entry that this node knows to be committed
    end_index: int
    end_term: int
    lost_end: tuple[int, int] | None  # (term, index) up to which the log once reached, if its end was damaged
    damages: tuple[Damage, ...]
    image_fault: str  # why it has no state image of the purged entries; "" if it has one, or needs none
    dropped: tuple[Member, ...]  # all other members

    @property
    def uncommitted_count(self) -> int:
        """Entries that may never have been acknowledged. A survivor keeps them, a learner loses them."""
        return self.end_index - self.committed_index


class ForcedRecovery(AbstractContextManager["ForcedRecovery"]):
    """The recovery of a stopped node, whose directory stays locked until `close`."""

    def __init__(
        self,
        directory: Path,
        node_id: str,
        members: Mapping[str, str],
        *,
        cluster_id: str | None = None,
        promotes_learner: bool = False,
        disk: Disk | None = None,
    ) -> None:
        """`members`: addresses in the node's configuration, by node id. `cluster_id`: of the new cluster; by
        default one is generated. `promotes_learner`: the node is a learner, and its log is cut.

        Raises the errors of DiskLogStore.open; ConfigError MEMBERS_DIFFER if the configuration names other
        first members than the directory; Refused RECOVERY_REFUSED if there is nothing to recover, or
        PROMOTION_REFUSED if the node is no learner that has caught up; StorageError DATA_DAMAGED if the log
        of a learner is damaged where it must be cut.
        """
        self._promotes_learner = promotes_learner
        self._disk = disk or OsDisk()
        self._paths = NodePaths(directory)
        self._address = members[node_id]
        self._store = DiskLogStore.open(directory, disk=self._disk, node_id=node_id, unfinished=True)
        try:
            self._require_same_command()
            # The configurations before the new one, which an interrupted recovery may have written.
            self._history = self._memberships(members)
            self._has_entry = self._is_own(self._history[-1])
            if self._has_entry:
                self._history.pop()
            self._committed = known_committed(self._store)
            if promotes_learner:
                if self._identity.former_id is None:
                    self._require_learner()
                self._prepare_cut()
            self.report = self._report(cluster_id)
            self._term = self._new_term()
            self._recovery = Recovery(self.report.number, self._session_offset())
        except BaseException:
            self._store.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._store.close()

    @property
    def others(self) -> frozenset[tuple[str, str]]:
        """(node id, address) of all other members that this node has recorded, in force or not."""
        state, node_id = self._store.hard_state, self._identity.node_id
        known = {member for at in (*self._history, *state.memberships) for member in at.membership.identities}
        return frozenset((member.node_id, member.address) for member in known if member.node_id != node_id)

    def carry_out(self) -> None:
        """Found the new cluster. Raises StorageError; after it, the recovery can be repeated."""
        store, report = self._store, self.report
        if not report.is_repeated:
            self._save(
                recovering(
                    self._identity,
                    report.cluster_id,
                    report.number,
                    is_promotion=self._promotes_learner,
                )
            )
        if not self._has_entry:
            if self._promotes_learner:
                store.truncate_after(self._committed)
            self._write_configuration()
        # The only voter has the entry, in a term in which it voted for itself.
        store.save_checkpoint(store.end_index, None)
        self._save(recovered(self._identity))

    def _save(self, identity: Identity) -> None:
        save_identity(self._disk, self._paths, identity)
        self._store.identity = identity

    @property
    def _identity(self) -> Identity:
        return self._store.identity

    # -- what there is ------------------------------------------------------------------------------------

    @property
    def _current(self) -> Membership:
        return self._history[-1].membership

    def _is_own(self, at: MembershipAt) -> bool:
        """Return True if an interrupted recovery has written this configuration."""
        identity = self._identity
        return identity.former_id is not None and at.membership.recovery.number == identity.recovery

    def _require_same_command(self) -> None:
        """A recovery is continued by the command that started it: the other one leaves another log."""
        identity = self._identity
        if identity.former_id is None or identity.is_promotion == self._promotes_learner:
            return
        if self._promotes_learner:
            raise self._refused("a forced recovery was interrupted: run `dledger recover` again")
        raise self._refused("a promotion was interrupted: run `dledger mirror promote` again")

    def _refused(self, reason: str) -> Refused:
        code = Code.PROMOTION_REFUSED if self._promotes_learner else Code.RECOVERY_REFUSED
        return Refused(reason, code=code)

    def _require_learner(self) -> None:
        """Check that the node is a learner, and that its log has all that its group had at some time."""
        store, node_id, state = self._store, self._identity.node_id, self._store.hard_state
        if any(node_id in at.membership.electors for at in self._history if at.index >= self._current_index):
            raise self._refused(f"{node_id} is a voter of its group: `dledger recover` keeps its whole log")
        current = next(at.membership for at in self._history if at.index == self._current_index)
        # A node that waits to be added has a list of the members without uids. It learns its own uid later.
        uid = current.uid_of(node_id)
        if node_id not in current.learners or uid == UNKNOWN_UID or state.uid not in (UNKNOWN_UID, uid):
            raise self._refused(
                f"{node_id} is no learner of its group at entry {self._committed}: it has not caught up "
                "since it was added, or was removed or replaced"
            )
        if state.rejoining:
            raise self._refused(f"{node_id} lost its log, or the end of it, and has not caught up since")
        if fault := _image_fault(store):
            raise self._refused(f"{node_id} could never lead: {fault}")

    def _prepare_cut(self) -> None:
        """Forget the configurations that are cut. Raises EntryDamaged if the log cannot be cut there."""
        self._history = [at for at in self._history if at.index <= self._committed]
        if not self._has_entry and self._committed < self._store.end_index:
            self._store.tail_at(self._committed)

    @property
    def _current_index(self) -> int:
        """The entry of the configuration in force at the last entry known to be committed."""
        return max(at.index for at in self._history if at.index <= self._committed)

    def _memberships(self, members: Mapping[str, str]) -> list[MembershipAt]:
        """Return the configuration at the base of the log, and all later ones in the log."""
        store, identity = self._store, self._store.identity
        recorded = store.hard_state.memberships
        if not recorded:
            first = identity.members
            if identity.is_joined and first is None:
                raise self._refused(f"{identity.node_id} was added to the group, but never received its log")
            if first is not None and first != member_list(members):
                raise ConfigError(
                    f"{self._paths.root} belongs to a cluster with the members {', '.join(first)}; the "
                    f"configuration names {', '.join(members)}",
                    code=Code.MEMBERS_DIFFER,
                )
            recorded = (MembershipAt(-1, -1, first_members(members)),)
        return confirmed_memberships(recorded, store.base, store.term_runs, store.end_index)

    def _report(self, cluster_id: str | None) -> RecoveryReport:
        store, identity, current = self._store, self._identity, self._current
        state, node_id = store.hard_state, identity.node_id
        is_repeated = identity.former_id is not None
        if not is_repeated and current.nodes == (node_id,):
            raise self._refused(f"{node_id} is the only member of its group: start it")
        number = identity.recovery if is_repeated else current.recovery.number + 1
        former_id = identity.former_id or identity.cluster_id
        if is_repeated:
            cluster_id = identity.cluster_id
        elif cluster_id is None:
            stem = _GENERATED_SUFFIX.sub("", former_id)
            cluster_id = f"{stem}-r{number}-{secrets.token_hex(3)}"
        elif cluster_id == former_id:
            raise self._refused(f"the new cluster needs an id other than {former_id}")
        dropped = {member.node_id: member for at in self._history for member in at.membership.identities}
        dropped = {node: member for node, member in dropped.items() if node in current.nodes}
        return RecoveryReport(
            node_id,
            identity.group,
            former_id,
            cluster_id,
            number,
            current.role_of(node_id) if node_id in current.nodes else "",
            is_repeated,
            self._committed,
            store.end_index,
            store.tail.term,
            (state.floor_term, state.floor_index) if state.floor_index >= 0 else None,
            store.damages,
            self._image_fault(is_repeated=is_repeated),
            tuple(member for node, member in sorted(dropped.items()) if node != node_id),
        )

    def _image_fault(self, *, is_repeated: bool) -> str:
        """Return why the node has no intact image. Raises Refused if it could not lead without one, because
        no other member is left to give it one."""
        store = self._store
        fault = _image_fault(store)
        table = store.load_sessions() if fault else None
        if fault and not is_repeated and (table is None or table[0] < store.base.index):
            raise self._refused(
                f"this node could never lead: {fault}. Choose another survivor, or restore a backup"
            )
        return fault

    # -- what it becomes ----------------------------------------------------------------------------------

    def _write_configuration(self) -> None:
        """Append the configuration of which this node is the only member, after recording it with its term
        (rule 15)."""
        store, identity = self._store, self._identity
        state, node_id = with_own_directory(store.hard_state, identity.node_id), identity.node_id
        directory = state.directory_of(member_key(node_id, state.uid))
        known = [at.membership for at in (*self._history, *state.memberships)]
        uids = [member.uid for membership in known for member in membership.identities]
        uid = max(UNKNOWN_UID, state.uid, *uids) + 1
        membership = Membership(
            (node_id,),
            identities=(Member(node_id, uid, self._address, directory),),
            recovery=self._recovery,
        )
        term = self._term
        at = MembershipAt(store.end_index + 1, term, membership)
        store.save_hard_state(
            HardState(
                term,
                node_id,
                state.incarnation,
                directories=((member_key(node_id, uid), directory),),
                memberships=(*self._history, at),
                uid=uid,
            )
        )
        head = encode_internal(Configuration(membership))
        store.append([encode_batch(store.tail, term, [], data_file_size=store.data_file_size, head=head)])
        store.sync()
        self._history.append(at)

    def _new_term(self) -> int:
        state = self._store.hard_state
        known = max(state.term, state.barred_term, state.floor_term, self._store.tail.term)
        term = known + MIN_TERM_ADVANCE + secrets.randbelow(MIN_TERM_ADVANCE)
        if term > MAX_TERM:
            raise StorageError(
                f"{self._paths.root} is in term {known}, near the maximum {MAX_TERM}", code=Code.TERM_REFUSED
            )
        return term

    def _session_offset(self) -> int:
        former = self._current.recovery.session_offset
        offset = former + _MIN_OFFSET_ADVANCE + secrets.randbelow(_OFFSET_RANGE)
        if offset > MAX_SESSION_OFFSET:
            raise self._refused("the log was recovered too often: restore a backup of it as a new cluster")
        return offset


def known_committed(store: DiskLogStore) -> int:
    """Return the last entry of the log that its directory shows to be committed.

    The checkpoint contains it. The stored sessions and the newest state image may be later: both include
    committed entries only. A batch is committed as a whole.
    """
    table = store.load_sessions()
    index = max(store.committed_checkpoint, -1 if table is None else table[0], _mark_in_log(store))
    if index > store.base.index:
        with suppress(EntryDamaged):
            index += store.entry(index).channel
    return index


def _mark_in_log(store: DiskLogStore) -> int:
    """Return the mark of the newest state image, or -1 if there is none or the log does not have its mark."""
    newest = store.images.newest
    if newest is None or not store.base.index < newest.mark.index <= store.end_index:
        return -1
    with suppress(EntryDamaged):
        if store.entry(newest.mark.index).term == newest.mark.term:
            return newest.mark.index
    return -1


def _image_fault(store: DiskLogStore) -> str:
    """Return why a node with a purged log has no intact image of the entries before; "" if it has one."""
    base, newest = store.base, store.images.newest
    if base.index < 0:
        return ""
    try:
        if newest is not None and _mark_in_log(store) >= 0:
            for _ in store.images.chunks(newest, range(len(newest.crcs))):
                pass
            return ""
        heads = store.iter_heads(base.index + 1)
        if any(isinstance(strip_stamp(decode_internal(batch.head))[1], ImageEnd) for batch in heads):
            return ""  # release 0.2 wrote it into the log
    except (StorageError, ReadFailed) as error:
        return f"its state image cannot be used: {error}"
    return f"its log starts at entry {base.index + 1}, and it has no state image of the entries before"
