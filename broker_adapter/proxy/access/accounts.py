"""Accounts and what they may do, as a file says it. Nothing here ever shows a secret."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from enum import Flag
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)

from broker_adapter.format.topic_names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from dledger import Code, ConfigError
from dledger.platform import check_secret_file, host_of

_Network = IPv4Network | IPv6Network


class Right(Flag):
    DENY = 0
    PUB = 1
    SUB = 2


_ANY = "*"
_TEXTS = {
    "DENY": Right.DENY,
    "PUB": Right.PUB,
    "SUB": Right.SUB,
    "PUB|SUB": Right.PUB | Right.SUB,
    "SUB|PUB": Right.PUB | Right.SUB,
}


def _to_right(value: object) -> object:
    found = _TEXTS.get(value) if isinstance(value, str) else value
    if not isinstance(found, Right):
        raise ValueError("it is one of DENY, PUB, SUB, PUB|SUB")
    return found


def _to_networks(value: object) -> object:
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        return tuple(ip_network(one, strict=False) for one in value)
    raise ValueError("it is a list of addresses or networks")


_Right = Annotated[Right, BeforeValidator(_to_right)]


class Account(BaseModel):
    """`topics` and `groups`: by name, or by the beginning of names, with * behind it."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, arbitrary_types_allowed=True, hide_input_in_errors=True
    )

    access_key: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\s,/=]+$")]
    """Access key that the client sends."""
    secret: Annotated[SecretStr, Field(min_length=1)]
    """Secret with which the client signs."""
    admin: bool = False
    """May do everything."""
    default_permission: _Right = Right.DENY
    """Right for topics and groups without a rule: `DENY`, `PUB`, `SUB` or `PUB|SUB`."""
    topics: dict[str, _Right] = Field(default_factory=dict)
    """Rights by topic, or by the beginning of names with `*` behind it."""
    groups: dict[str, _Right] = Field(default_factory=dict)
    """Rights by group, likewise."""
    source_addresses: Annotated[tuple[_Network, ...], BeforeValidator(_to_networks)] = ()
    """Addresses and networks from which calls of this account come. Default: any."""

    @model_validator(mode="after")
    def _stars_are_last(self) -> Account:
        for key, rules in (("topics", self.topics), ("groups", self.groups)):
            for name in rules:
                if not name or _ANY in name[:-1]:
                    raise ValueError(f"{key}: {name!r} is no name: a * may only be its last character")
        return self

    def may_come_from(self, remote: str) -> bool:
        """`remote`: host:port, "" for no IP address."""
        if not self.source_addresses:
            return True
        try:
            found = ip_address(host_of(remote))
        except ValueError:
            return False
        mapped = getattr(found, "ipv4_mapped", None)
        return any((mapped or found) in network for network in self.source_addresses)

    def topic_right(self, topic: str) -> Right:
        """Retry and dead letter topics are their group's: who consumes in it may read them."""
        for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
            if topic.startswith(prefix) and topic not in self.topics:
                return self.group_right(topic[len(prefix) :]) & Right.SUB
        return self._of(self.topics, topic)

    def group_right(self, group: str) -> Right:
        return self._of(self.groups, group)

    def _of(self, rules: Mapping[str, Right], name: str) -> Right:
        """The rule for the name itself, or else the longest that it begins with."""
        if (found := rules.get(name)) is not None:
            return found
        fitting = [rule for rule in rules if rule.endswith(_ANY) and name.startswith(rule[:-1])]
        return rules[max(fitting, key=len)] if fitting else self.default_permission


class Accounts(BaseModel):
    """All accounts of a file."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    freshness_s: Annotated[float, Field(gt=0)] = 86_400.0
    """How far the time of a signature may be off. Some clients write local time as if it were UTC, so
    less than a day shuts some of them out."""
    accounts: tuple[Account, ...] = ()
    """The accounts."""

    @model_validator(mode="after")
    def _keys_differ(self) -> Accounts:
        keys = [account.access_key for account in self.accounts]
        for key in keys:
            if keys.count(key) > 1:
                raise ValueError(f"two accounts have the access key {key!r}")
        return self

    def by_key(self) -> dict[str, Account]:
        return {account.access_key: account for account in self.accounts}


def parse_accounts(content: Mapping[str, Any], where: str) -> Accounts:
    """ConfigError names what is wrong, and shows none of the values."""
    try:
        return Accounts.model_validate(content)
    except ValidationError as error:
        faults = "; ".join(_shown(error.errors(include_input=False, include_url=False)))
        raise ConfigError(f"{where}: {faults}", code=Code.CONFIG_INVALID) from None


def read_accounts(path: Path) -> Accounts:
    """JSON if the file is called so, else TOML. ConfigError."""
    try:
        check_secret_file(path)
        text = path.read_text()
        content = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:  # also of a number too long, or brackets too deep
        # What stands there may be part of a secret: the place has to do.
        raise ConfigError(
            f"{path} is no {'JSON' if path.suffix == '.json' else 'TOML'}{_place(error)}"
        ) from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: an object was expected", code=Code.CONFIG_INVALID)
    return parse_accounts(content, str(path))


def _place(error: Exception) -> str:
    line = getattr(error, "lineno", None)
    return "" if line is None else f" (line {line})"


def _shown(faults: Iterable[Any]) -> Iterable[str]:
    for fault in faults:
        key = ".".join(str(part) for part in fault["loc"])
        text = fault["msg"].removeprefix("Value error, ")
        yield f"{key}: {text}" if key else text
