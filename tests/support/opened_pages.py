"""Who looks at the console, how they come in, and what nobody is to find on a page."""

from __future__ import annotations

from axe_playwright_python.sync_playwright import Axe
from house_in_thread import HouseInThread
from playwright.sync_api import Page, expect
from running_house import PASSWORD, House

ADMIN = "ada"
LOOKER = "eve"
# What comes with the next look, or the one after it. Against hanging: it says nothing about speed.
SOON_MS = 60_000
AnyHouse = House | HouseInThread


def log_in(page: Page, house: AnyHouse, user: str) -> None:
    page.goto(house.page)
    page.get_by_label("Name", exact=True).fill(user)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("table", name="Services")).to_be_visible(timeout=SOON_MS)


def serious_faults(page: Page) -> list[str]:
    found = Axe().run(page).response
    assert len(found["passes"]) > 10, "it has really looked"
    return [
        f"{each['id']}: {each['nodes'][0]['html']} {each['nodes'][0]['failureSummary']}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
    ]
