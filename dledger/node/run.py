"""A node as a process: logging, signals, exit codes."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from dledger.errors import Code, ConfigError, NumberedError
from dledger.infra.files.descriptors import descriptors, raise_limit
from dledger.infra.files.disk import Disk
from dledger.infra.logs import configure_logging, get_logger
from dledger.infra.loops.polling import NodeLoop
from dledger.infra.loops.service_manager import ServiceManager
from dledger.infra.loops.signals import STOP_SIGNALS, stop_signal
from dledger.infra.loops.wakefulness import DEVICE, CpuLatency, CpuWakeLock
from dledger.infra.loops.watchdog import LoopWatchdog
from dledger.node.joining import prepare_join, prepare_rejoin
from dledger.node.machine.state_machine import StateMachine
from dledger.node.program import Program, ServedNode, load_program
from dledger.node.server import NodeServer
from dledger.node.setup.config import NodeConfig

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_CONFIG = 2

# After fdatasync, the disk thread needs the interpreter for a few microseconds. With the default interval it
# would wait up to 5 ms until a busy event loop releases it.
_SWITCH_INTERVAL_S = 0.0005
# Every batch creates thousands of short-lived objects without cycles. With the default threshold (700), the
# collector would scan each batch several times.
_COLLECT_EVERY = 20_000
# Files of a node or its program are readable for their owner only.
_UMASK = 0o077


def run_node(
    config: NodeConfig,
    state_machine: StateMachine | None = None,
    program: Program | None = None,
    *,
    rejoin: bool = False,
    join: bool = False,
    disk: Disk | None = None,
) -> int:
    """Run until SIGTERM or SIGINT and return an exit code. Prints errors on stderr, with a remedy.

    `program` replaces the configured one, and `disk` the file system of the machine.
    """
    configure_logging(config.log.format, config.log.level, node=config.node_id, group=config.group)
    try:
        os.umask(_UMASK)
        raise_limit()
        descriptors.hold(on_shortage=_log_shortage)
        program = program or load_program(config)
        if program is not None and state_machine is not None:
            raise ConfigError(
                "a node takes either a program or a state machine, not both", code=Code.CONFIG_INVALID
            )
        server: ServedNode = (
            NodeServer(config, state_machine, disk=disk) if program is None else program.make_node()
        )
        gc.enable()  # `dledger server` switches it off while modules are imported
        wake_lock = _wake_lock(config.keep_cpus_awake)
        server.metrics.keeps_cpus_awake = lambda: wake_lock.is_possible
        with asyncio.Runner(loop_factory=partial(NodeLoop, wake_lock)) as runner:
            return runner.run(_serve(server, program, rejoin=rejoin, join=join))
    except NumberedError as error:
        get_logger("node").error("cannot start", code=error.number, reason=str(error))
        return EXIT_CONFIG if isinstance(error, ConfigError) else EXIT_FAILED


def _log_shortage(path: Path) -> None:
    get_logger("node").error("out of file descriptors: a file must wait", path=str(path))


def _wake_lock(enabled: bool) -> CpuWakeLock:
    if not enabled:
        return CpuWakeLock(None)
    try:
        device = CpuLatency()
    except OSError as error:
        get_logger("node").info(
            "CPUs may sleep during an append, which slows it down: see keep_cpus_awake",
            why=f"{DEVICE}: {error.strerror}",
        )
        return CpuWakeLock(None)
    return CpuWakeLock(device.stay_awake)


async def _serve(server: ServedNode, program: Program | None, *, rejoin: bool, join: bool) -> int:
    loop = asyncio.get_running_loop()
    stop_requested = stop_signal()
    # Opening a long log may block the loop for long: until the node has started, the watchdog handles
    # signals only.
    watchdog = LoopWatchdog(0)
    watchdog.watch(loop, STOP_SIGNALS)
    starting = asyncio.ensure_future(_start(server, program, rejoin=rejoin, join=join))
    # A start may wait for other members. A signal ends the wait.
    waited: list[asyncio.Future[Any]] = [starting, stop_requested]
    await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return _ended(server)
    await starting
    watchdog.stop()
    watchdog = LoopWatchdog(server.config.timing.loop_stall_ms / 1000)
    watchdog.watch(loop, STOP_SIGNALS)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    # Exclude the objects of the start-up, which are never freed, from further collections.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_EVERY)
    service_manager = ServiceManager.from_environment()
    service_manager.ready()
    get_logger("node").info("stopping", signal=(await stop_requested).name)
    service_manager.stopping()
    if program is not None:
        await program.stop()
    await server.stop()
    watchdog.stop()
    service_manager.close()
    return _ended(server)


def _ended(server: ServedNode) -> int:
    if not server.is_released:
        # A thread is stuck in the kernel. The interpreter would wait for it at exit, forever.
        sys.stderr.flush()
        os._exit(EXIT_FAILED)
    return EXIT_OK


async def _start(server: ServedNode, program: Program | None, *, rejoin: bool, join: bool) -> None:
    if rejoin:
        await prepare_rejoin(server.config)
    elif join:
        await prepare_join(server.config)
    await server.start()
    if program is None:
        return
    try:
        await program.start()
    except BaseException:
        await server.stop()
        raise
