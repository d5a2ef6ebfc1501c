"""500 queues: the page is there at once and stays fluid, since only what is seen is touched."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect
from running_house import House

import tidegate

pytestmark = pytest.mark.alone

QUEUES = 500
PAINT_MS_MAX = 2_000.0
# Three frames late is when people begin to see it.
FRAME_MS_MAX = 100.0


def test_500_queues_are_painted_at_once_and_scroll_without_a_hitch(
    browser: Browser, house: House
) -> None:
    with tidegate.connect(house.url) as mq:
        for number in range(QUEUES):
            mq.create_queue(f"queue-{number:03}", durable=False)
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(house.page)
    rows = page.get_by_role("table", name="Services").locator("tbody tr:not(.gap)")
    expect(rows.first).to_be_visible()
    painted_ms = page.evaluate(_PAINTED)
    assert painted_ms < PAINT_MS_MAX
    expect(page.locator(".tiles")).to_contain_text(str(QUEUES), timeout=8_000)
    assert page.get_by_role("table", name="Services").get_attribute("aria-rowcount") == str(
        QUEUES + 1
    )

    late_ms = page.evaluate(_SCROLLED)

    assert rows.count() < 80, "rows that nobody sees do not exist"
    expect(page.get_by_role("link", name="queue-499")).to_be_visible()
    assert late_ms < FRAME_MS_MAX
    page.close()


# When the first row was there, since the page was asked for.
_PAINTED = """() => new Promise(done => {
  requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now())));
})"""

# From the top to the bottom in three seconds, over some updates; the latest frame of them.
_SCROLLED = """() => new Promise(done => {
  const begun = performance.now(); let before = begun, worst = 0;
  const step = now => {
    worst = Math.max(worst, now - before); before = now;
    const part = Math.min(1, (now - begun) / 3000);
    scrollTo(0, part * (document.documentElement.scrollHeight - innerHeight));
    if (part < 1) requestAnimationFrame(step);
    else setTimeout(() => done(worst), 300);
  };
  requestAnimationFrame(step);
})"""
