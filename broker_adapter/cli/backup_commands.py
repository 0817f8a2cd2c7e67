"""`dledger broker backup` and `dledger broker restore`: the directory of a broker with a classic log."""

from __future__ import annotations

from pathlib import Path

import click

from dledger.cli.client_options import TARGET_DIRECTORY


@click.command()
@click.option(
    "--from",
    "store",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory of the broker, which may run.",
)
@click.option(
    "--to",
    "target",
    required=True,
    type=TARGET_DIRECTORY,
    help="Target directory: new, or without a backup.",
)
def backup(store: Path, target: Path) -> None:
    """Copy the directory of a broker with a classic log, while the broker runs. Run it on its machine.

    The backup has all messages, topics, groups and offsets that the broker acknowledged before the command
    started. All records are verified before the command ends. If it fails, the directory contains no backup.

    A broker with a replicated log is backed up with `dledger backup`.

    \b
    Example:
      dledger broker backup --from /var/lib/broker/store --to /backup/orders-2025-01-31
    """
    from broker_adapter.server.classic_backup import back_up  # imports NumPy

    made = back_up(store, target)
    click.echo(f"{target}: {made.records} records, offsets {made.begin} to {made.end}")


@click.command()
@click.argument("source", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--data-dir",
    "directory",
    required=True,
    type=TARGET_DIRECTORY,
    help="The directory of the new broker; empty or absent.",
)
def restore(source: Path, directory: Path) -> None:
    """Create the directory of a broker with a classic log from a backup.

    All files are verified, and the directory appears when it is complete. Start a broker on it as a master.
    Its slaves need empty directories: they copy its log.

    \b
    Example:
      dledger broker restore /backup/orders-2025-01-31 --data-dir /var/lib/broker/store
    """
    from broker_adapter.server.classic_backup import restore as restore_store  # imports NumPy

    made = restore_store(source, directory)
    click.echo(f"{directory} has {made.records} records, offsets {made.begin} to {made.end}")
