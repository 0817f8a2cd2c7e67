"""A node as a process: logging, signals, exit codes."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys

from dledger.errors import ConfigError, DLedgerError
from dledger.node.config import NodeConfig
from dledger.node.logs import configure_logging, get_logger
from dledger.node.server import NodeServer

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_CONFIG = 2

# The disk thread comes back from fdatasync and needs the interpreter for some microseconds; by default it
# would wait up to 5 ms for a busy event loop to let go of it.
_SWITCH_INTERVAL_S = 0.0005


def run_node(config: NodeConfig) -> int:
    """Run until SIGTERM or SIGINT. Returns an exit code; errors are written to stderr, with what to do."""
    configure_logging(config.log.format, config.log.level, node=config.node_id, group=config.group)
    try:
        return asyncio.run(_serve(config))
    except DLedgerError as error:
        get_logger("node").error("cannot start", code=int(error.code), reason=str(error))
        return EXIT_CONFIG if isinstance(error, ConfigError) else EXIT_FAILED


async def _serve(config: NodeConfig) -> int:
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[signal.Signals] = loop.create_future()

    def ask(number: signal.Signals) -> None:
        if not asked.done():
            asked.set_result(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask, number)
    server = NodeServer(config)
    await server.start()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    # What start-up made stays: the collector need not look at it again and again.
    gc.collect()
    gc.freeze()
    get_logger("node").info("stopping", signal=(await asked).name)
    await server.stop()
    return EXIT_OK
