"""Every wheel that the console has, turned in a real Chromium: queues, replicas, HTTP services.

Machines are processes here, so that what is held by hand comes about on a map with real slots.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from opened_pages import ADMIN, LOOKER, log_in, serious_faults
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect
from running_house import House, Process
from waiting import LIMIT_S, eventually

from tidegate.client.blocking import BlockingClient
from tidegate.core.prefetch import PrefetchGoal
from tidegate.core.topology import ControlMode, Range, ReplicaState, Scaling

PROCESSES = """
[fleet]
provider = "process"
machines_max = 2
drain = "1s"
"""
AGREEMENT = """
name = "shop"
http = "shop"
window = "2s"
replicas = { min = 1, max = 2 }
[metrics.response_p95]
breach = "5s"
"""
APPLICATION = """
async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"sold"})
"""


def loop(page: Page, name: str) -> Locator:
    """A line of the wheel."""
    heading = page.get_by_role("heading", name=name, exact=True)
    return page.locator("section.wheel .loop").filter(has=heading)


def confirm(page: Page, button: str) -> None:
    """What is asked about is done, and the question is gone."""
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name=button, exact=True).click()
    expect(dialog).to_have_count(0)


def deeds_of(page: Page, house: House, count: int) -> list[str]:
    """What was done last, newest first."""
    page.goto(f"{house.page}/#/deeds")
    rows = page.get_by_role("table", name="Deeds").locator("tbody tr")
    expect(rows.nth(count - 1)).to_be_visible()
    return rows.all_inner_texts()[:count]


def test_a_queue_is_made_put_to_paused_purged_and_deleted(
    page: Page, people: House, mq: BlockingClient
) -> None:
    queue = "by hand"
    page.goto(people.page)
    page.get_by_role("button", name="New queue").click()
    page.get_by_role("dialog").get_by_label("Name").fill(queue)
    confirm(page, "Make it")
    expect(page.get_by_role("link", name=queue)).to_be_visible()
    assert mq.queue(queue).durable

    page.goto(f"{people.page}/#/messages/{queue}")
    page.get_by_role("button", name="Put a message").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Text").fill('{"order": 7}')
    dialog.get_by_label("Headers").fill("no colon")
    dialog.get_by_role("button", name="Put it").click()
    expect(dialog.get_by_role("alert")).to_contain_text("name: value")
    dialog.get_by_label("Headers").fill("trace: test")
    confirm(page, "Put it")
    table = page.get_by_role("table", name=f"Messages of {queue}")
    expect(table.locator("tbody tr")).to_contain_text('{"order": 7}')
    (message,) = mq.browse(queue)
    assert (message.payload, message.headers, message.priority) == (
        *(b'{"order": 7}', {"trace": "test"}, 5),
    )

    page.goto(f"{people.page}/#/service/queue/{queue}")
    line = loop(page, "Queue")
    line.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("dialog")).to_contain_text("Nothing more is delivered")
    confirm(page, "Pause")
    assert mq.queue(queue).policy.paused
    expect(line).to_contain_text("Paused")
    line.get_by_role("button", name="Resume").click()
    confirm(page, "Resume")
    assert not mq.queue(queue).policy.paused

    line.get_by_role("button", name="Purge").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("To be sure").fill("by foot")
    dialog.get_by_role("button", name="Purge").click()
    expect(dialog.get_by_role("alert")).to_contain_text("This is not by hand")
    assert len(mq.browse(queue)) == 1
    dialog.get_by_label("To be sure").fill(queue)
    confirm(page, "Purge")
    assert mq.browse(queue) == []

    line.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_label("To be sure").fill(queue)
    confirm(page, "Delete")
    expect(page.get_by_role("table", name="Services")).to_be_visible()
    assert queue not in {each.name for each in mq.queues()}

    told = deeds_of(page, people, 6)
    done = ("delete the queue", "purge", "resume", "pause", "put a message", "make a queue")
    assert [what for what, row in zip(done, told, strict=True) if what not in row] == []
    assert all(ADMIN in row and queue in row for row in told)


@pytest.mark.parametrize("queue", [".", ".."])
def test_a_queue_that_is_called_like_a_step_in_a_path_has_a_page(
    page: Page, people: House, mq: BlockingClient, queue: str
) -> None:
    mq.create_queue(queue)
    page.goto(people.page)
    page.get_by_role("link", name=queue, exact=True).click()
    expect(page.get_by_role("heading", name=queue, exact=True)).to_be_visible()
    loop(page, "Queue").get_by_role("button", name="Pause").click()
    confirm(page, "Pause")
    assert mq.queue(queue).policy.paused


def serving(mq: BlockingClient, queue: str, count: int) -> bool:
    places = mq.topology(queue).replicas
    return [one.state for one in places] == [ReplicaState.SERVING] * count


@pytest.fixture(scope="module")
def elastic(mq: BlockingClient) -> str:
    queue = "elastic"
    mq.create_queue(queue)
    quick = {"polling_interval_s": 0.2, "inhibition_s": 0.2, "cooldown_period_s": 3600.0}
    mq.set_scaling(queue, Scaling(replicas=Range(1, 3), slots_per_machine=4, **quick))
    return queue


def test_replicas_and_shares_are_held_by_hand_and_given_back(
    page: Page, people: House, mq: BlockingClient, elastic: str
) -> None:
    page.goto(f"{people.page}/#/service/queue/{elastic}")
    state = page.locator("[data-loop=replicas]")
    expect(state).to_have_text("automatic")
    line = loop(page, "Replicas")
    line.get_by_role("button", name="Set by hand").click()
    page.get_by_role("dialog").get_by_label("Replicas").fill("2")
    confirm(page, "Take over")
    scaling = mq.topology(elastic).scaling
    assert (scaling.steering, scaling.replicas_wanted) == (ControlMode.MANUAL, 2)
    expect(state).to_have_text("manual")
    eventually(lambda: serving(mq, elastic, 2), "two replicas serve, on a machine")

    # Two of them have shares.
    shares = loop(page, "Shares")
    by_hand = page.locator("[data-loop=shares]")
    expect(by_hand).to_have_text("automatic")
    expect(shares.get_by_role("button", name="Give back")).to_have_count(0)
    shares.get_by_role("button", name="Set by hand").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Replica 1").fill("80")
    dialog.get_by_label("Replica 2").fill("20")
    confirm(page, "Take over")
    assert mq.topology(elastic).scaling.shares == {1: 0.8, 2: 0.2}
    expect(by_hand).to_have_text("manual")
    shares.get_by_role("button", name="Give back").click()
    confirm(page, "Give back")
    assert mq.topology(elastic).scaling.shares is None
    expect(by_hand).to_have_text("automatic")
    expect(shares.get_by_role("button", name="Give back")).to_have_count(0)

    line.get_by_role("button", name="Recommend only").click()
    confirm(page, "Recommend only")
    assert mq.topology(elastic).scaling.steering is ControlMode.RECOMMEND
    expect(state).to_have_text("recommends only")
    line.get_by_role("button", name="Give back").click()
    confirm(page, "Give back")
    assert mq.topology(elastic).scaling.steering is ControlMode.AUTO
    expect(state).to_have_text("automatic")
    assert "steering auto" in deeds_of(page, people, 1)[0]


def test_prefetch_of_one_consumer_is_offered_only_without_a_goal(
    page: Page, people: House, mq: BlockingClient
) -> None:
    queue = "one by one"
    mq.create_queue(queue)
    with mq.subscribe(queue, prefetch=3):
        page.goto(f"{people.page}/#/service/queue/{queue}")
        by_hand = loop(page, "Prefetch").get_by_role("button", name="Set by hand")
        by_hand.click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("until it subscribes anew or somebody sets another")
        dialog.get_by_label("Messages").fill("9")
        dialog.get_by_label("Of").select_option(index=1)
        confirm(page, "Take over")
        consumers = page.get_by_role("table", name="Consumers").locator("tbody tr")
        expect(consumers.locator("td").nth(1)).to_have_text("9")

        mq.set_policy(queue, prefetch=PrefetchGoal())
        expect(loop(page, "Prefetch")).to_contain_text("goal: keep-up")
        by_hand.click()
        expect(dialog.get_by_label("Of").locator("option")).to_have_text(["all consumers"])
        expect(dialog).not_to_contain_text("subscribes anew")


def test_the_prefetch_is_taken_over_and_given_back(
    page: Page, people: House, mq: BlockingClient
) -> None:
    queue = "by goal"
    mq.create_queue(queue)
    mq.set_policy(queue, prefetch=PrefetchGoal())
    with mq.subscribe(queue, prefetch=20):
        take_over_and_give_back(page, people, mq, queue)


def take_over_and_give_back(page: Page, people: House, mq: BlockingClient, queue: str) -> None:
    page.goto(f"{people.page}/#/service/queue/{queue}")
    wheel = page.locator("section.wheel")
    prefetch = wheel.locator(".loop", has_text="Prefetch")
    prefetch.get_by_role("button", name="Set by hand").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("until somebody gives it back")
    assert serious_faults(page) == []
    dialog.get_by_label("Messages").fill("7")
    dialog.get_by_role("button", name="Take over").click()
    expect(dialog).to_have_count(0)

    assert eventually(lambda: prefetch_of(mq, queue) == 7, "the node has it")
    expect(wheel.locator("[data-loop=prefetch]")).to_have_text("manual")

    prefetch.get_by_role("button", name="Give back").click()
    page.get_by_role("dialog").get_by_role("button", name="Give back").click()
    page.get_by_role("dialog").wait_for(state="detached")
    goal = mq.queue(queue).policy.prefetch
    assert goal is not None
    assert goal.manual is None, "the loop has it again"
    expect(wheel.locator("[data-loop=prefetch]")).not_to_have_text("manual")

    page.goto(f"{people.page}/#/deeds")
    deeds = page.get_by_role("table", name="Deeds")
    expect(deeds).to_contain_text("prefetch")
    expect(deeds).to_contain_text(ADMIN)


def prefetch_of(mq: BlockingClient, queue: str) -> int | None:
    found = [
        consumer.prefetch
        for node in mq.stats(queue).nodes
        for numbers in node.queues
        for consumer in numbers.consumers
    ]
    return found[0] if found else None


@pytest.fixture(scope="module")
def shop(people: House, mq: BlockingClient) -> Iterator[str]:
    """A web application behind a door, and somebody who buys."""
    (people.folder / "shop.py").write_text(APPLICATION)
    (people.folder / "shop.toml").write_text(AGREEMENT)
    people.run("deploy", "shop:app", "--agreement", "shop.toml", "--data", str(people.data))
    door = Process(people.folder, "door", "shop", "--port", "0", "--data", str(people.data))
    where = urlsplit(door.address)
    ended = threading.Event()

    def buy() -> None:
        while not ended.wait(0.02):  # the pace of the load
            # A door that opens or shuts is no matter of these tests.
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=5)
                with contextlib.closing(connection):
                    connection.request("GET", "/")
                    connection.getresponse().read()

    buyer = threading.Thread(target=buy, daemon=True)
    buyer.start()
    yield "shop"
    ended.set()
    buyer.join(LIMIT_S)
    door.end()


def test_an_http_service_is_watched_held_by_hand_and_given_back(
    page: Page, people: House, shop: str
) -> None:
    page.goto(f"{people.page}/#/service/http/{shop}")
    expect(page.get_by_role("heading", name=shop, exact=True)).to_be_visible()
    out = page.locator(".tiles div", has_text="Out").locator("dd")
    expect(out).to_have_text(re.compile(r"^[1-9].*/s$"))
    expect(page.locator("section.agreement")).to_contain_text("response p95")
    tile = page.locator(".tiles div", has_text="Instances").locator("dd")
    expect(tile).to_have_text("1")

    instances = loop(page, "Instances")
    instances.get_by_role("button", name="Set by hand").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("until somebody gives it back")
    assert serious_faults(page) == []
    dialog.get_by_label("Instances").fill("2")
    confirm(page, "Take over")
    expect(page.locator("[data-loop=instances]")).to_have_text("manual")
    expect(tile).to_have_text("2")
    expect(page.locator("button.decision", has_text=f"by {ADMIN}").first).to_be_visible()

    for name, mark, label in (
        ("Bounds", "bounds", "At most"),
        ("Requests of an instance", "concurrency", "Requests at a time"),
        ("Requests let in", "admission", "Requests at a time"),
    ):
        loop(page, name).get_by_role("button", name="Set by hand").click()
        page.get_by_role("dialog").get_by_label(label).fill("50")
        confirm(page, "Take over")
        expect(page.locator(f"[data-loop={mark}]")).to_have_text("manual")
    for name, mark, words in (
        ("Instances", "instances", "automatic"),
        ("Bounds", "bounds", "as agreed"),
        ("Requests of an instance", "concurrency", "automatic"),
        ("Requests let in", "admission", "automatic"),
    ):
        loop(page, name).get_by_role("button", name="Give back").click()
        confirm(page, "Give back")
        expect(page.locator(f"[data-loop={mark}]")).to_have_text(words)

    told = deeds_of(page, people, 8)
    assert all(ADMIN in row and shop in row and "by hand" in row for row in told)
    assert "instances automatic → 2" in told[-1]


def test_override_changed_meanwhile_is_reported_and_kept(
    page: Page, logged_in: BrowserContext, people: House, shop: str
) -> None:
    address = f"{people.page}/#/service/http/{shop}"
    page.goto(address)
    loop(page, "Requests let in").get_by_role("button", name="Set by hand").click()
    page.get_by_role("dialog").get_by_label("Requests at a time").fill("70")

    other = logged_in.new_page()
    other.goto(address)
    loop(other, "Requests of an instance").get_by_role("button", name="Set by hand").click()
    other.get_by_role("dialog").get_by_label("Requests at a time").fill("60")
    confirm(other, "Take over")
    page.get_by_role("dialog").get_by_role("button", name="Take over").click()

    alert = page.get_by_role("dialog").get_by_role("alert")
    expect(alert).to_contain_text("Somebody else has changed")
    page.keyboard.press("Escape")
    expect(page.locator("[data-loop=concurrency]")).to_have_text("manual")
    expect(page.locator("[data-loop=admission]")).to_have_text("automatic")
    loop(other, "Requests of an instance").get_by_role("button", name="Give back").click()
    confirm(other, "Give back")
    other.close()


def test_reader_sees_an_http_service_and_cannot_override_it(
    browser: Browser, people: House, shop: str
) -> None:
    with contextlib.closing(browser.new_context()) as context:
        page = context.new_page()
        log_in(page, people, LOOKER)
        page.goto(f"{people.page}/#/service/http/{shop}")
        wheel = page.locator("section.wheel")
        expect(wheel).to_contain_text("You may only look")
        buttons = wheel.get_by_role("button").all()
        assert len(buttons) >= 4
        assert all(button.is_disabled() for button in buttons)


def test_the_fleet_is_a_map_of_machines_and_who_is_in_their_slots(
    page: Page, people: House, mq: BlockingClient, elastic: str, shop: str
) -> None:
    eventually(lambda: serving(mq, elastic, len(mq.topology(elastic).replicas)), "all serve")
    page.goto(f"{people.page}/#/fleet")
    machines = page.locator("article.machine[data-state=up]")
    expect(machines.first).to_be_visible()
    for service in (elastic, shop):
        slot = machines.locator("li.slot", has_text=re.compile(rf"^{service} #\d+"))
        expect(slot.first).to_be_visible()
    held = page.locator(".tiles div", has_text="Slots held").locator("dd")
    expect(held).to_have_text(re.compile(r"^[2-9] of \d+$"))
    assert serious_faults(page) == []
    machines.get_by_role("link", name=re.compile(f"^{shop} ")).first.click()
    expect(page.get_by_role("heading", name=shop, exact=True)).to_be_visible()
