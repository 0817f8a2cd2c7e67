"""Accounts and their rights, read from a file. Error texts never contain a secret."""

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

from broker_adapter.wire.topic_names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from dledger import Code, ConfigError
from dledger.infra.addresses import host_of
from dledger.infra.files.secret_files import check_secret_file

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
        raise ValueError("must be DENY, PUB, SUB or PUB|SUB")
    return found


def _to_networks(value: object) -> object:
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        return tuple(ip_network(one, strict=False) for one in value)
    raise ValueError("must be a list of addresses or networks")


_Right = Annotated[Right, BeforeValidator(_to_right)]


class Account(BaseModel):
    """An account. The keys of `topics` and `groups` are names, or prefixes of names followed by *."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, arbitrary_types_allowed=True, hide_input_in_errors=True
    )

    access_key: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\s,/=]+$")]
    """Access key that the client sends."""
    secret: Annotated[SecretStr, Field(min_length=1)]
    """Secret with which the client signs."""
    admin: bool = False
    """The account has all rights."""
    default_permission: _Right = Right.DENY
    """Right for topics and groups without a rule: `DENY`, `PUB`, `SUB` or `PUB|SUB`."""
    topics: dict[str, _Right] = Field(default_factory=dict)
    """Rights by topic, or by topic prefix followed by `*`."""
    groups: dict[str, _Right] = Field(default_factory=dict)
    """Rights by group, or by group prefix followed by `*`."""
    source_addresses: Annotated[tuple[_Network, ...], BeforeValidator(_to_networks)] = ()
    """Addresses and networks from which this account may call. Default: any."""

    @model_validator(mode="after")
    def _stars_are_last(self) -> Account:
        for key, rules in (("topics", self.topics), ("groups", self.groups)):
            for name in rules:
                if not name or _ANY in name[:-1]:
                    raise ValueError(f"{key}: {name!r} is invalid: * is allowed only as the last character")
        return self

    def may_come_from(self, remote: str) -> bool:
        """Return True if the account may call from `remote` (host:port, or "" if the caller has no IP
        address).
        """
        if not self.source_addresses:
            return True
        try:
            found = ip_address(host_of(remote))
        except ValueError:
            return False
        mapped = getattr(found, "ipv4_mapped", None)
        return any((mapped or found) in network for network in self.source_addresses)

    def topic_right(self, topic: str) -> Right:
        """Return the right for a topic.

        A retry or dead-letter topic belongs to its group, whose consumers may read it.
        """
        for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
            if topic.startswith(prefix) and topic not in self.topics:
                return self.group_right(topic[len(prefix) :]) & Right.SUB
        return self._of(self.topics, topic)

    def group_right(self, group: str) -> Right:
        return self._of(self.groups, group)

    def _of(self, rules: Mapping[str, Right], name: str) -> Right:
        """Return the right that is configured for the name itself, or else for the longest configured prefix
        of the name, or else the default.
        """
        if (found := rules.get(name)) is not None:
            return found
        fitting = [rule for rule in rules if rule.endswith(_ANY) and name.startswith(rule[:-1])]
        return rules[max(fitting, key=len)] if fitting else self.default_permission


class Accounts(BaseModel):
    """Accounts of clients, and their rights."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    freshness_s: Annotated[float, Field(gt=0)] = 86_400.0
    """Maximum difference between a signature's time and the server's.

    Some clients send local time as if it were UTC. A value of less than a day may lock them out.
    """
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
    """Validate accounts. Raises ConfigError; its text contains no values."""
    try:
        return Accounts.model_validate(content)
    except ValidationError as error:
        faults = "; ".join(_shown(error.errors(include_input=False, include_url=False)))
        raise ConfigError(f"{where}: {faults}", code=Code.CONFIG_INVALID) from None


def read_accounts(path: Path) -> Accounts:
    """Read accounts from a file: JSON if its suffix is .json, otherwise TOML.

    Raises ConfigError if the file is invalid.
    """
    try:
        check_secret_file(path)
        text = path.read_text()
        content = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    # also raised for numbers that are too long and for nesting that is too deep
    except (ValueError, RecursionError) as error:
        # The text at this position may be part of a secret, so only the position is reported.
        raise ConfigError(
            f"{path} is not valid {'JSON' if path.suffix == '.json' else 'TOML'}{_place(error)}"
        ) from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected a table or object at the top level", code=Code.CONFIG_INVALID)
    return parse_accounts(content, str(path))


def _place(error: Exception) -> str:
    line = getattr(error, "lineno", None)
    return "" if line is None else f" (line {line})"


def _shown(faults: Iterable[Any]) -> Iterable[str]:
    for fault in faults:
        key = ".".join(str(part) for part in fault["loc"])
        text = fault["msg"].removeprefix("Value error, ")
        yield f"{key}: {text}" if key else text
