"""The live page, in a real browser, served by a real NameServer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from broker_adapter.namesrv.config import load_config
from broker_adapter.namesrv.server import NameServerProcess
from broker_adapter.namesrv.values import Registration
from tests.broker_adapter.namesrv.helpers import registration
from tests.status.browser import headless_chromium, needs_browser, value_of

pytestmark = [pytest.mark.browser, needs_browser]

T = TypeVar("T")

# Generous: a page that polls each second, on a machine that does other things too.
PATIENCE_SECONDS = 60


class World:
    """A NameServer on a thread of its own, because a browser driver blocks the thread that calls it."""

    def __init__(self, folder: Path, driver: Chrome) -> None:
        self.driver = driver
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="namesrv")
        self._thread.start()
        content = {"directory": str(folder), "listen": "127.0.0.1:0", "http_listen": "127.0.0.1:0"}
        self.process = NameServerProcess(load_config(None, content))
        self._run(self.process.start())

    def register(self, given: Registration) -> None:
        async def register() -> None:
            self.process.name_server.register(given)

        self._run(register())

    def stop(self) -> None:
        self._run(self.process.stop())

    def close(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=10)

    def text(self, selector: str) -> str:
        return value_of(self.driver, selector, "textContent")

    def until(self, condition: Callable[[], bool], what: str) -> None:
        wait = WebDriverWait(self.driver, PATIENCE_SECONDS, poll_frequency=0.1)
        wait.until(lambda _: condition(), f"the page never showed {what}")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with headless_chromium(tmp_path / "profile") as driver:
        found = World(tmp_path / "data", driver)
        try:
            yield found
        finally:
            found.close()


def test_it_shows_brokers_topics_and_events_and_says_when_nobody_answers(world: World) -> None:
    world.register(registration("n1", 0, term=3, http_address="10.0.0.1:8080"))
    world.register(registration("n2", 2))
    world.driver.get(f"http://{world.process.http_address}/")
    body = world.driver.find_element(By.TAG_NAME, "body")
    world.until(lambda: body.get_attribute("data-state") == "live", "that it is live")
    assert world.text("#masters") == "1 of 1" and "broker-a: n1" in world.text("#masters-text")
    assert "master" in world.text("#brokers tr:nth-child(1)")
    assert value_of(world.driver, "#brokers tr:nth-child(1) a", "href") == "http://10.0.0.1:8080/"
    assert "orders" in world.text("#topics") and "read, write" in world.text("#topics")
    # What brokers call themselves is text, and nothing else.
    world.register(registration("<b>n3</b>", 3))
    world.until(lambda: "<b>n3</b>" in world.text("#brokers"), "the new broker")
    assert not world.driver.find_elements(By.CSS_SELECTOR, "#brokers b")
    world.register(registration("n2", 0, term=4, role_epoch=2))
    world.until(lambda: "broker-a: n2" in world.text("#masters-text"), "the new master")
    assert "role-changed" in world.text("#events li:first-child")
    severe = [e["message"] for e in world.driver.get_log("browser") if e["level"] == "SEVERE"]
    assert not severe
    world.stop()
    world.until(lambda: body.get_attribute("data-state") == "stale", "that nobody answers")
