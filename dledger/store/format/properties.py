"""Java-style properties text with an additional checksum. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from zlib_ng.zlib_ng import crc32

CRC_KEY = "crc"


def format_properties(values: Mapping[str, str | int]) -> bytes:
    """Format the lines `key=value` in order, then `crc=` with the CRC32, in hex, of all preceding bytes."""
    for key, value in values.items():
        assert not set(f"{key}{value}") & set("\r\n\\") and "=" not in key, f"cannot store {key}={value}"
    body = "".join(f"{key}={value}\n" for key, value in values.items()).encode()
    return body + f"{CRC_KEY}={crc32(body):08x}\n".encode()


def parse_properties(content: bytes) -> dict[str, str]:
    """Parse keys and values. Ignores comments and malformed lines; never raises."""
    values: dict[str, str] = {}
    for line in content.decode("utf-8", "replace").splitlines():
        key, separator, value = line.partition("=")
        if separator and not key.lstrip().startswith(("#", "!")):
            values[key.strip()] = value.strip()
    return values


def is_intact(content: bytes) -> bool:
    """Return True if the content is exactly the output of `format_properties` for some values."""
    body, separator, last = content.rpartition(f"{CRC_KEY}=".encode())
    return bool(separator) and last == f"{crc32(body):08x}\n".encode()
