"""What is seen no more does not pass for news: a queue that is gone, nodes that are silent."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from house_in_thread import HouseInThread
from opened_pages import AnyHouse, serious_faults
from playwright.sync_api import Page, expect

from tidegate.broker.node import Node
from tidegate.client.blocking import BlockingClient
from tidegate.console import snapshot


def test_a_queue_that_somebody_else_has_deleted_is_said_to_be_no_more(
    page: Page, people: AnyHouse, mq: BlockingClient
) -> None:
    queue = "short lived"
    mq.create_queue(queue)
    mq.put_many(queue, [b"x"] * 3)
    page.goto(f"{people.page}/#/service/queue/{queue}")
    waiting = page.locator(".tiles div", has_text="Waiting").locator("dd")
    expect(waiting).to_have_text("3")
    told = page.locator(".service [role=status]")
    expect(told).to_have_text("")
    inert = page.locator("section.wheel[inert]")
    expect(inert).to_have_count(0)

    mq.delete_queue(queue)

    expect(told).to_contain_text(f"There is no queue {queue} any more")
    expect(page.locator(".service.gone")).to_be_visible()
    expect(inert).to_be_visible()
    assert serious_faults(page) == []

    mq.create_queue(queue)

    expect(told).to_have_text("")
    expect(page.locator(".service.gone")).to_have_count(0)
    expect(waiting).to_have_text("0")
    expect(inert).to_have_count(0)


@contextlib.contextmanager
def silent(node: Node, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The node answers nothing that a console asks each second: as one that was stopped."""
    over = threading.Event()
    figures = node.stats.of_cluster

    async def hanging(*given: Any, **named: Any) -> Any:
        await asyncio.to_thread(over.wait)
        return await figures(*given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(snapshot, "ANSWER_S_MAX", 0.5)
        patched.setattr(node.stats, "of_cluster", hanging)
        try:
            yield
        finally:
            over.set()


def test_while_no_node_answers_every_page_says_so(
    page: Page, people: HouseInThread, mq: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = "orders"
    mq.create_queue(queue)
    page.goto(f"{people.page}/#/service/queue/{queue}")
    heard = page.locator(".connection[data-state=open]")
    expect(heard).to_be_visible()

    with silent(people.node, monkeypatch):
        banner = page.locator("#banner")
        expect(banner).to_contain_text("No node answers")
        expect(banner).to_contain_text("What you see is of")
        expect(page.locator(".connection[data-state=unanswered]")).to_be_visible()
        for name in ("Fleet", "Overview"):
            page.get_by_role("link", name=name, exact=True).click()
            expect(banner).to_contain_text("No node answers")

    expect(banner).to_be_hidden()
    expect(heard).to_be_visible()
