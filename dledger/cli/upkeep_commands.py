"""`dledger purge`, `scrub`, `backup` and `restore`: maintenance of a log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path

import click

from dledger.cli.client_options import MAX_INT64, TARGET_DIRECTORY, TIMEOUT, client_options, parse_address
from dledger.cli.exits import Exit, error_line
from dledger.cli.output import human_bytes
from dledger.cli.search_notice import reporting_search
from dledger.cli.server_commands import split_member
from dledger.client import AsyncClient, BackupHead, TlsFiles
from dledger.core.membership_change import is_node_id
from dledger.core.values import FlushMode
from dledger.errors import Code, DLedgerError, ReadFailed, StorageError
from dledger.infra.addresses import is_address
from dledger.node.setup.config import duration_ms
from dledger.store.api import Frames
from dledger.store.format.batch import decode_entries
from dledger.store.identity import Identity
from dledger.store.image_files import ImageManifest, decode_manifest
from dledger.store.offline.backup import (
    BackupImage,
    BackupManifest,
    read_manifest,
    restore_directory,
    write_backup,
)

#: Pause before the servers are asked again whether they are up to date.
_PAUSE_S = 0.1
#: A server that does not respond within this time, in seconds, is passed over.
_ANSWER_S = 3.0


@click.command()
@client_options
@click.option(
    "--before", "before_index", type=click.IntRange(0, MAX_INT64), help="Remove entries below this index."
)
@click.option("--before-age", metavar="AGE", help="Remove entries older than this: 12h, 7d, ...")
@click.option("--timeout", type=TIMEOUT, default=10.0, show_default=True, help="Time limit in seconds.")
def purge(
    servers: list[str],
    group: str,
    tls: TlsFiles | None,
    before_index: int | None,
    before_age: str | None,
    timeout: float,
) -> None:
    """Remove old entries, on all nodes equally.

    The leader first saves a state image, which a majority of the members copies, so that no state is lost.
    Then the log is cut at the last permitted border between data files. This happens in the background:
    `dledger status` shows the new start. A read below it fails with 419 and the new start.

    The request is lost if another leader takes over before the start has moved: repeat it then.

    \b
    Examples:
      dledger purge --before 1000000
      dledger purge --before-age 7d
    """
    if (before_index is None) == (before_age is None):
        raise click.UsageError("give either --before or --before-age")
    age_ms = 0 if before_age is None else duration_ms(before_age)

    async def run() -> tuple[int, int]:
        client = AsyncClient(servers, group=group, session=False, tls=tls)
        async with client, reporting_search(client):
            return await client.purge(before_index, before_age_ms=age_ms, timeout=timeout)

    before, begin = asyncio.run(run())
    click.echo(f"entries below {before} will be removed; the log now starts at {begin}")


@click.command()
@client_options
@click.option(
    "--node",
    callback=parse_address,
    metavar="HOST:PORT",
    help="Address of one server.  [default: all, one after the other]",
)
@click.option(
    "--rate", type=click.IntRange(1, MAX_INT64), help="Maximum bytes per second.  [default: unlimited]"
)
def scrub(servers: list[str], group: str, tls: TlsFiles | None, node: str | None, rate: int | None) -> None:
    """Verify all entries stored by a node. Damaged ones are repaired from the other nodes.

    Exits with 1 if damage was found, repaired or not, or if a node could not be verified. The remaining nodes
    are verified regardless.

    \b
    Examples:
      dledger scrub
      dledger scrub --node 10.0.0.2:20911 --rate 50000000
    """
    if node is not None and node not in servers:
        raise click.UsageError(f"--node {node} is not one of --servers")

    async def run() -> bool:
        """Return True if no damage was found and all servers were verified."""
        well = True
        async with AsyncClient(servers, group=group, session=False, tls=tls) as client:
            for server in [node] if node is not None else servers:
                try:
                    well &= await _scrub_one(client, server, rate or 0) == 0
                except DLedgerError as error:
                    well = False
                    click.echo(f"{server}: NOT verified: {error_line(error)}", err=True)
        return well

    if not asyncio.run(run()):
        raise click.exceptions.Exit(Exit.FAILED)


async def _scrub_one(client: AsyncClient, server: str, rate: int) -> int:
    damage_count = 0
    async with aclosing(client.scrub(server, bytes_per_second=rate)) as steps:
        async for step in steps:
            for damage in step.found:
                damage_count += 1
                click.echo(
                    f"{server}: entries {damage.first_index}..{damage.last_index} are damaged: "
                    f"{damage.file} at {damage.offset}: {damage.reason}"
                )
            if step.done:
                click.echo(
                    f"{server}: verified up to {step.ledger_end_index}, {human_bytes(step.bytes_read)}, "
                    f"{damage_count} damaged range{'' if damage_count == 1 else 's'}"
                )
            else:
                click.echo(f"{server}: at {step.next_index} of {step.ledger_end_index}", err=True)
    return damage_count


@click.command()
@client_options
@click.option(
    "--to",
    "directory",
    required=True,
    type=TARGET_DIRECTORY,
    help="Target directory: new, or without a backup.",
)
@click.option(
    "--node",
    callback=parse_address,
    metavar="HOST:PORT",
    help="Server to copy from.  [default: the first of --servers that is up to date]",
)
@click.option("--timeout", type=TIMEOUT, default=10.0, show_default=True, help="Seconds until it starts.")
def backup(
    servers: list[str], group: str, tls: TlsFiles | None, directory: Path, node: str | None, timeout: float
) -> None:
    """Copy the log of a running group, of a broker too: topics, groups, offsets and messages are in it.

    The backup has all entries that were acknowledged before the command started, and is a consistent prefix
    of the log. It is verified before the command ends. If it fails, the directory contains no backup. Without
    a leader, name a node with --node: the backup then has the entries that this node knows to be committed.

    \b
    Example:
      dledger backup --to /backup/orders-2025-01-31
    """
    manifest = asyncio.run(_backup(servers, group, tls, node, directory, timeout))
    click.echo(f"{directory}: entries {manifest.base.index + 1}..{manifest.tail.index}")


async def _backup(
    servers: list[str],
    group: str,
    tls: TlsFiles | None,
    node: str | None,
    directory: Path,
    timeout: float,
) -> BackupManifest:
    deadline = asyncio.get_running_loop().time() + timeout
    async with AsyncClient(servers, group=group, session=False, tls=tls) as client:
        try:
            async with reporting_search(client):
                acknowledged = await client.read_index(timeout=timeout)
        except ReadFailed as error:
            if node is None:
                raise
            acknowledged = -1
            text = "the backup has what this node knows to be committed"
            click.echo(f"{error.message}; {text}", err=True)
        head, parts = await _open_backup(client, [node] if node else servers, acknowledged, deadline)
        async with aclosing(parts):
            return await _store(head, parts, directory)


async def _open_backup(
    client: AsyncClient, servers: Sequence[str], acknowledged: int, deadline: float
) -> tuple[BackupHead, AsyncGenerator[BackupHead | bytes, None]]:
    """Start the backup at the first server that has committed the entry `acknowledged`.

    Raises the last failure at `deadline`, a time of the event loop.
    """
    while True:
        for server in servers:
            parts = client.backup(server)
            try:
                async with asyncio.timeout(_ANSWER_S):
                    head = await anext(parts)
                assert not isinstance(head, bytes)
                if head.last_index >= acknowledged:
                    return head, parts
                text = f"{server} has committed entries up to {head.last_index}, not yet {acknowledged}"
                failure: DLedgerError = ReadFailed(text, code=Code.READ_NOT_CONFIRMED)
            except TimeoutError:
                text = f"{server} did not respond within {_ANSWER_S:g} s"
                failure = ReadFailed(text, code=Code.READ_NOT_CONFIRMED)
            except DLedgerError as error:
                failure = error
            await parts.aclose()
        if asyncio.get_running_loop().time() >= deadline:
            raise failure
        await asyncio.sleep(_PAUSE_S)


async def _store(
    head: BackupHead, parts: AsyncGenerator[BackupHead | bytes, None], directory: Path
) -> BackupManifest:
    loop = asyncio.get_running_loop()
    identity = Identity(
        head.cluster_id, head.group, head.node_id, head.data_file_size, FlushMode(head.flush_mode)
    )

    def frames() -> Iterator[Frames]:
        at = head.base.index + 1
        while (data := asyncio.run_coroutine_threadsafe(_next(parts), loop).result()) is not None:
            part = Frames(at, _last_index(data), data)
            at = part.last_index + 1
            yield part
        if at != head.last_index + 1:
            text = f"the response of {head.node_id} ends at entry {at - 1}, expected {head.last_index}"
            raise StorageError(f"{text}: repeat the command", code=Code.BACKUP_INCOMPLETE)

    def chunks(manifest: ImageManifest) -> Iterator[bytes]:
        for _ in manifest.crcs:
            chunk = asyncio.run_coroutine_threadsafe(_next(parts), loop).result()
            if chunk is None:
                text = f"the response of {head.node_id} ends within its state image: repeat the command"
                raise StorageError(text, code=Code.BACKUP_INCOMPLETE)
            yield chunk

    def write() -> BackupManifest:
        manifest = decode_manifest(head.image) if head.image else None
        image = None if manifest is None else BackupImage(manifest, chunks(manifest))
        return write_backup(frames(), identity, directory, base=head.base, image=image)

    return await asyncio.to_thread(write)


async def _next(parts: AsyncGenerator[object, None]) -> bytes | None:
    part = await anext(parts, None)
    assert part is None or isinstance(part, bytes)
    return part


def _last_index(frames: bytes) -> int:
    entries = decode_entries(frames)
    return entries[-1].index if entries else -1


@click.command()
@click.argument("source", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--data-dir",
    "directory",
    required=True,
    type=TARGET_DIRECTORY,
    help="The directory of the new node; empty or absent.",
)
@click.option("--cluster-id", required=True, help="Id of the new cluster, different from the old one.")
@click.option("--node-id", required=True, help="Id of this node in the new cluster.")
@click.option("--group", help="Name of the log.  [default: that of the backup]")
@click.option(
    "--flush-mode",
    type=click.Choice([mode.value for mode in FlushMode], case_sensitive=False),
    default=FlushMode.SYNC_FLUSH.value,
    show_default=True,
    help="Flush mode of the new cluster, the same on all nodes.",
)
@click.option(
    "--member",
    "members",
    multiple=True,
    metavar="ID=HOST:PORT",
    help="A node of the new cluster; repeat it. Needed if the members of the old one have changed.",
)
def restore(
    source: Path,
    directory: Path,
    cluster_id: str,
    node_id: str,
    group: str | None,
    flush_mode: str,
    members: Sequence[str],
) -> None:
    """Create the directory of a node of a new cluster from a backup. Repeat it for every node.

    The whole backup is verified first; if it is damaged, nothing is created. If the command is interrupted,
    no node starts with the directory: remove it, and run the command again. A broker derives its own files
    from the log when it starts.

    The old cluster must not be mixed with the new one: they have different ids and refuse each other.

    \b
    Example:
      for n in n1 n2 n3; do
        dledger restore /backup/orders --data-dir /var/lib/log-$n --cluster-id orders-2 --node-id $n
      done
    """
    manifest = read_manifest(source)
    identity = Identity(
        cluster_id,
        group or manifest.group,
        node_id,
        manifest.data_file_size,
        FlushMode(flush_mode.upper()),
    )
    restore_directory(source, directory, identity, members=_addresses(members))
    first, last = manifest.base.index + 1, manifest.tail.index
    click.echo(f"{directory} belongs to {node_id} of cluster {cluster_id} and has entries {first}..{last}")


def _addresses(members: Sequence[str]) -> dict[str, str]:
    """Return the addresses of --member options by node id. They are in the log of the new cluster."""
    addresses = dict(split_member(text) for text in members)
    if len(addresses) < len(members) or len(set(addresses.values())) < len(members):
        raise click.UsageError("two --member have the same id or address")
    for node_id, address in addresses.items():
        if not is_node_id(node_id):
            raise click.UsageError(f"--member: {node_id!r:.300} is no node id: 1 to 255 printable characters")
        if not is_address(address):
            raise click.UsageError(f"--member: {address!r:.300} is not an address of the form host:port")
    return addresses
