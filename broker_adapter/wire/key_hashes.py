"""A batch version of `index_layout.key_hash`, about 50 times as fast as single calls.

Texts of equal length are the rows of a matrix. Their hashes are the product of this matrix with the powers of
31.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from broker_adapter.wire.index_layout import MAX_SECONDS, key_hash
from broker_adapter.wire.java_hash import java_hash

Int64s = npt.NDArray[np.int64]
#: Longer texts are rare and are hashed one by one.
_LONGEST = 512


def key_hashes(texts: Sequence[str]) -> Int64s:
    """Return the `key_hash` of each text, in order."""
    hashes = np.empty(len(texts), dtype=np.int64)
    by_length: dict[int, list[int]] = {}
    for at, text in enumerate(texts):
        length = len(text)
        if length <= _LONGEST and text.isascii():
            by_length.setdefault(length, []).append(at)
        else:
            hashes[at] = key_hash(text)
    for length, places in by_length.items():
        rows = np.frombuffer("".join([texts[at] for at in places]).encode(), dtype=np.uint8)
        hashes[places] = row_hashes("", rows.reshape(len(places), length))
    return hashes


def row_hashes(prefix: str, rows: npt.NDArray[np.uint8]) -> Int64s:
    """Return the `key_hash` of `prefix` with each row appended. The rows are ASCII codes."""
    length = rows.shape[1]
    of_prefix = java_hash(prefix) * pow(31, length, 1 << 32) % (1 << 32)
    sums = rows.astype(np.uint32) @ _factors(length) + np.uint32(of_prefix)
    magnitudes = np.abs(sums.view(np.int32).astype(np.int64))
    return np.where(magnitudes > MAX_SECONDS, 0, magnitudes)


@lru_cache(maxsize=_LONGEST + 1)
def _factors(length: int) -> npt.NDArray[np.uint32]:
    return np.array([pow(31, length - 1 - at, 1 << 32) for at in range(length)], dtype=np.uint32)
