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
        products = rows.reshape(len(places), length).astype(np.uint32) @ _factors(length)
        magnitudes = np.abs(products.view(np.int32).astype(np.int64))
        hashes[places] = np.where(magnitudes > MAX_SECONDS, 0, magnitudes)
    return hashes


@lru_cache(maxsize=_LONGEST + 1)
def _factors(length: int) -> npt.NDArray[np.uint32]:
    return np.array([pow(31, length - 1 - at, 1 << 32) for at in range(length)], dtype=np.uint32)
