"""Brokers that a test can hold up or break, by files beside the node's directory. The product has no such
switches: these are other programs, which give it other parts."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from broker_adapter.config.settings import parse_settings
from broker_adapter.scheduled.delay_file import DelayFile
from broker_adapter.server.program import BrokerProgram
from dledger import AppliedEntry, NodeConfig, NodeServer
from tests.process.faulty_node import FaultInjectingDisk
from tests.process.sqlite_calls import kill_at

_LOOK_EVERY_S = 0.01


def held_up(directory: Path) -> Path:
    """While this file is there, the node dispatches nothing."""
    return directory.with_name(f"{directory.name}.held_up")


def never_master(directory: Path) -> Path:
    """While this file is there, change_to_master raises."""
    return directory.with_name(f"{directory.name}.never_master")


class FaultInjectingBroker(BrokerProgram):
    """On a disk as `ProcessCluster.inject` says."""

    def __init__(self, config: NodeConfig, settings: Mapping[str, Any]) -> None:
        super().__init__(config, parse_settings(settings))
        gate, pause = held_up(config.directory), threading.Event()  # which is never set
        apply = self.dispatcher.apply

        def apply_in_time(entries: Sequence[AppliedEntry]) -> None:
            while gate.exists():
                pause.wait(_LOOK_EVERY_S)
            apply(entries)

        self.dispatcher.apply = apply_in_time  # type: ignore[method-assign]

    def make_node(self, **options: Any) -> NodeServer:
        directory = self.config.directory
        disk = FaultInjectingDisk(directory, directory.with_name(f"{directory.name}.faults"))
        node = super().make_node(disk=disk, **options)
        change_to_master = self.adapter.change_to_master

        async def change(term: int, role_epoch: int) -> None:
            if never_master(directory).exists():
                raise RuntimeError("this adapter was told to fail")
            await change_to_master(term, role_epoch)

        self.adapter.change_to_master = change  # type: ignore[method-assign]
        return node


def kill_number(directory: Path) -> Path:
    """Holds the number of the call before which a broker that starts now is killed; a negative one: in the
    middle of which (tests.process.sqlite_calls)."""
    return directory.with_name(f"{directory.name}.kill_at")


def killed(config: NodeConfig, settings: Mapping[str, Any]) -> BrokerProgram:
    """The factory of a broker that is killed at a call by which it writes its index of delayed messages. It
    does that after each few of them."""
    program = BrokerProgram(config, parse_settings(settings))
    index = program.delivery_state._index
    assert isinstance(index, DelayFile)
    index.batch = 5
    path = kill_number(config.directory)
    number = int(path.read_text()) if path.exists() else 0
    kill_at(abs(number), torn=number < 0)
    return program


def faulty(config: NodeConfig, settings: Mapping[str, Any]) -> FaultInjectingBroker:
    """The factory."""
    return FaultInjectingBroker(config, settings)
