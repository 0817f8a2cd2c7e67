"""What is fuzzed: a decoder with valid inputs, and with what it may say to others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any


def as_is(data: bytes) -> bytes:
    return data


@dataclass(frozen=True)
class Target:
    """`valid(rng)` makes an input that `decode` takes, or mostly. `refusals`: the errors that its docstring
    names; any other is a find. `repair`: puts sums and lengths right after a change, since nothing behind
    them is reached else. `covers`: the functions that valid inputs run through."""

    name: str
    valid: Callable[[Random], bytes]
    decode: Callable[[bytes], object]
    covers: tuple[Callable[..., Any], ...]
    refusals: tuple[type[Exception], ...] = ()
    repair: Callable[[bytes], bytes] = as_is
    text: bool = False

    def takes(self, data: bytes) -> bool:
        """Whether it decodes the input; False: it refuses it in a documented way. Raises what is a find."""
        try:
            self.decode(data)
        except self.refusals:
            return False
        return True

    @property
    def covered(self) -> set[str]:
        return {f"{one.__module__}:{one.__qualname__}" for one in self.covers}
