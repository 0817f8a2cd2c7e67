"""The master's end of a connection to a slave."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol

from broker_adapter.errors import BrokerError, HaRefused, Status
from broker_adapter.log.classic.ha.handshake import (
    MOST_TAIL_BYTES,
    NONCE_BYTES,
    PROBE,
    VERSION,
    Challenge,
    HaIdentity,
    HandshakeReader,
    Introduction,
    LogRange,
    Refusal,
    Welcome,
    encode_challenge,
    encode_refusal,
    encode_welcome,
    first_acked,
    to_prove_introduction,
    to_prove_welcome,
)
from broker_adapter.log.classic.ha.log import ShippedLog, digest_of, range_of
from broker_adapter.log.classic.ha.options import HaOptions
from broker_adapter.log.classic.ha.transfers import (
    REPORT_BYTES,
    ReportReader,
    encode_report,
    encode_transfer,
    first_report,
)
from dledger.infra.logs import get_logger
from dledger.infra.transport.listener import AdmittedConnection
from dledger.rpc.cluster_secret import ClusterSecret

_log = get_logger("ha")

# Data within this distance of the log's end is in the page cache and is read on the event loop. Older data is
# read on a thread.
_RECENT_BYTES = 2 << 20
_PROBE = encode_report(PROBE)


class HaConnectionOwner(Protocol):
    """Callbacks of the service that owns a connection.

    Called on its event loop. They must not raise exceptions.
    """

    def started(self, connection: HaConnection) -> None:
        """Called after the slave has reported its position."""

    def acknowledged(self, connection: HaConnection, offset: int) -> None: ...

    def refused(self, connection: HaConnection, error: BrokerError) -> None: ...

    def closed(self, connection: HaConnection) -> None:
        """Called once, after the connection was closed."""


class HaConnection(AdmittedConnection):
    """A connection from accept to `close`. Call `grown` when the log has grown.

    For a slave that does not read, about `unsent_bytes` are buffered, in addition to the data read ahead.
    """

    def __init__(
        self,
        user: HaConnectionOwner,
        log: ShippedLog,
        options: HaOptions,
        own: HaIdentity,
        secret: ClusterSecret | None,
        host: str,
    ) -> None:
        self.address = self.host = host
        self.identity: HaIdentity | None = None  # by handshake
        self.progress = SlaveProgress(_now())
        self.is_closed = False
        self._user = user
        self._log = log
        self._options = options
        self._own = own
        self._secret = secret
        self._transport: asyncio.Transport | None = None
        self._opening = bytearray()  # the incomplete first report
        self._reports: ReportReader | None = None
        self._handshake: HandshakeReader | None = None
        self._challenge = Challenge(VERSION, secrets.token_bytes(NONCE_BYTES))
        self._is_full = False  # the slave does not read
        self._working: asyncio.Task[None] | None = None  # reads the log on a thread
        self._begun = self._heard = self._sent = _now()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def has_started(self) -> bool:
        """True if the slave has reported its position."""
        return self.progress.start is not None

    @property
    def last_data_s(self) -> float:
        """Time at which the slave last sent data, by the clock of the event loop."""
        return self._heard

    # -- asyncio.Protocol --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.address = f"[{peer[0]}]:{peer[1]}" if ":" in str(peer[0]) else f"{peer[0]}:{peer[1]}"
        opened = transport.get_extra_info("socket")
        if opened is not None and opened.family in (socket.AF_INET, socket.AF_INET6):
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(high=self._options.unsent_bytes)
        self.on_close = None
        if self.is_closed:
            transport.abort()
            return
        self._arm_timer()

    def data_received(self, data: bytes) -> None:
        self._heard = _now()
        try:
            self._on_data(data)
        except BrokerError as error:
            self._refuse(error)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self.grown()

    def connection_lost(self, error: Exception | None) -> None:
        self.close()

    def leave(self) -> None:
        self.close()

    # -- for the service ---------------------------------------------------------------------------------

    def grown(self) -> None:
        """Send new data while the slave accepts it."""
        while self._may_send():
            behind = self._log.end_offset - self.progress.sent
            if behind <= 0:
                return
            if behind > _RECENT_BYTES:
                self._work(self._read_ahead)
                return
            try:
                data = self._log.read(self.progress.sent, self._options.transfer_batch_bytes)
            except BrokerError as error:
                self._refuse(error)
                return
            if not data:
                return
            self._send(data)

    def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._working is not None:
            self._working.cancel()
        if self._transport is not None:
            self._transport.abort()
        if self.on_close is not None:
            self.on_close()
        self._user.closed(self)

    # -- incoming data -----------------------------------------------------------------------------------

    def _on_data(self, data: bytes) -> None:
        if self._reports is not None:
            self._on_reports(data)
        elif self._handshake is not None:
            self._on_handshake(data)
        else:
            self._on_first_report(data)

    def _on_first_report(self, data: bytes) -> None:
        self._opening += data
        if len(self._opening) < REPORT_BYTES:
            return
        opening, rest = bytes(self._opening[:REPORT_BYTES]), bytes(self._opening[REPORT_BYTES:])
        if opening == _PROBE:
            self._handshake = HandshakeReader()
            self._write(encode_challenge(self._challenge))
            self._on_handshake(rest)
            return
        if self._options.require_handshake:
            raise HaRefused(
                Status.HA_HANDSHAKE_MISSING,
                f"the slave did not send the required handshake: its first bytes are {opening.hex()}",
            )
        self._reports = ReportReader()
        self._on_reports(bytes(self._opening))

    def _on_reports(self, data: bytes) -> None:
        assert self._reports is not None
        had_started, has_more = self.has_started, False
        now, log, last_file = _now(), range_of(self._log), self._log.last_file_offset
        for offset in self._reports.feed(data):
            has_more |= self.progress.report(offset, now, log, last_file)
        if has_more:
            self._user.acknowledged(self, self.progress.acked)
        if not had_started and self.has_started:
            self._on_started()

    def _on_handshake(self, data: bytes) -> None:
        assert self._handshake is not None
        self._handshake.feed(data)
        if self._working is not None:
            raise HaRefused(
                Status.HA_HANDSHAKE_MISSING, "the slave sent data before the reply to its introduction"
            )
        introduction = self._handshake.next()
        if introduction is None:
            return
        if not isinstance(introduction, Introduction):
            raise HaRefused(
                Status.HA_HANDSHAKE_MISSING,
                f"the slave sent {type(introduction).__name__}, expected Introduction",
            )
        if self._secret is not None:
            to_prove = to_prove_introduction(self._challenge, introduction)
            if not self._secret.accepts_proof(to_prove, introduction.proof):
                raise HaRefused(
                    Status.HA_NOT_PROVEN, "the slave did not prove that it knows the cluster secret"
                )
        self._check_identity(introduction.identity)
        self._work(partial(self._welcome, introduction))

    def _check_identity(self, theirs: HaIdentity) -> None:
        own = self._own
        if (theirs.cluster, theirs.broker_name) != (own.cluster, own.broker_name):
            theirs_name = f"{theirs.cluster}/{theirs.broker_name}"
            text = f"the slave belongs to {theirs_name}, expected {own.cluster}/{own.broker_name}"
            raise HaRefused(Status.HA_IDENTITY, text)
        if theirs.broker_id <= 0:
            raise HaRefused(
                Status.HA_IDENTITY,
                f"broker id {theirs.broker_id} is not valid for a slave: it must be above 0",
            )

    async def _welcome(self, introduction: Introduction) -> None:
        """Compare the logs and start the transfer."""
        log = range_of(self._log)
        start = start_for(introduction, log, self._log.last_file_offset)
        if introduction.log.begin < introduction.log.end:
            digest = await asyncio.to_thread(
                digest_of, self._log, introduction.tail_begin, introduction.log.end
            )
            compare_tail(introduction, digest)
        welcome = Welcome(self._own, log, start)
        if self._secret is not None:
            to_prove = to_prove_welcome(self._challenge, introduction, welcome)
            welcome = welcome._replace(proof=self._secret.proof_of(to_prove))
        assert self._handshake is not None
        rest, self._handshake = self._handshake.rest(), None
        self._reports = ReportReader()
        self.identity = introduction.identity
        self._write(encode_welcome(welcome))
        self.progress.begin(start, first_acked(introduction.log, start))
        self._on_started()
        self._on_reports(rest)

    def _on_started(self) -> None:
        identity = self.identity
        _log.info(
            "a slave has connected",
            slave=self.address,
            id=identity and identity.broker_id,
            start=self.progress.start,
        )
        self._user.started(self)
        self._user.acknowledged(self, self.progress.acked)
        self._arm_timer()
        self.grown()

    # -- outgoing data -----------------------------------------------------------------------------------

    def _may_send(self) -> bool:
        return not (self.is_closed or self._is_full or self._working is not None) and self.has_started

    def _work(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work`. Until it is done, transfers and the handshake wait."""
        self._working = asyncio.get_running_loop().create_task(self._do(work))

    async def _do(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except BrokerError as error:
            self._refuse(error)
        finally:
            self._working = None
        self.grown()

    async def _read_ahead(self) -> None:
        data = await asyncio.to_thread(self._log.read, self.progress.sent, self._options.read_ahead_bytes)
        if not data:
            raise HaRefused(
                Status.HA_GAP,
                f"the log no longer contains offset {self.progress.sent}, which the slave needs next",
            )
        size, view = self._options.transfer_batch_bytes, memoryview(data)
        for at in range(0, len(data), size):
            self._send(view[at : at + size])

    def _send(self, data: bytes | memoryview) -> None:
        self._write(encode_transfer(self.progress.sent, data))
        self.progress.sent_frame(len(data))

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self.is_closed:
            self._transport.write(data)
            self._sent = _now()

    # -- timers and close --------------------------------------------------------------------------------

    def _arm_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        options = self._options
        if not self.has_started:
            next_s = self._begun + options.housekeeping_s
        elif self._is_full:
            next_s = _now() + options.heartbeat_s
        else:
            next_s = self._sent + options.heartbeat_s
        next_s = min(next_s, self._heard + options.housekeeping_s)
        self._timer = asyncio.get_running_loop().call_at(next_s, self._on_timer)

    def _on_timer(self) -> None:
        now, silence = _now(), self._options.housekeeping_s
        if now - (self._heard if self.has_started else self._begun) >= silence:
            _log.info("closing the connection of a silent slave", slave=self.address, seconds=silence)
            self.close()
            return
        if self.has_started and not self._is_full and now - self._sent >= self._options.heartbeat_s:
            self._write(encode_transfer(self.progress.sent, b""))
        self._arm_timer()

    def _refuse(self, error: BrokerError) -> None:
        if self.is_closed:
            return
        transport = self._transport
        if self._handshake is not None and transport is not None:
            transport.write(encode_refusal(Refusal(int(error.status), error.message)))
            transport.close()  # after the data is written
            asyncio.get_running_loop().call_later(self._options.heartbeat_s, transport.abort)
            self._transport = None
        self._user.refused(self, error)
        self.close()


def _now() -> float:
    return asyncio.get_running_loop().time()


# Validation of a slave's reports. Pure functions.
#
# RocketMQ accepts any 8 bytes as a report (its issue 1155), so that random bytes can acknowledge data that no
# slave has.

# Number of reports allowed without frames: initially, and per second.
_FREE_REPORTS: Final = 1_000
_REPORTS_PER_S: Final = 10
# Reports per 32 KiB or smaller frame. RocketMQ's slave reports after a frame, and again after it has read all
# received data. Slaves of this project report after each read.
_REPORTS_PER_FRAME: Final = 4
_REPORTED_BYTES: Final = 32 << 10


class SlaveProgress:
    """Progress of one slave.

    `start`: start of its transfer, or None before its first report. `sent`: end of the sent data. `acked`:
    end of the acknowledged data, or -1 if unknown.
    """

    def __init__(self, now: float) -> None:
        """Create the progress. `now`: monotonic seconds, here and in the other methods."""
        self.start: int | None = None
        self.sent = 0
        self.acked = -1
        self._first = -1
        self._frames = 0
        self._reports = 0
        self._begun = now

    def begin(self, start: int, acked: int) -> None:
        """Start after a handshake. `acked`: end of the slave's data."""
        self.start = self.sent = start
        self.acked = self._first = acked

    def sent_frame(self, size: int) -> None:
        self.sent += size
        self._frames += 1 + size // _REPORTED_BYTES

    def report(self, offset: int, now: float, log: LogRange, last_file: int) -> bool:
        """Process a report. Return True if it acknowledges additional data.

        `log` and `last_file` describe the master's current log. Raises HaRefused (HA_REPORT_REFUSED, HA_GAP)
        if no correct slave of this master can send such a report.
        """
        self._reports += 1
        free = _FREE_REPORTS + _REPORTS_PER_S * (now - self._begun)
        if self._reports > free + _REPORTS_PER_FRAME * self._frames:
            raise _refused(f"the slave sent too many reports: {self._reports} for {self._frames} frames")
        if self.start is None:
            return self._first_report(offset, log, last_file)
        if offset == self.acked:
            return False
        if offset > self.sent:
            raise _refused(f"the slave reports offset {offset}, but the log was sent only up to {self.sent}")
        if offset < max(self.acked, self.start):
            raise _refused(f"the slave reports offset {offset} after offset {max(self.acked, self.start)}")
        self.acked = offset
        return True

    def _first_report(self, offset: int, log: LogRange, last_file: int) -> bool:
        if not 0 <= offset <= max(log.end, first_report(0)):
            raise _refused(f"the slave reports offset {offset}, but the log of the master ends at {log.end}")
        if offset == 0:
            self.begin(last_file, 0)
            return False
        if offset < log.begin:
            raise HaRefused(
                Status.HA_GAP,
                f"the slave reports offset {offset}, but the log of the master starts at {log.begin}",
            )
        self.begin(offset, offset)
        return True


def start_for(introduction: Introduction, log: LogRange, last_file: int) -> int:
    """Return the offset at which the transfer to a slave starts after its introduction.

    Raises HaRefused: HA_IDENTITY, HA_DIVERGED or HA_GAP.
    """
    theirs = introduction.log
    if theirs.file_size != log.file_size:
        text = f"its files have {theirs.file_size} bytes, the master's have {log.file_size}"
        raise HaRefused(Status.HA_IDENTITY, text)
    if theirs.begin == theirs.end:
        if theirs.end and log.begin <= theirs.end <= log.end:
            return theirs.end
        return log.begin if introduction.whole_log else last_file
    if theirs.end > log.end:
        raise HaRefused(
            Status.HA_DIVERGED,
            f"the log of the slave ends at {theirs.end}, after the end of the master's log at {log.end}",
        )
    if not max(theirs.begin, theirs.end - MOST_TAIL_BYTES) <= introduction.tail_begin < theirs.end:
        raise HaRefused(
            Status.HA_IDENTITY,
            f"the slave sent an invalid log tail, which starts at {introduction.tail_begin}",
        )
    if introduction.tail_begin < log.begin:
        text = f"the slave's log ends at {theirs.end}, but the master's log starts at {log.begin}"
        raise HaRefused(Status.HA_GAP, text)
    return theirs.end


def compare_tail(introduction: Introduction, digest: bytes) -> None:
    """Compare `digest`, which the master computed, with the slave's digest of the same range.

    Raises HaRefused (HA_DIVERGED) if they differ.
    """
    if digest != introduction.tail_digest:
        text = (
            f"between {introduction.tail_begin} and {introduction.log.end} its log differs from the master's"
        )
        raise HaRefused(Status.HA_DIVERGED, text)


def _refused(problem: str) -> HaRefused:
    return HaRefused(Status.HA_REPORT_REFUSED, problem)
