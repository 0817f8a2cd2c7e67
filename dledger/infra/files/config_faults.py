"""TOML configuration, validated against a model, with readable errors.

Every error names the key, the fault, and the valid values.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from dledger.errors import Code, ConfigError

M = TypeVar("M", bound=BaseModel)


def read_toml(path: Path) -> dict[str, Any]:
    """Parse a TOML file. Raises ConfigError, which names the file."""
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    # includes numbers that are too long and brackets that nest too deep
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def validate(model: type[M], content: Mapping[str, Any], where: str) -> M:
    """Validate a mapping against a model. Raises ConfigError, which names each invalid key and the valid
    values."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        faults = "; ".join(_faults(error, model))
        raise ConfigError(f"{where}: {faults}", code=Code.CONFIG_INVALID) from None


def _faults(error: ValidationError, model: type[BaseModel]) -> Iterator[str]:
    for fault in error.errors():
        place = [str(part) for part in fault["loc"] if not str(part).startswith(("function-", "literal"))]
        key = ".".join(place)
        if fault["type"] == "extra_forbidden":
            yield _unknown_key(place, model)
        elif fault["type"] == "missing":
            yield f"{key} is missing"
        else:
            message = fault["msg"].removeprefix("Value error, ")
            message = message[0].lower() + message[1:]
            value = fault["input"]
            shown = "" if isinstance(value, Mapping | BaseModel) or not place else f" (it is {value!r})"
            yield f"{key}: {message}{shown}" if key else message


def _unknown_key(place: list[str], model: type[BaseModel]) -> str:
    section = model
    for part in place[:-1]:
        inner = section.model_fields[part].annotation if part in section.model_fields else None
        inner = next((a for a in get_args(inner) if a is not type(None)), inner)  # of an optional section
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            break
        section = inner
    valid = list(section.model_fields)
    close = difflib.get_close_matches(place[-1], valid, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"unknown key {'.'.join(place)}: {hint}valid keys are {', '.join(valid)}"
