"""Overrides of a configuration file on the command line: options, and `--set KEY=VALUE`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

import click


def overrides_of(
    settings: Iterable[str], options: Mapping[str, Any], log: Mapping[str, str | None]
) -> dict[str, Any]:
    """Combine `settings` in the form of `--set` with `options` and `log`, which take precedence. Raises
    UsageError."""
    overrides: dict[str, Any] = {}
    for text in settings:
        _set(overrides, text)
    overrides |= {key: value for key, value in options.items() if value is not None}
    for key, value in log.items():
        if value is not None:
            overrides.setdefault("log", {})[key] = value
    return overrides


def _set(overrides: dict[str, Any], text: str) -> None:
    key, equals, value = text.partition("=")
    *sections, name = key.split(".")
    if not equals or not name:
        raise click.UsageError(f"--set {text!r}: expected KEY=VALUE")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        parsed = value  # strings may omit TOML's quotes
    target = overrides
    for section in sections:
        target = target.setdefault(section, {})
        if not isinstance(target, dict):
            raise click.UsageError(f"--set {text!r}: {section} already has a value")
    target[name] = parsed
