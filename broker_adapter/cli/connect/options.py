"""What all `dledger broker` commands have in common: where the broker is, TLS, time-outs, moments."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from broker_adapter.cli.connect.target import Target
from broker_adapter.client import Admin
from dledger.cli.client_options import SERVERS_VARIABLE, TIMEOUT, tls_options
from dledger.platform import parse_servers, tls_files

#: The environment variable that names the NameServers.
NAMESRV_VARIABLE = "DLEDGER_NAMESRV"

T = TypeVar("T")


def _parse_optional(ctx: click.Context, param: click.Parameter, value: str | None) -> list[str]:
    return parse_servers(ctx, param, value) if value is not None else []


def target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--namesrv, --servers, --tls-... and --timeout as the one argument `target`."""

    @wraps(command)
    def with_target(
        *arguments: Any,
        namesrv: list[str],
        servers: list[str],
        tls_ca: Path | None,
        tls_cert: Path | None,
        tls_key: Path | None,
        timeout: float,
        **options: Any,
    ) -> Any:
        ctx = click.get_current_context()
        on_line = click.core.ParameterSource.COMMANDLINE
        given = {name for name in ("namesrv", "servers") if ctx.get_parameter_source(name) is on_line}
        if len(given) == 2:
            raise click.UsageError(
                "--namesrv and --servers exclude each other: one of them leads to the master"
            )
        if not namesrv and not servers:
            raise click.UsageError(
                f"where is the broker? Give --namesrv ({NAMESRV_VARIABLE}) or --servers "
                f"({SERVERS_VARIABLE}); `dledger cluster up --broker` prints both"
            )
        # Of the variables the NameServer's wins; what stands on the command line wins over both.
        use_servers = not namesrv or given == {"servers"}
        tls = tls_files(tls_ca, tls_cert, tls_key)
        target = Target([] if use_servers else namesrv, servers if use_servers else [], tls, timeout)
        return command(*arguments, target=target, **options)

    with_options = click.option(
        "--timeout",
        type=TIMEOUT,
        default=10.0,
        show_default=True,
        help="Seconds for a call, changes of the master included.",
    )(with_target)
    with_options = tls_options(with_options, "servers")
    with_options = click.option(
        "--servers",
        callback=_parse_optional,
        envvar=SERVERS_VARIABLE,
        metavar="HOST:PORT,...",
        help=f"The nodes, which know their NameServers; also from the variable {SERVERS_VARIABLE}.",
    )(with_options)
    return click.option(
        "--namesrv",
        callback=_parse_optional,
        envvar=NAMESRV_VARIABLE,
        metavar="HOST:PORT,...",
        help=f"The NameServers; also from the variable {NAMESRV_VARIABLE}.",
    )(with_options)


def ask_broker(target: Target, question: Callable[[Admin], Awaitable[T]]) -> T:
    """The answer of the masters to a question, or the error of the last attempt."""

    async def run() -> T:
        async with target.admin() as admin:
            return await question(admin)

    return asyncio.run(run())


json_option = click.option("--json", "as_json", is_flag=True, help="All facts, as JSON.")

#: Of milliseconds that still fit where they travel, 64 bits.
_MOST_DIGITS = 18
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_moment(text: str) -> int:
    """ms since 1970: of a time as such a number, as ISO 8601 (local unless it says otherwise), or of an age
    such as 10m. BadParameter if it is none of these."""
    if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS:
        return int(text)
    if age := re.fullmatch(r"(\d{1,9})([smhd])", text):
        return max(0, time.time_ns() // 1_000_000 - int(age[1]) * _UNITS_MS[age[2]])
    try:
        return max(0, int(datetime.fromisoformat(text).timestamp() * 1000))
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is no time: 2025-01-31T12:00, 10m (ago), or ms since 1970"
        ) from None


def moment(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    """As the callback of an option."""
    return None if value is None else parse_moment(value)


def shown_time(unix_ms: int) -> str:
    """For people, in local time; nothing for 0."""
    if not unix_ms:
        return ""
    return datetime.fromtimestamp(unix_ms / 1000).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
