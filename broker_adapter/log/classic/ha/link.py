"""A slave's connection to its master."""

from __future__ import annotations

import asyncio
import secrets
import ssl
from contextlib import suppress
from typing import NamedTuple

from broker_adapter.errors import AnswerMissing, BrokerError, HaRefused, Status
from broker_adapter.log.classic.ha.handshake import (
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
    encode_introduction,
    error_of,
    first_acked,
    to_prove_introduction,
    to_prove_welcome,
)
from broker_adapter.log.classic.ha.options import Handshake
from broker_adapter.log.classic.ha.transfers import Transfer, TransferReader, encode_report
from dledger.infra.addresses import split_address
from dledger.rpc.cluster_secret import ClusterSecret

# RocketMQ's heartbeat interval of both sides (haSendHeartbeatInterval), and its timeout for the other side
# (haHousekeepingInterval).
HEARTBEAT_S = 5.0
SILENCE_S = 20.0
# Maximum bytes per read. When twice as many are buffered, the master must wait.
_READ_BYTES = 1 << 20
# Timeout in seconds for sending the last report on close.
_CLOSE_S = 1.0


class SlaveHello(NamedTuple):
    """A slave's part of the handshake. `tail_digest` covers `log` from `tail_begin` to its end."""

    mode: Handshake
    identity: HaIdentity
    log: LogRange
    tail_begin: int
    tail_digest: bytes
    whole_log: bool
    secret: ClusterSecret | None = None
    probe_s: float = 3.0


class Link:
    """A connection: `open` it, `read` until it fails, `report` stored data, and `close` it.

    The link repeats the last report every `heartbeat_s`, independently of `read`. `welcome`: the master's
    reply to the handshake, or None if there was no handshake.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str) -> None:
        self.welcome: Welcome | None = None
        self._reader = reader
        self._writer = writer
        self._name = name
        self._transfers = TransferReader(0)
        self._early: list[bytes] = []  # received with the end of the handshake
        self._reported = 0
        self._has_received = False
        self._heartbeats: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        address: str,
        position: int,
        *,
        begins_anywhere: bool = False,
        hello: SlaveHello | None = None,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = 10.0,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> Link:
        """Connect and request the log starting at a physical offset.

        `begins_anywhere`: accept any start of the transfer. `hello`: use the handshake. Raises AnswerMissing
        (ANSWER_MISSING) or HaRefused.
        """
        host, port = split_address(address)
        try:
            async with asyncio.timeout(timeout_s):
                opened = await asyncio.open_connection(
                    host, int(port), limit=_READ_BYTES, ssl=tls, server_hostname=host if tls else None
                )
        except (OSError, TimeoutError, ValueError) as error:
            text = f"{address}: no connection: {str(error) or 'timeout'}"
            raise AnswerMissing(Status.ANSWER_MISSING, text) from None
        link = cls(*opened, address)
        try:
            if hello is not None:
                await link._shake_hands(hello, timeout_s)
        except BaseException:
            await link.close()
            raise
        first = position
        if hello is not None and link.welcome is not None:
            position, begins_anywhere = link.welcome.start, False
            first = first_acked(hello.log, position)
        link.report(first)
        link._transfers = TransferReader(position, begins_anywhere=begins_anywhere)
        link._heartbeats = asyncio.get_running_loop().create_task(link._repeat(heartbeat_s))
        return link

    @property
    def reported(self) -> int:
        return self._reported

    async def read(self, silence_s: float = SILENCE_S) -> list[Transfer]:
        """Wait for data and return its transfers: none if only a part of a header has arrived.

        Raises AnswerMissing if the connection has ended or no data has arrived for `silence_s`, or HaRefused.
        """
        data = self._early.pop() if self._early else await self._read(silence_s)
        return list(self._transfers.feed(data))

    def report(self, position: int) -> None:
        """Report that the log is stored up to `position`.

        If an earlier report had a higher position, this one has no effect.
        """
        self._reported = max(position, self._reported)
        self._writer.write(encode_report(self._reported))

    async def close(self) -> None:
        if self._heartbeats is not None:
            self._heartbeats.cancel()
            await asyncio.gather(self._heartbeats, return_exceptions=True)
        self._writer.close()
        try:
            with suppress(OSError):
                async with asyncio.timeout(_CLOSE_S):
                    await self._writer.wait_closed()
        finally:
            self._writer.transport.abort()

    async def _repeat(self, heartbeat_s: float) -> None:
        while True:
            await asyncio.sleep(heartbeat_s)
            self.report(self._reported)

    async def _read(self, silence_s: float) -> bytes:
        try:
            async with asyncio.timeout(silence_s):
                return await self._receive()
        except TimeoutError:
            raise self._missing(f"the master has sent nothing for {silence_s:g} s") from None

    async def _receive(self) -> bytes:
        """Read some data. Raises AnswerMissing if the connection has ended."""
        try:
            data = await self._reader.read(_READ_BYTES)
        except OSError as error:
            raise self._missing(str(error)) from None
        if not data:
            why = "" if self._has_received else " before sending data: see the master's log"
            raise self._missing(f"the master has closed the connection{why}")
        self._has_received = True
        return data

    def _missing(self, problem: str) -> AnswerMissing:
        return AnswerMissing(Status.ANSWER_MISSING, f"{self._name}: {problem}")

    # -- the handshake -----------------------------------------------------------------------------------

    async def _shake_hands(self, hello: SlaveHello, timeout_s: float) -> None:
        """Run the handshake.

        `welcome` remains None if the handshake is optional and the master does not support it.
        """
        frames = HandshakeReader()
        self._writer.write(encode_report(PROBE))
        is_required = hello.mode is Handshake.REQUIRED
        within_s = timeout_s if is_required else hello.probe_s
        challenge = await self._next_frame(frames, within_s)
        if challenge is None and not is_required:
            return
        if challenge is None:
            text = f"{self._name} does not answer the handshake within {within_s:g} s"
            raise HaRefused(Status.HA_HANDSHAKE_MISSING, text)
        if not isinstance(challenge, Challenge) or challenge.version != VERSION:
            raise self._unexpected(challenge)
        introduction = Introduction(
            secrets.token_bytes(NONCE_BYTES),
            hello.identity,
            hello.log,
            hello.tail_begin,
            hello.tail_digest,
            hello.whole_log,
        )
        if hello.secret is not None:
            introduction = introduction._replace(
                proof=hello.secret.proof_of(to_prove_introduction(challenge, introduction))
            )
        self._writer.write(encode_introduction(introduction))
        welcome = await self._next_frame(frames, timeout_s)
        if not isinstance(welcome, Welcome):
            raise self._unexpected(welcome)
        self._check(hello, challenge, introduction, welcome)
        self.welcome = welcome
        if rest := frames.rest():
            self._early.append(rest)

    def _check(
        self, hello: SlaveHello, challenge: Challenge, introduction: Introduction, welcome: Welcome
    ) -> None:
        if hello.secret is not None:
            to_prove = to_prove_welcome(challenge, introduction, welcome)
            if not hello.secret.accepts_proof(to_prove, welcome.proof):
                text = f"{self._name} does not know the cluster secret"
                raise HaRefused(Status.HA_NOT_PROVEN, text)
        theirs, own = welcome.identity, hello.identity
        if theirs != HaIdentity(own.cluster, own.broker_name, 0):
            text = f"{self._name} is {theirs}, not the master of {own.cluster}/{own.broker_name}"
            raise HaRefused(Status.HA_IDENTITY, text)
        is_next = welcome.start == hello.log.end or hello.log.begin == hello.log.end
        if welcome.log.file_size != hello.log.file_size or not is_next:
            text = f"{self._name} starts at {welcome.start} in files of {welcome.log.file_size} bytes"
            raise HaRefused(Status.HA_IDENTITY, text)

    async def _next_frame(
        self, frames: HandshakeReader, within_s: float
    ) -> Challenge | Introduction | Welcome | Refusal | None:
        """Return the next frame, or None after the timeout."""
        try:
            async with asyncio.timeout(within_s):
                while (found := frames.next()) is None:
                    frames.feed(await self._receive())
                return found
        except TimeoutError:
            return None

    def _unexpected(self, found: Challenge | Introduction | Welcome | Refusal | None) -> BrokerError:
        if isinstance(found, Refusal):
            return error_of(found)
        if found is None:
            return self._missing("the master has not continued the handshake")
        text = f"{self._name} sent an unexpected {type(found).__name__}, or one of another version"
        return HaRefused(Status.HA_HANDSHAKE_MISSING, text)
