"""The world of the TLS tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from .world import TlsWorld


@pytest.fixture
def world(tmp_path: Path) -> TlsWorld:
    return TlsWorld(tmp_path)
