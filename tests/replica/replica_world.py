"""Replicas with the least of a world around them: nothing happens until the test lets it happen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dledger.core.membership_change import first_members
from dledger.core.messages import Append, Compare, Goodbye, Message, PushMessage
from dledger.core.values import CoreConfig, HardState, MembershipAt, Role
from dledger.errors import DLedgerError, InvalidRequest
from dledger.replica.admission import AppendLimits
from dledger.replica.images import ImageRequest, LoggedImage, copy_image
from dledger.replica.parts import ReplicaConfig
from dledger.replica.rebuild_job import RebuildJob
from dledger.replica.replica import Replica
from dledger.replica.shell import (
    AppendOutcome,
    DiskJob,
    HardStateJob,
    PurgeJob,
    ResetJob,
    RoleNotice,
    TruncateJob,
    WriteJob,
)
from dledger.store.api import Frames
from dledger.store.format.batch import DecodedEntry, decode_entries
from dledger.store.identity import Identity
from dledger.store.image_files import ImageMark
from dledger.testing.memory_store import MemoryLogStore
from tests.replica.logged_images import mark_of, write_image

FILE_SIZE = 1 << 22


@dataclass
class Sent:
    peer: str
    message: Message
    payload: bytes | None


@dataclass
class Load:
    peer: str
    stream_id: int
    first_index: int
    last_index: int
    max_bytes: int


@dataclass
class RecordingShell:
    """Keeps everything; `World` and tests take it from here."""

    sent: list[Sent] = field(default_factory=list)
    jobs: list[DiskJob] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    appends: dict[object, AppendOutcome | DLedgerError] = field(default_factory=dict)
    reads: dict[object, int | DLedgerError] = field(default_factory=dict)
    transfers: dict[object, DLedgerError | None] = field(default_factory=dict)
    roles: list[RoleNotice] = field(default_factory=list)
    commits: list[int] = field(default_factory=list)
    fatals: list[DLedgerError] = field(default_factory=list)
    refusals: list[tuple[str, InvalidRequest]] = field(default_factory=list)
    images: list[ImageRequest] = field(default_factory=list)  # asked for and not yet given
    image_work: list[Callable[[MemoryLogStore], object]] = field(default_factory=list)
    rebuilds: list[RebuildJob] = field(default_factory=list)
    is_rebuilt: bool = False
    fsync_began: int | None = None
    commit_to_announce: bool = False

    def send(self, peer: str, message: Message, payload: bytes | None) -> None:
        self.sent.append(Sent(peer, message, payload))

    def submit(self, job: DiskJob) -> None:
        self.jobs.append(job)

    def load_push(self, peer: str, stream_id: int, first_index: int, last_index: int, max_bytes: int) -> None:
        self.loads.append(Load(peer, stream_id, first_index, last_index, max_bytes))

    def answer_append(self, token: object, outcome: AppendOutcome | DLedgerError) -> None:
        assert token not in self.appends, f"{token} was answered twice"
        self.appends[token] = outcome

    def answer_read(self, token: object, outcome: int | DLedgerError) -> None:
        self.reads[token] = outcome

    def answer_transfer(self, token: object, outcome: DLedgerError | None) -> None:
        self.transfers[token] = outcome

    def role_changed(self, notice: RoleNotice) -> None:
        self.roles.append(notice)

    def fsync_began_ms(self) -> int | None:
        return self.fsync_began

    def save_state(self, request: ImageRequest) -> None:
        self.images.append(request)

    def load_image(self) -> None:
        self.image_work.append(lambda store: None)

    def copy_image(self, image: LoggedImage) -> None:
        self.image_work.append(lambda store: copy_image(store, image))

    def discard_image(self, mark: ImageMark) -> None:
        self.image_work.append(lambda store: store.images.discard(mark))

    def rebuild(self, job: RebuildJob) -> None:
        self.rebuilds.append(job)

    def rebuilt(self) -> None:
        self.is_rebuilt = True
        self.load_image()

    def committed(self, committed_index: int) -> None:
        self.commits.append(committed_index)

    def commit_moved(self) -> None:
        self.commit_to_announce = True

    def refused(self, peer: str, message: Message, error: InvalidRequest) -> None:
        self.refusals.append((peer, error))

    def members_changed(self, in_force: MembershipAt, peers: Sequence[str]) -> None: ...

    def fatal(self, error: DLedgerError) -> None:
        self.fatals.append(error)


class Host:
    """One replica, its store, and a disk that works when told to."""

    def __init__(
        self,
        node_id: str,
        voters: Sequence[str],
        *,
        store: MemoryLogStore | None = None,
        limits: AppendLimits | None = None,
        cache_bytes: int = 1 << 20,
        max_waiting_reads: int = 10,
        max_push_bytes: int = 1 << 20,
        rebuilds: bool = True,
    ) -> None:
        """`rebuilds`: the log is read for sessions at once, and not when the test lets it."""
        self.id = node_id
        self.now = 0
        self.store = store or MemoryLogStore(Identity("cluster", "group", node_id, FILE_SIZE))
        old = self.store.hard_state
        self.store.save_hard_state(HardState(old.term, old.voted_for, old.incarnation + 1))
        self.store.prepare(FILE_SIZE // 2)
        self.shell = RecordingShell()
        core = CoreConfig(node_id, max_push_bytes=max_push_bytes)
        config = ReplicaConfig(
            core,
            first_members({voter: f"{voter}:1" for voter in voters}),
            limits or AppendLimits(),
            cache_bytes=cache_bytes,
            max_waiting_reads=max_waiting_reads,
        )
        self.replica = Replica(
            config,
            self.store,
            self.shell,
            random_ms=lambda low, high: low,
            wall_ms=lambda: 1_000_000 + self.now,
        )
        self.replica.start(self.now)
        if rebuilds:
            self.rebuild()

    def rebuild(self) -> None:
        """Read the log as often as is asked for."""
        while self.shell.rebuilds:
            job = self.shell.rebuilds.pop(0)
            outcome = job.run(self.store, self.replica.config.limits.max_sessions, self.now)
            self.replica.log_read(self.now, job.number, outcome)
        self.work_on_images()

    def work_on_images(self) -> None:
        """Do all work on the files of images, and report the newest image after each piece."""
        while self.shell.image_work:
            self.shell.image_work.pop(0)(self.store)
            image = self.store.images.stored()
            if image is not None:
                self.replica.image_stored(self.now, image)

    def save_image(self, state: bytes = b"state") -> ImageMark:
        """Write the image that was asked for, of this state."""
        request = self.shell.images.pop()
        mark = mark_of(self.store, request.index)
        assert mark.term == request.term
        write_image(self.store.images, mark, request.sessions, state)
        self.shell.load_image()
        self.work_on_images()
        return mark

    def take_image(self, other: Host) -> None:
        """Copy the image of another host into the files of this one."""
        manifest = other.store.images.newest
        assert manifest is not None
        receiver = self.store.images.receiver(manifest)
        while not receiver.is_complete:
            receiver.write(other.store.images.chunk(manifest, receiver.next_chunk))
        receiver.finish()
        self.shell.load_image()
        self.work_on_images()

    @property
    def core(self):  # type: ignore[no-untyped-def]
        return self.replica.core

    def disk(self) -> None:
        """Do all disk jobs, those that come of them included."""
        while self.shell.jobs:
            self.one_job()

    def announce(self) -> None:
        """Nothing more is going to be pushed at the moment: tell followers what is committed."""
        if self.shell.commit_to_announce:
            self.shell.commit_to_announce = False
            self.replica.announce_commit(self.now)

    def one_job(self) -> None:
        job = self.shell.jobs.pop(0)
        match job:
            case HardStateJob(number, hard_state):
                self.store.save_hard_state(hard_state)
                self.replica.hard_state_saved(self.now, number)
            case WriteJob(generation, batches):
                self.store.append(batches)
                self.store.sync()
                last = batches[-1]
                self.replica.stored(self.now, generation, last.last_index, last.term)
            case TruncateJob(generation, last_index, term, tail):
                self.store.truncate_after(last_index, tail)
                self.store.sync()
                self.replica.stored(self.now, generation, last_index, term)
            case ResetJob(generation, base):
                self.store.reset_to(base)
                self.replica.stored(self.now, generation, base.index, base.term)
            case PurgeJob(base):
                self.store.purge_to(base)
        self.store.prepare(FILE_SIZE // 2)

    def append(
        self,
        token: object,
        *bodies: bytes,
        session: tuple[int, int] | None = None,
        open_session: bool = False,
        timeout_ms: int = 1000,
        flush: bool = True,
    ) -> AppendOutcome | DLedgerError | None:
        self.replica.append(
            self.now, token, bodies, session=session, open_session=open_session, timeout_ms=timeout_ms
        )
        if flush:
            self.replica.flush(self.now)
        return self.shell.appends.get(token)

    def pass_time(self, ms: int) -> None:
        self.now += ms
        self.replica.tick(self.now)

    def load(self) -> None:
        """Answer all reads for pushes from the store."""
        while self.shell.loads:
            ask = self.shell.loads.pop(0)
            frames: Frames = self.store.read(
                ask.first_index, ask.last_index, ask.max_bytes, whole_batches=True
            )
            self.replica.push_loaded(self.now, ask.peer, ask.stream_id, ask.first_index, frames)

    def entries(self) -> list[DecodedEntry]:
        """What is really stored."""
        if self.store.end_index < self.store.begin_index:
            return []
        found: list[DecodedEntry] = []
        while not found or found[-1].index < self.store.end_index:
            first = found[-1].index + 1 if found else self.store.begin_index
            found += decode_entries(self.store.read(first, first, 1, whole_batches=False).data)
        return found

    def lead_alone(self) -> Host:
        """In a cluster of one: become leader, with the no-op committed."""
        self.pass_time(5000)
        assert self.core.role is Role.LEADER
        self.disk()
        return self


class World:
    """Several hosts, messages between them carried at once and in order, streams kept up by hand."""

    def __init__(self, *ids: str, **options: object) -> None:
        self.hosts = {i: Host(i, ids, **options) for i in ids}  # type: ignore[arg-type]
        self.cut: set[str] = set()  # nodes that nothing reaches or leaves
        self.streams: dict[str, int] = {}  # open streams of the leader, by peer
        self.next_stream = 1

    def __getitem__(self, node_id: str) -> Host:
        return self.hosts[node_id]

    def carry(self, *, disk: bool = True, load: bool = True) -> None:
        """Let messages fly and disks work until nothing is left."""
        busy = True
        while busy:
            busy = False
            for host in self.hosts.values():
                if disk and host.shell.jobs:
                    host.disk()
                    busy = True
                if host.shell.loads and disk and load:
                    host.load()
                    busy = True
                host.announce()
                sent, host.shell.sent = host.shell.sent, []
                for item in sent:
                    busy = True
                    if host.id in self.cut or item.peer in self.cut:
                        continue
                    if isinstance(item.message, PushMessage) and not self._flows(item):
                        continue
                    target = self.hosts[item.peer]
                    target.replica.receive(target.now, host.id, item.message, item.payload)

    def _flows(self, item: Sent) -> bool:
        assert isinstance(item.message, PushMessage)
        return self.streams.get(item.peer) == item.message.stream_id or isinstance(item.message, Goodbye)

    def elect(self, node_id: str, *, streams: bool = True) -> Host:
        """Let this node time out and win."""
        leader = self.hosts[node_id]
        for host in self.hosts.values():
            host.now += 3000
        leader.replica.tick(leader.now)
        self.carry()
        assert leader.core.role is Role.LEADER
        if streams:
            for peer in self.hosts:
                if peer != node_id and peer not in self.cut:
                    self.connect(leader, peer)
            self.carry()
        return leader

    def connect(self, leader: Host, peer: str) -> int:
        self.streams[peer] = self.next_stream
        self.next_stream += 1
        incarnation = self.hosts[peer].core.hard_state.incarnation
        leader.replica.stream_up(leader.now, peer, self.streams[peer], incarnation)
        return self.streams[peer]


def pushes(host: Host) -> list[Append]:
    return [s.message for s in host.shell.sent if isinstance(s.message, Append)]


def probes(host: Host) -> list[Compare]:
    return [s.message for s in host.shell.sent if isinstance(s.message, Compare)]
