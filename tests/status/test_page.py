"""The live page, in a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from dledger.status.model import DamagedRange, MemberAddress
from tests.status.browser import ThreadedServer, headless_chromium, needs_browser, value_of, values_of
from tests.status.fakes import FakeSource, make_election, make_follower, make_status, now_ms

pytestmark = [pytest.mark.browser, needs_browser]

# Generous: a page that polls each second, on a machine that does other things too.
PATIENCE_SECONDS = 60


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with headless_chromium(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


class Page:
    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def text(self, selector: str) -> str:
        # textContent, not .text: what is announced to screen readers is not painted.
        return value_of(self.driver, selector, "textContent")

    def row(self, number: int) -> str:
        return value_of(self.driver, f"#nodes tr:nth-child({number})", "innerText")

    def upkeep(self, number: int) -> str:
        return value_of(self.driver, f"#upkeep tr:nth-child({number})", "innerText")

    def until(self, condition: Callable[[], bool], what: str) -> None:
        wait = WebDriverWait(self.driver, PATIENCE_SECONDS, poll_frequency=0.1)
        wait.until(lambda _: condition(), f"the page never showed {what}")

    def until_state(self, state: str) -> None:
        body = self.driver.find_element(By.TAG_NAME, "body")
        self.until(lambda: body.get_attribute("data-state") == state, f"the state {state}")

    def complaints(self) -> list[str]:
        """What the browser itself found wrong since the last call: scripts, policy, missing files."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()


@pytest.fixture
def server(source: FakeSource) -> Iterator[ThreadedServer]:
    running = ThreadedServer(source)
    yield running
    running.close()


@pytest.fixture
def page(chromium: Chrome, server: ThreadedServer) -> Page:
    shown = Page(chromium)
    chromium.get("about:blank")
    shown.complaints()
    chromium.get(f"http://{server.address}/")
    shown.until_state("live")
    return shown


def test_it_shows_the_cluster(page: Page) -> None:
    assert page.text("#cluster") == "orders"
    assert page.text("#leader") == "n1"
    assert "for 1 h 0 min" in page.text("#leader-since")
    assert page.text("#term") == "7"
    assert page.text("#up") == "3 of 3"
    assert page.text("#committed") == "1,204,330"
    assert "leader" in page.row(1) and "this page" in page.row(1)
    assert "3 entries, 900 B" in page.row(2)
    assert "5,120 entries, 5.2 MB" in page.row(3)
    assert "n1: pending_bytes × 12" in page.text("#limits")
    assert page.driver.title == "orders: n1 leads"
    assert page.complaints() == []


def test_it_shows_what_the_owners_of_the_nodes_say(page: Page, source: FakeSource) -> None:
    assert page.driver.find_element(By.ID, "owner-card").get_attribute("hidden") is not None
    source.answers["n2"] = make_status("n2", "FOLLOWER", owner={"role": "<b>SLAVE", "lag": [1, 2]})
    page.until(lambda: page.text("#owner") != "", "what the owner says")
    assert page.text("#owner") == "n2: role: <b>SLAVE, lag: [1,2]"


def test_a_program_with_a_card_gets_a_table(page: Page, source: FakeSource) -> None:
    assert not page.driver.find_element(By.ID, "program-card").is_displayed()
    switched = now_ms() - 120_000
    facts = [
        ["Role", "<b>SYNC_MASTER"],
        ["Last switch", {"unix_ms": switched}],
        ["Dispatch lag", {"bytes": 5_200_000, "level": "warn"}],
        ["State", {"text": "waits", "level": "<evil>"}],
        ["Number", 12345],
        "no fact",
    ]
    source.change("n1", owner={"card": {"title": "Broker <i>a", "facts": facts}, "more": 1})
    slave = [["Role", "SLAVE"], ["Last switch", {"unix_ms": 0}], ["Dispatch lag", {"bytes": 0}]]
    source.answers["n2"] = make_status("n2", "FOLLOWER", owner={"card": {"title": "", "facts": slave}})
    page.until(lambda: page.text("#program-title") == "Broker <i>a", "the card")
    page.until(lambda: "SLAVE" in page.text("#program"), "the second node")
    assert values_of(page.driver, "#program-head th", "innerText") == [
        "Node",
        "Role",
        "Last switch",
        "Dispatch lag",
        "State",
        "Number",
    ]

    def cells(number: int) -> list[str]:
        return values_of(page.driver, f"#program tr:nth-child({number}) td", "innerText")

    first = cells(1)
    assert first[0] == "<b>SYNC_MASTER" and "2 min" in first[1] and first[1].endswith("ago")
    assert first[2:] == ["5.2 MB", "waits", "12,345"]
    assert cells(2) == ["SLAVE", "never", "none", "—", "—"]
    loud = page.driver.find_elements(By.CSS_SELECTOR, "#program td:not([data-level=ok])")
    assert [cell.get_attribute("data-level") for cell in loud] == ["warn"]
    assert page.text("#owner") == ""
    source.change("n1", owner={})
    source.answers["n2"] = make_status("n2", "FOLLOWER")
    card = page.driver.find_element(By.ID, "program-card")
    page.until(lambda: not card.is_displayed(), "that there is no program any more")
    assert page.complaints() == []


def test_the_bar_of_the_slower_follower_is_longer(page: Page) -> None:
    bars = page.driver.find_elements(By.CSS_SELECTOR, "#nodes td.lag:not(.unknown)")
    widths = [
        float(
            page.driver.execute_script("return arguments[0].querySelector('.fill').style.width", bar).rstrip(
                "%"
            )
        )
        for bar in bars
    ]
    assert len(widths) == 2
    assert 0 < widths[0] < widths[1] / 4
    assert widths[1] < 100
    assert [bar.get_attribute("data-level") for bar in bars] == ["ok", "warn"]


def test_it_tells_elections_in_words(page: Page) -> None:
    newest, older = page.driver.find_elements(By.CSS_SELECTOR, "#elections > li")
    assert "Term 7" in newest.text and "n1 elected" in newest.text and "1 h 0 min ago" in newest.text
    assert "n1 lost its connection to the leader" in newest.text
    assert "could not reach a majority" in older.text
    newest.find_element(By.TAG_NAME, "summary").click()
    assert "n1 won the election" in newest.text
    assert "n2 recognised n1 as leader" in newest.text


def test_it_links_the_pages_of_the_other_nodes(page: Page) -> None:
    links = page.driver.find_elements(By.CSS_SELECTOR, "#nodes a")
    assert [link.get_attribute("href") for link in links] == [
        "http://127.0.0.1:8092/",
        "http://127.0.0.1:8093/",
    ]


def test_a_change_of_leader_shows_by_itself(page: Page, source: FakeSource) -> None:
    page.driver.execute_script("window.sameDocument = true")
    source.own = "n2"
    source.fail_over_to_n2()
    page.until(lambda: page.text("#leader") == "n2", "the new leader")
    assert page.text("#term") == "8"
    assert page.text("#up") == "2 of 3"
    assert "unreachable" in page.row(1) and "connection refused" in page.row(1)
    assert "leader" in page.row(2)
    assert "Term 8" in page.text("#elections") and "had not heard from a leader" in page.text("#elections")
    page.until(lambda: page.text("#announce") == "n2 is now the leader, term 8", "the announcement")
    assert page.driver.execute_script("return window.sameDocument") is True
    assert page.complaints() == []


def test_it_says_that_there_is_no_leader(page: Page, source: FakeSource) -> None:
    source.change("n1", role="FOLLOWER", leader_id="", term=9, health="no contact with a majority")
    page.until(lambda: page.text("#leader") == "No leader", "that there is no leader")
    assert "Appends are refused" in page.text("#leader-since")
    assert "no contact with a majority" in page.row(1)
    assert "not known" in page.row(2)


def test_it_measures_throughput(page: Page, source: FakeSource) -> None:
    def commit_more() -> bool:
        status = source.node_status()
        source.change(
            "n1", committed_index=status.committed_index + 100, committed_pos=status.committed_pos + 50_000
        )
        return page.text("#rate") not in ("—", "0")

    page.until(commit_more, "throughput")
    assert "B/s" in page.text("#rate-bytes")


def test_it_shows_that_it_is_stale_and_recovers(page: Page, server: ThreadedServer) -> None:
    server.stop()
    page.until_state("stale")
    banner = page.driver.find_element(By.ID, "stale")
    assert banner.is_displayed()
    assert "n1 does not answer (it cannot be reached). What you see is from" in banner.text
    assert page.text("#leader") == "n1", "the last facts stay readable"
    assert page.text("#freshness") == "not updating"
    server.start(server.address)
    page.until_state("live")
    assert not banner.is_displayed()


def test_a_failing_node_is_stale_too(page: Page, source: FakeSource) -> None:
    own = source.answers.pop("n1")
    page.until_state("stale")
    assert "internal error" in page.text("#stale")
    source.answers["n1"] = own
    page.until_state("live")


def test_hostile_names_stay_text(page: Page, source: FakeSource) -> None:
    evil = "<img src=x onerror=\"document.title='owned'\">"
    source.answers = {
        "n1": make_status(
            "n1",
            cluster_id=evil,
            health=evil,
            followers=(make_follower(evil, 1, 10),),
            elections=(make_election(7, evil, evil, evil, 10), make_election(7, "__proto__", "", evil, 5)),
            members=(MemberAddress("n1", evil), MemberAddress(evil, evil, "javascript:alert(1)//:80")),
            limits_hit={evil: 1},
        ),
        evil: evil,
    }
    page.until(lambda: page.text("#cluster") == evil, "the hostile name")
    assert evil in page.row(1) and evil in page.row(2)
    assert evil in page.text("#elections") and evil in page.text("#limits")
    assert page.driver.find_elements(By.CSS_SELECTOR, "main img, #nodes a") == []
    assert page.driver.title == f"{evil}: n1 leads"
    assert page.complaints() == []


def test_it_is_quiet_about_upkeep_when_all_is_well(page: Page, source: FakeSource) -> None:
    assert not page.driver.find_element(By.ID, "faults-card").is_displayed()
    source.change(
        "n2", ledger_begin_index=5000, newest_image=5200, scrubbed_index=900_000, repaired=2, tls="mutual"
    )
    page.until(lambda: "5,000" in page.upkeep(2), "where the log of n2 begins")
    for fact in ("n2", "80.0 GB free", "5,200", "up to 900,000", "2 repaired", "in step", "3", "mutual"):
        assert fact in page.upkeep(2)
    for fact in ("n1", "none", "not yet", "off"):
        assert fact in page.upkeep(1)
    assert not page.driver.find_element(By.ID, "faults-card").is_displayed()
    assert (
        page.driver.find_elements(By.CSS_SELECTOR, "#upkeep td[data-level=warn], #upkeep td[data-level=bad]")
        == []
    )


def test_it_says_what_needs_attention(page: Page, source: FakeSource) -> None:
    damage = DamagedRange(17, 1020, "/d/data/0", 4096, "chain_crc does not match")
    source.change("n1", disk="stalled", fsync_ms=7300, clock_offset_ms=-75_000, writing_image=True)
    source.change("n2", damaged=(damage,), repairing_index=400, disk="low", disk_free_bytes=900_000)
    source.change(
        "n3", rejoining="waiting for n1 to report the end of the log", needs_image=True, disk="full"
    )
    page.until(lambda: "n3: rejoining" in page.text("#faults"), "what is wrong")
    lines = [item.text for item in page.driver.find_elements(By.CSS_SELECTOR, "#faults li")]
    assert lines == [
        "n1: disk does not answer for 7 s",
        "n1: its wall clock is 1 min 15 s behind cluster time",
        "n2: disk low: 900 kB free",
        "n2: entries 17 to 1,020 cannot be read (chain_crc does not match); the repair is at 400",
        "n3: disk full: 80.0 GB free",
        "n3: rejoining: waiting for n1 to report the end of the log",
        "n3: waits for a state image, and serves nothing until then",
    ]
    assert "writing one" in page.upkeep(1) and "1 range" in page.upkeep(2)
    loud = page.driver.find_elements(By.CSS_SELECTOR, "#upkeep td.disk[data-level=bad]")
    assert len(loud) == 2
    for node in ("n1", "n2", "n3"):
        source.change(
            node,
            disk="ok",
            clock_offset_ms=0,
            damaged=(),
            rejoining="",
            needs_image=False,
            repairing_index=-1,
        )
    card = page.driver.find_element(By.ID, "faults-card")
    page.until(lambda: not card.is_displayed(), "that all is well again")
    assert page.complaints() == []


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_sticks_out_at_the_side(page: Page, width: int) -> None:
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        needed = page.driver.execute_script("return document.documentElement.scrollWidth")
        assert needed <= width
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_follows_the_colour_scheme(page: Page, scheme: str) -> None:
    feature = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", feature)
    try:
        colour = page.driver.execute_script(
            "return getComputedStyle(document.body).getPropertyValue('--bg').trim()"
        )
        assert colour == {"light": "#f4f6fa", "dark": "#0e131c"}[scheme]
    finally:
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
