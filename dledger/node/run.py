"""A node as a process: logging, signals, exit codes."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

from dledger.errors import Code, ConfigError, NumberedError
from dledger.logs import configure_logging, get_logger
from dledger.node.loop.polling import NodeLoop
from dledger.node.loop.wakefulness import DEVICE, CpuLatency, CpuWakeLock
from dledger.node.loop.watchdog import LoopWatchdog
from dledger.node.machine.state_machine import StateMachine
from dledger.node.program import Program, ServedNode, load_program
from dledger.node.rejoin import prepare_rejoin
from dledger.node.server import NodeServer
from dledger.node.setup.config import NodeConfig
from dledger.store.descriptors import descriptors, raise_limit
from dledger.store.disk import Disk

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_CONFIG = 2

# The disk thread comes back from fdatasync and needs the interpreter for some microseconds; by default it
# would wait up to 5 ms for a busy event loop to let go of it.
_SWITCH_INTERVAL_S = 0.0005
# Every batch makes thousands of short-lived objects, none of them in a cycle: by default (700) the collector
# would look at each batch several times.
_COLLECT_EVERY = 20_000
# Whatever a node or its program writes is for its owner only.
_UMASK = 0o077


def run_node(
    config: NodeConfig,
    state_machine: StateMachine | None = None,
    *,
    rejoin: bool = False,
    disk: Disk | None = None,
) -> int:
    """Run until SIGTERM or SIGINT. Returns an exit code; errors are written to stderr, with what to do.

    `disk`: other files than those of the machine.
    """
    configure_logging(config.log.format, config.log.level, node=config.node_id, group=config.group)
    try:
        os.umask(_UMASK)
        raise_limit()
        descriptors.hold(on_shortage=_tell_of_shortage)
        program = load_program(config)
        if program is not None and state_machine is not None:
            raise ConfigError("a node has a program or a state machine, not both", code=Code.CONFIG_INVALID)
        server: ServedNode = (
            NodeServer(config, state_machine, disk=disk) if program is None else program.make_node()
        )
        gc.enable()  # it is off while a program's modules are imported
        wake_lock = _wake_lock(config.keep_cpus_awake)
        server.metrics.keeps_cpus_awake = lambda: wake_lock.is_possible
        with asyncio.Runner(loop_factory=partial(NodeLoop, wake_lock)) as runner:
            return runner.run(_serve(server, program, rejoin))
    except NumberedError as error:
        get_logger("node").error("cannot start", code=error.number, reason=str(error))
        return EXIT_CONFIG if isinstance(error, ConfigError) else EXIT_FAILED


def _tell_of_shortage(path: Path) -> None:
    get_logger("node").error("no file descriptor is left: a file waits", path=str(path))


def _wake_lock(wanted: bool) -> CpuWakeLock:
    if not wanted:
        return CpuWakeLock(None)
    try:
        device = CpuLatency()
    except OSError as error:
        get_logger("node").info(
            "CPUs may sleep within an append, which takes longer then: see keep_cpus_awake",
            why=f"{DEVICE}: {error.strerror}",
        )
        return CpuWakeLock(None)
    return CpuWakeLock(device.stay_awake)


async def _serve(server: ServedNode, program: Program | None, rejoin: bool) -> int:
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[signal.Signals] = loop.create_future()

    def ask(number: signal.Signals) -> None:
        if not asked.done():
            asked.set_result(number)

    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, ask, number)
    # A start may occupy the loop for long, if the log is: only signals are watched for.
    watchdog = LoopWatchdog(0)
    watchdog.watch(loop, numbers)
    starting = asyncio.ensure_future(_start(server, program, rejoin))
    # A start may wait for other members, and somebody may not want to wait with it.
    waited: list[asyncio.Future[Any]] = [starting, asked]
    await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return _ended(server)
    await starting
    watchdog.stop()
    watchdog = LoopWatchdog(server.config.timing.loop_stall_ms / 1000)
    watchdog.watch(loop, numbers)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    # What start-up made stays: the collector need not look at it again and again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_EVERY)
    get_logger("node").info("stopping", signal=(await asked).name)
    if program is not None:
        await program.stop()
    await server.stop()
    watchdog.stop()
    return _ended(server)


def _ended(server: ServedNode) -> int:
    if not server.is_released:
        # A thread is stuck in the kernel. The interpreter would wait for it at its exit, for ever.
        sys.stderr.flush()
        os._exit(EXIT_FAILED)
    return EXIT_OK


async def _start(server: ServedNode, program: Program | None, rejoin: bool) -> None:
    if rejoin:
        await prepare_rejoin(server.config)
    await server.start()
    if program is None:
        return
    try:
        await program.start()
    except BaseException:
        await server.stop()
        raise
