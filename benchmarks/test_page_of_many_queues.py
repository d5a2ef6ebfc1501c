"""How soon the console's page of 500 queues is painted, and how fluid it scrolls."""

from __future__ import annotations

import tempfile
from pathlib import Path

from chromium import chromium
from figures import Figure
from house_in_thread import HouseInThread
from many_queues import SCROLLED, make_queues

# When the first row was there, since the page was asked for.
PAINTED = """() => new Promise(done => {
  requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now())));
})"""


def test_a_page_of_500_queues_is_painted_and_scrolled(figure: Figure) -> None:
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        house = HouseInThread(Path(folder))
        try:
            make_queues(house)
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.goto(house.page)
            page.get_by_role("table", name="Services").locator(
                "tbody tr:not(.gap)"
            ).first.wait_for()
            figure("500 queues painted", page.evaluate(PAINTED), "ms", "below 2000")
            # Three frames late is when people begin to see it.
            figure("500 queues scrolled, latest frame", page.evaluate(SCROLLED), "ms", "below 100")
        finally:
            house.end()
