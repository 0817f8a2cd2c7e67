"""A master's end of one connection to a slave."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

from broker_adapter.errors import BrokerError, HaRefused, Status
from broker_adapter.ha.handshake import (
    NONCE_BYTES,
    PROBE,
    VERSION,
    Challenge,
    HaIdentity,
    HandshakeReader,
    Introduction,
    Refusal,
    Welcome,
    encode_challenge,
    encode_refusal,
    encode_welcome,
    first_acked,
    to_prove_introduction,
    to_prove_welcome,
)
from broker_adapter.ha.log import ShippedLog, digest_of, range_of
from broker_adapter.ha.options import HaOptions
from broker_adapter.ha.slave_progress import SlaveProgress, compare_tail, start_for
from broker_adapter.ha.transfers import REPORT_BYTES, ReportReader, encode_report, encode_transfer
from dledger.platform import AdmittedConnection, ClusterSecret, get_logger

_log = get_logger("ha")

#: What was written so lately is in memory: it is read on the event loop. Else a thread reads.
_RECENT_BYTES = 256 << 10
_PROBE = encode_report(PROBE)


class ConnectionUser(Protocol):
    """The service that a connection belongs to. Called on its event loop; must not raise."""

    def begun(self, connection: HaConnection) -> None:
        """The slave has said where it is."""

    def acknowledged(self, connection: HaConnection, offset: int) -> None: ...

    def refused(self, connection: HaConnection, error: BrokerError) -> None: ...

    def closed(self, connection: HaConnection) -> None:
        """Once."""


class HaConnection(AdmittedConnection):
    """From accept to `close`. `grown` when the log has grown.

    A slave that does not read keeps `unsent_bytes` and what was read ahead in memory, nothing else."""

    def __init__(
        self,
        user: ConnectionUser,
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
        self._opening = bytearray()  # the first report, as far as it has come
        self._reports: ReportReader | None = None
        self._handshake: HandshakeReader | None = None
        self._challenge = Challenge(VERSION, secrets.token_bytes(NONCE_BYTES))
        self._is_full = False  # the slave does not read
        self._working: asyncio.Task[None] | None = None  # reads the log on a thread
        self._begun = self._heard = self._sent = _now()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def has_begun(self) -> bool:
        """The slave has said where it is."""
        return self.progress.start is not None

    @property
    def heard(self) -> float:
        """When something came, by the clock of the event loop."""
        return self._heard

    # -- asyncio.Protocol ---------------------------------------------------------------------------------

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
        self._look_later()

    def data_received(self, data: bytes) -> None:
        self._heard = _now()
        try:
            self._take(data)
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

    # -- for the service ----------------------------------------------------------------------------------

    def grown(self) -> None:
        """Send what there is, as much as the slave takes."""
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

    # -- what comes ---------------------------------------------------------------------------------------

    def _take(self, data: bytes) -> None:
        if self._reports is not None:
            self._take_reports(data)
        elif self._handshake is not None:
            self._take_handshake(data)
        else:
            self._take_opening(data)

    def _take_opening(self, data: bytes) -> None:
        self._opening += data
        if len(self._opening) < REPORT_BYTES:
            return
        opening, rest = bytes(self._opening[:REPORT_BYTES]), bytes(self._opening[REPORT_BYTES:])
        if opening == _PROBE:
            self._handshake = HandshakeReader()
            self._write(encode_challenge(self._challenge))
            self._take_handshake(rest)
            return
        if self._options.require_handshake:
            raise HaRefused(
                Status.HA_HANDSHAKE_MISSING, f"it begins with {opening.hex()}, and the handshake is required"
            )
        self._reports = ReportReader()
        self._take_reports(bytes(self._opening))

    def _take_reports(self, data: bytes) -> None:
        assert self._reports is not None
        had_begun, has_more = self.has_begun, False
        now, log, last_file = _now(), range_of(self._log), self._log.last_file_offset
        for offset in self._reports.feed(data):
            has_more |= self.progress.report(offset, now, log, last_file)
        if has_more:
            self._user.acknowledged(self, self.progress.acked)
        if not had_begun and self.has_begun:
            self._begins()

    def _take_handshake(self, data: bytes) -> None:
        assert self._handshake is not None
        self._handshake.feed(data)
        if self._working is not None:
            raise HaRefused(Status.HA_HANDSHAKE_MISSING, "it goes on before it was answered")
        said = self._handshake.next()
        if said is None:
            return
        if not isinstance(said, Introduction):
            raise HaRefused(Status.HA_HANDSHAKE_MISSING, f"it says {type(said).__name__}, no Introduction")
        if self._secret is not None:
            to_prove = to_prove_introduction(self._challenge, said)
            if not self._secret.accepts_proof(to_prove, said.proof):
                raise HaRefused(Status.HA_NOT_PROVEN, "it does not know the secret of the cluster")
        self._check_identity(said.identity)
        self._work(partial(self._welcome, said))

    def _check_identity(self, theirs: HaIdentity) -> None:
        own = self._own
        if (theirs.cluster, theirs.broker_name) != (own.cluster, own.broker_name):
            text = f"it is of {theirs.cluster}/{theirs.broker_name}, this is {own.cluster}/{own.broker_name}"
            raise HaRefused(Status.HA_IDENTITY, text)
        if theirs.broker_id <= 0:
            raise HaRefused(Status.HA_IDENTITY, f"id {theirs.broker_id} is none of a slave")

    async def _welcome(self, said: Introduction) -> None:
        """Compare logs, and begin."""
        log = range_of(self._log)
        start = start_for(said, log, self._log.last_file_offset)
        if said.log.begin < said.log.end:
            digest = await asyncio.to_thread(digest_of, self._log, said.tail_begin, said.log.end)
            compare_tail(said, digest)
        welcome = Welcome(self._own, log, start)
        if self._secret is not None:
            to_prove = to_prove_welcome(self._challenge, said, welcome)
            welcome = welcome._replace(proof=self._secret.proof_of(to_prove))
        assert self._handshake is not None
        rest, self._handshake = self._handshake.rest(), None
        self._reports = ReportReader()
        self.identity = said.identity
        self._write(encode_welcome(welcome))
        self.progress.begin(start, first_acked(said.log, start))
        self._begins()
        self._take_reports(rest)

    def _begins(self) -> None:
        identity = self.identity
        _log.info(
            "a slave begins",
            slave=self.address,
            id=identity and identity.broker_id,
            start=self.progress.start,
        )
        self._user.begun(self)
        self._user.acknowledged(self, self.progress.acked)
        self._look_later()
        self.grown()

    # -- what goes ----------------------------------------------------------------------------------------

    def _may_send(self) -> bool:
        return not (self.is_closed or self._is_full or self._working is not None) and self.has_begun

    def _work(self, work: Callable[[], Awaitable[None]]) -> None:
        """Nothing is sent, and no handshake goes on, before it is done."""
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
            raise HaRefused(Status.HA_GAP, f"the log has nothing at {self.progress.sent} any more")
        size = self._options.transfer_batch_bytes
        for at in range(0, len(data), size):
            self._send(data[at : at + size])

    def _send(self, data: bytes) -> None:
        self._write(encode_transfer(self.progress.sent, data))
        self.progress.sent_frame(len(data))

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self.is_closed:
            self._transport.write(data)
            self._sent = _now()

    # -- time, and the end --------------------------------------------------------------------------------

    def _look_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        options = self._options
        if not self.has_begun:
            next_look = self._begun + options.housekeeping_s
        elif self._is_full:
            next_look = _now() + options.heartbeat_s
        else:
            next_look = self._sent + options.heartbeat_s
        next_look = min(next_look, self._heard + options.housekeeping_s)
        self._timer = asyncio.get_running_loop().call_at(next_look, self._look)

    def _look(self) -> None:
        now, silence = _now(), self._options.housekeeping_s
        if now - (self._heard if self.has_begun else self._begun) >= silence:
            _log.info("a slave says nothing", slave=self.address, seconds=silence)
            self.close()
            return
        if self.has_begun and not self._is_full and now - self._sent >= self._options.heartbeat_s:
            self._write(encode_transfer(self.progress.sent, b""))
        self._look_later()

    def _refuse(self, error: BrokerError) -> None:
        if self.is_closed:
            return
        transport = self._transport
        if self._handshake is not None and transport is not None:
            transport.write(encode_refusal(Refusal(int(error.status), error.message)))
            transport.close()  # when it is written
            asyncio.get_running_loop().call_later(self._options.heartbeat_s, transport.abort)
            self._transport = None
        self._user.refused(self, error)
        self.close()


def _now() -> float:
    return asyncio.get_running_loop().time()
