"""For each file one Chromium and one house; pictures of what was seen are kept.

A house is a node and its console. Most pages do not depend on how these run, so both run in a
thread; a file that says PROCESSES has a whole installation.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import chromium
from house_in_thread import HouseInThread
from opened_pages import ADMIN, LOOKER, SOON_MS, AnyHouse, log_in
from playwright.sync_api import Browser, BrowserContext, Page, expect
from running_house import PASSWORD, House
from waiting import eventually
from what_was_learned import write_models, write_result

import tidegate
from tidegate.client.blocking import BlockingClient
from tidegate.core.errors import NotAuthenticated


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Not for the session: tests that need an event loop come after this file."""
    expect.set_options(timeout=SOON_MS)
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def house(request: pytest.FixtureRequest) -> Iterator[AnyHouse]:
    """In processes if the file has PROCESSES, which are its settings.

    Not in pytest's folder: as root PostgreSQL has an account of its own, which must get there.
    """
    folder = Path(tempfile.mkdtemp(prefix="tidegate-console-"))
    settings = getattr(request.module, "PROCESSES", None)
    running = HouseInThread(folder) if settings is None else House(folder, settings)
    try:
        yield running
    finally:
        running.end()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pictures of pages go: TIDEGATE_PICTURES, for who wants to look at them."""
    folder = os.environ.get("TIDEGATE_PICTURES")
    path = Path(folder) if folder else tmp_path_factory.mktemp("pictures")
    path.mkdir(parents=True, exist_ok=True)
    return path


@pytest.fixture(scope="module")
def people(house: AnyHouse) -> AnyHouse:
    """One who may do everything, one who may only look; something was learned and reported.

    A node of another process notices its first users within a second. Before that it asks nobody to
    log in, and a page shows the overview: what is typed for the login would go into its filter.
    """
    write_models(house.data / "knowledge")
    write_result(house.folder / "results")
    house.add_users({ADMIN: ["--admin"], LOOKER: ["--read", "*"]})
    eventually(lambda: needs_login(house), "the node asks for a login")
    return house


def needs_login(house: AnyHouse) -> bool:
    try:
        with tidegate.connect(house.url) as client:
            client.queues()
    except NotAuthenticated:
        return True
    return False


@pytest.fixture(scope="module")
def mq(people: AnyHouse) -> Iterator[BlockingClient]:
    with tidegate.connect(people.url, user=ADMIN, password=PASSWORD, mode="admin") as client:
        yield client


@pytest.fixture(scope="module")
def logged_in(browser: Browser, people: AnyHouse) -> Iterator[BrowserContext]:
    """Ada's browser."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(SOON_MS)
    page = context.new_page()
    log_in(page, people, ADMIN)
    page.close()
    yield context
    context.close()


@pytest.fixture
def page(logged_in: BrowserContext, people: AnyHouse) -> Iterator[Page]:
    """A page that must have nothing to complain about."""
    page = logged_in.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    yield page
    page.close()
    # What a test refuses or cuts off itself is told by the browser, and is no fault of the page.
    told = ("net::ERR", "status of 4", "Failed to load resource", "Blocked script execution in")
    assert [each for each in complaints if not any(mark in each for mark in told)] == []
