"""500 queues: all are there, and only those that are seen are rows of the page."""

from __future__ import annotations

from house_in_thread import HouseInThread
from many_queues import QUEUES, SCROLLED, make_queues
from playwright.sync_api import Browser, expect


def test_500_queues_are_shown_and_scrolled_through(browser: Browser, house: HouseInThread) -> None:
    make_queues(house)
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(house.page)
    table = page.get_by_role("table", name="Services")
    rows = table.locator("tbody tr:not(.gap)")
    expect(rows.first).to_be_visible()
    expect(page.locator(".tiles")).to_contain_text(str(QUEUES))
    expect(table).to_have_attribute("aria-rowcount", str(QUEUES + 1))
    expect(page.get_by_role("link", name="queue-000")).to_be_visible()

    page.evaluate(SCROLLED)

    expect(page.get_by_role("link", name=f"queue-{QUEUES - 1}")).to_be_visible()
    assert rows.count() < 80, "rows that nobody sees do not exist"
    page.close()
