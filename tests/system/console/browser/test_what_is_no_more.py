"""What is seen no more does not pass for news: a queue that is gone, nodes that are silent."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from opened_pages import SOON_MS, serious_faults
from playwright.sync_api import Page, expect
from running_house import House

from tidegate.client.blocking import BlockingClient

# A look at nodes that are silent takes some seconds, and so does the way back.
SILENT_MS = 25_000


def test_a_queue_that_somebody_else_has_deleted_is_said_to_be_no_more(
    page: Page, people: House, mq: BlockingClient
) -> None:
    queue = "short lived"
    mq.create_queue(queue)
    mq.put_many(queue, [b"x"] * 3)
    page.goto(f"{people.page}/#/service/queue/{queue}")
    waiting = page.locator(".tiles div", has_text="Waiting").locator("dd")
    expect(waiting).to_have_text("3", timeout=SOON_MS)
    told = page.locator(".service [role=status]")
    expect(told).to_have_text("")
    inert = page.locator("section.wheel[inert]")
    expect(inert).to_have_count(0)

    mq.delete_queue(queue)

    expect(told).to_contain_text(f"There is no queue {queue} any more", timeout=SOON_MS)
    expect(page.locator(".service.gone")).to_be_visible()
    expect(inert).to_be_visible()
    assert serious_faults(page) == []

    mq.create_queue(queue)

    expect(told).to_have_text("", timeout=SOON_MS)
    expect(page.locator(".service.gone")).to_have_count(0)
    expect(waiting).to_have_text("0", timeout=SOON_MS)
    expect(inert).to_have_count(0)


@pytest.fixture
def silence(people: House) -> Iterator[House]:
    """All that `up` has started stands still until the test lets it go on, or ends."""
    yield people
    people.up.signal_all(signal.SIGCONT)


def test_while_no_node_answers_every_page_says_so(
    page: Page, silence: House, mq: BlockingClient
) -> None:
    queue = "orders"
    mq.create_queue(queue)
    page.goto(f"{silence.page}/#/service/queue/{queue}")
    heard = page.locator(".connection[data-state=open]")
    expect(heard).to_be_visible(timeout=SOON_MS)

    silence.up.signal_all(signal.SIGSTOP)

    banner = page.locator("#banner")
    expect(banner).to_contain_text("No node answers", timeout=SILENT_MS)
    expect(banner).to_contain_text("What you see is of")
    expect(page.locator(".connection[data-state=unanswered]")).to_be_visible()
    for name in ("Fleet", "Overview"):
        page.get_by_role("link", name=name, exact=True).click()
        expect(banner).to_contain_text("No node answers", timeout=SILENT_MS)

    silence.up.signal_all(signal.SIGCONT)

    expect(banner).to_be_hidden(timeout=SILENT_MS)
    expect(heard).to_be_visible()
