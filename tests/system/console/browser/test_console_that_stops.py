"""A console that stands still or dies, before a real Chromium: what the page makes of it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from opened_pages import ADMIN, AnyHouse
from playwright.sync_api import Browser, BrowserContext, Page, expect
from running_house import PASSWORD, Process

from tidegate.client.blocking import BlockingClient

QUEUE = "orders"


@dataclass
class ConsoleProcess:
    """A `tidegate console` in a process of its own, which can be started again where it was."""

    house: AnyHouse
    running: Process

    @classmethod
    def before(cls, house: AnyHouse, port: str = "0") -> ConsoleProcess:
        return cls(house, Process(house.folder, "console", "--url", house.url, "--port", port))

    @property
    def page(self) -> str:
        return self.running.address

    def start_again(self) -> None:
        self.running = self.before(self.house, self.page.rpartition(":")[2]).running


@pytest.fixture(scope="module")
def console(people: AnyHouse, mq: BlockingClient) -> Iterator[ConsoleProcess]:
    mq.create_queue(QUEUE)
    console = ConsoleProcess.before(people)
    yield console
    console.running.end()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    with contextlib.closing(browser.new_context()) as context:
        yield context


def log_in_where_one_is(page: Page) -> None:
    page.get_by_label("Name", exact=True).fill(ADMIN)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()


def test_a_silent_console_is_told_of_and_recovered_from(
    context: BrowserContext, console: ConsoleProcess
) -> None:
    page = context.new_page()
    page.goto(f"{console.page}/#/")
    log_in_where_one_is(page)
    words = page.get_by_label("Filter by name")
    words.fill("ord")
    banner = page.locator("#banner")
    expect(page.locator(".connection[data-state=open]")).to_be_visible()
    console.running.signal(signal.SIGSTOP)
    expect(banner).to_contain_text("connection is lost")
    console.running.signal(signal.SIGCONT)
    expect(banner).to_be_hidden()
    expect(words).to_have_value("ord")
    expect(page.get_by_role("link", name=QUEUE, exact=True)).to_be_visible()


def test_a_console_that_died_asks_for_the_login_and_goes_on_where_one_was(
    context: BrowserContext, console: ConsoleProcess
) -> None:
    page = context.new_page()
    page.goto(f"{console.page}/#/service/queue/{QUEUE}")
    log_in_where_one_is(page)
    heading = page.get_by_role("heading", name=QUEUE, exact=True)
    expect(heading).to_be_visible()
    console.running.signal(signal.SIGKILL)
    console.running.end()
    expect(page.locator("#banner")).to_contain_text("connection is lost")
    console.start_again()
    log_in_where_one_is(page)
    expect(heading).to_be_visible()
