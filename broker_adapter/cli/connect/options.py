"""Options shared by all `dledger broker` commands: target, TLS, timeouts, points in time."""

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
from dledger.cli.client_options import SERVERS_VARIABLE, TIMEOUT, parse_servers, tls_files, tls_options

#: The environment variable with the addresses of NameServers.
NAMESRV_VARIABLE = "DLEDGER_NAMESRV"

T = TypeVar("T")


def _parse_optional(ctx: click.Context, param: click.Parameter, value: str | None) -> list[str]:
    return parse_servers(ctx, param, value) if value is not None else []


def target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --namesrv, --servers, --tls-... and --timeout.

    The command receives them as the argument `target`.
    """

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
        passed = {name for name in ("namesrv", "servers") if ctx.get_parameter_source(name) is on_line}
        if len(passed) == 2:
            raise click.UsageError("--namesrv and --servers are mutually exclusive: pass one of them")
        if not namesrv and not servers:
            raise click.UsageError(
                f"no broker given: pass --namesrv ({NAMESRV_VARIABLE}) or --servers "
                f"({SERVERS_VARIABLE}); `dledger cluster up --broker` prints both"
            )
        # The command line takes precedence over both variables, and the NameServer variable over the server
        # variable.
        use_servers = not namesrv or passed == {"servers"}
        tls = tls_files(tls_ca, tls_cert, tls_key)
        target = Target([] if use_servers else namesrv, servers if use_servers else [], tls, timeout)
        return command(*arguments, target=target, **options)

    with_options = click.option(
        "--timeout",
        type=TIMEOUT,
        default=10.0,
        show_default=True,
        help="Timeout per call in seconds, including changes of the master.",
    )(with_target)
    with_options = tls_options(with_options, "servers")
    with_options = click.option(
        "--servers",
        callback=_parse_optional,
        envvar=SERVERS_VARIABLE,
        metavar="HOST:PORT,...",
        help=f"Addresses of nodes, which return their NameServers.  [env: {SERVERS_VARIABLE}]",
    )(with_options)
    return click.option(
        "--namesrv",
        callback=_parse_optional,
        envvar=NAMESRV_VARIABLE,
        metavar="HOST:PORT,...",
        help=f"Addresses of NameServers.  [env: {NAMESRV_VARIABLE}]",
    )(with_options)


def call_broker(target: Target, request: Callable[[Admin], Awaitable[T]]) -> T:
    """Send a request to the masters and return the response.

    If all attempts fail, raises the error of the last one.
    """

    async def run() -> T:
        async with target.admin() as admin:
            return await request(admin)

    return asyncio.run(run())


json_option = click.option("--json", "as_json", is_flag=True, help="Print all values as JSON.")

#: Maximum number of digits of a 64-bit number of milliseconds.
_MAX_DIGITS = 18
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_moment(text: str) -> int:
    """Parse a point in time into ms since 1970. The text is a number of ms, an ISO 8601 time (local time by
    default), or an age such as 10m.

    Raises BadParameter for any other text.
    """
    if text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS:
        return int(text)
    if age := re.fullmatch(r"(\d{1,9})([smhd])", text):
        return max(0, time.time_ns() // 1_000_000 - int(age[1]) * _UNITS_MS[age[2]])
    try:
        return max(0, int(datetime.fromisoformat(text).timestamp() * 1000))
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is not a valid time; use the form 2025-01-31T12:00, 10m (10 minutes ago) or ms "
            "since 1970"
        ) from None


def moment(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    """Option callback for `parse_moment`."""
    return None if value is None else parse_moment(value)


def shown_time(unix_ms: int) -> str:
    """Format a time in local time. Return "" for 0."""
    if not unix_ms:
        return ""
    return datetime.fromtimestamp(unix_ms / 1000).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
