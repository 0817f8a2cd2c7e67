"""A real browser for tests, where there is one."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

from dledger.infra.http.server import HttpServer
from dledger.status.http import StatusSource, start_http

_T = TypeVar("_T")

DID_NOT_RUN = "BROWSER TEST DID NOT RUN"
# Set where a browser is promised (CI): its absence is then a failure.
REQUIRED = bool(os.environ.get("DLEDGER_REQUIRE_BROWSER"))

CHROMIUM = next(
    filter(
        None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"))
    ),
    None,
)
CHROMEDRIVER = shutil.which("chromedriver")
MISSING = " and ".join(
    name for name, path in (("Chromium", CHROMIUM), ("chromedriver", CHROMEDRIVER)) if path is None
)

needs_browser = pytest.mark.skipif(
    bool(MISSING) and not REQUIRED, reason=f"{DID_NOT_RUN}: {MISSING} not found on the PATH"
)


@contextmanager
def headless_chromium(profile: Path) -> Iterator[webdriver.Chrome]:
    assert not MISSING, f"a browser is required here, but {MISSING} was not found on the PATH"
    options = Options()
    options.binary_location = str(CHROMIUM)
    for argument in (
        "--headless=new",
        "--no-sandbox",  # tests in containers run as root
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
        "--window-size=1280,1000",
        f"--user-data-dir={profile}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(executable_path=str(CHROMEDRIVER)))
    try:
        yield driver
    finally:
        driver.quit()


def values_of(driver: webdriver.Chrome, selector: str, name: str) -> list[str]:
    """A property of all elements, read in one step: a live page may replace an element at any time, and the
    driver then finds it stale."""
    script = "return [...document.querySelectorAll(arguments[0])].map((one) => one[arguments[1]])"
    return [str(value) for value in driver.execute_script(script, selector, name)]


def value_of(driver: webdriver.Chrome, selector: str, name: str) -> str:
    """Of the first element, which must exist."""
    return values_of(driver, selector, name)[0]


class ThreadedServer:
    """The status server on a thread of its own, because a browser driver blocks the thread that calls it."""

    def __init__(self, source: StatusSource) -> None:
        self._source = source
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="status-server")
        self._thread.start()
        self._server: HttpServer | None = None
        self.address = ""
        self.start("127.0.0.1:0")

    def start(self, listen: str) -> None:
        self._server = self._run(start_http(self._source, listen))
        self.address = self._server.address

    def stop(self) -> None:
        if self._server is not None:
            self._run(self._server.stop())
            self._server = None

    def close(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=10)
