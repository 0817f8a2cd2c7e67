"""The client of a replicated log: `AsyncClient`, and `Client` for programs without asyncio."""

from dledger.client.async_client import AsyncClient
from dledger.client.batching import Limits
from dledger.client.blocking import BlockingAppender, BlockingSession, Client
from dledger.client.session import Appender, Session
from dledger.client.values import AppendResult, Entry
from dledger.infra.transport.tls import TlsFiles
from dledger.rpc.ports import BackupHead

__all__ = [
    "AppendResult",
    "Appender",
    "AsyncClient",
    "BackupHead",
    "BlockingAppender",
    "BlockingSession",
    "Client",
    "Entry",
    "Limits",
    "Session",
    "TlsFiles",
]
