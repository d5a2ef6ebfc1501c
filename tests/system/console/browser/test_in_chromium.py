"""The console in a real Chromium, before a real node under real load: what people do with it."""

from __future__ import annotations

import contextlib
import http.server
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from opened_pages import ADMIN, LOOKER, SOON_MS, AnyHouse, log_in, serious_faults
from playwright.sync_api import APIResponse, Browser, BrowserContext, Page, Route, expect
from running_house import PASSWORD
from waiting import LIMIT_S, eventually
from what_was_learned import REASON

from tidegate.client.blocking import BlockingClient
from tidegate.core.prefetch import PrefetchGoal
from tidegate.core.topology import ControlMode, Range, Scaling

HOSTILE = '<img src=x onerror="document.title=1">'
PAGES = ("", "service/queue/orders", "fleet", "messages/orders", "models", "experiments", "deeds")


@pytest.fixture(scope="module")
def orders(mq: BlockingClient) -> Iterator[str]:
    """A queue that is put to and worked on, for as long as these tests run."""
    queue = "orders"
    mq.create_queue(queue)
    mq.set_policy(queue, prefetch=PrefetchGoal())
    ended = threading.Event()

    def put() -> None:
        while not ended.wait(0.05):  # the pace of the load
            mq.put_many(queue, [b'{"order": 7}'] * 10)

    def work() -> None:
        with mq.subscribe(queue, prefetch=20) as subscription:
            for message in subscription:
                message.ack()
                if ended.is_set():
                    return

    threads = [threading.Thread(target=each, daemon=True) for each in (put, work)]
    for thread in threads:
        thread.start()
    yield queue
    ended.set()
    # Whoever waits for a message sees that it was the last.
    mq.put(queue, b"{}")
    for thread in threads:
        thread.join(LIMIT_S)


def test_a_wrong_password_is_refused_in_a_sentence(browser: Browser, people: AnyHouse) -> None:
    with contextlib.closing(browser.new_context()) as context:
        page = context.new_page()
        page.goto(people.page)
        page.get_by_label("Name", exact=True).fill(ADMIN)
        page.get_by_label("Password").fill("guess")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("wrong")
        assert serious_faults(page) == []


def test_an_answer_that_comes_late_does_not_disturb_the_login(
    browser: Browser, people: AnyHouse
) -> None:
    with contextlib.closing(browser.new_context()) as context:
        page = context.new_page()
        page.clock.install()
        log_in(page, people, ADMIN)
        held: list[tuple[Route, APIResponse]] = []
        page.route("**/api/live*", lambda route: route.abort())
        page.route("**/api/session", lambda route: held.append((route, route.fetch())))
        # The stream is silent for too long: the page asks whether its session is still good.
        page.clock.fast_forward(6_000)
        page.clock.fast_forward(1_000)
        page.wait_for_function("() => document.querySelector('#banner:not([hidden])')")
        eventually(lambda: page.evaluate("1") and held, "the console has answered")

        # Meanwhile it ends, as when somebody logs out in another tab.
        context.clear_cookies()
        page.goto(f"{people.page}/#/fleet")
        name = page.get_by_label("Name", exact=True)
        name.fill(ADMIN)
        for route, answer in held:
            route.fulfill(response=answer)
        page.clock.run_for(1_000)
        page.evaluate("location.hash = '#/deeds'")

        expect(page.get_by_role("button", name="Log out")).to_have_count(0)
        expect(name).to_have_value(ADMIN)


def test_a_chart_moves_under_load(page: Page, people: AnyHouse, orders: str) -> None:
    page.goto(f"{people.page}/#/service/queue/{orders}")
    chart = page.locator("figure", has_text="Arrival and consumption")
    taken = chart.locator("li", has_text="taken").locator("b")
    expect(taken).to_have_text(re.compile(r"^[1-9].*/s$"))
    drawn = chart.locator("canvas").evaluate("canvas => canvas.toDataURL()")
    page.wait_for_function(
        "before => document.querySelector('figure canvas').toDataURL() !== before",
        arg=drawn,
        timeout=SOON_MS,
    )


def test_a_decision_is_read_at_its_mark_and_in_the_list(
    page: Page, people: AnyHouse, mq: BlockingClient
) -> None:
    queue = "elastic"
    mq.create_queue(queue)
    held = Scaling(replicas=Range(1, 3), steering=ControlMode.MANUAL, replicas_wanted=2)
    page.goto(f"{people.page}/#/service/queue/{queue}")
    expect(page.get_by_role("heading", name=queue, exact=True)).to_be_visible()

    mq.set_scaling(queue, held)

    line = page.locator("button.decision", has_text=f"by {ADMIN}").first
    expect(line).to_be_visible()
    line.click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Rule")
    expect(dialog).to_contain_text(f"by {ADMIN}")
    assert "decision=" in page.url, "it can be passed on"
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)

    # And the same where it was taken: the topmost violet spot of the chart is the mark.
    spot = page.locator("figure canvas").first
    place = eventually(lambda: spot.evaluate(_MARK), "a mark is drawn")
    spot.click(position={"x": place, "y": 8})
    expect(page.get_by_role("dialog")).to_contain_text("Rule")


_MARK = """canvas => {
  const wide = canvas.width, sharp = wide / canvas.getBoundingClientRect().width;
  const line = canvas.getContext("2d").getImageData(0, Math.round(7 * sharp), wide, 1).data;
  for (let x = wide - 1; x >= 0; x -= 1) if (line[x * 4 + 3] > 200) return x / sharp - 3;
  return null;
}"""


def test_the_wheel_follows_shares_and_consumers_that_come_and_go(
    page: Page, people: AnyHouse
) -> None:
    page.goto(people.page)
    expect(page.get_by_role("table", name="Services")).to_be_visible()
    without, shared, consumed = page.evaluate(_WHEEL)
    assert "Shares" not in without
    assert "Shares" in shared
    assert "0 consumers" in shared
    assert "1 consumer" in consumed


# Two replicas without shares, as for a moment after these were given back; with them; a consumer.
_WHEEL = """async () => {
  const { Wheel } = await import("/page/wheel.js");
  const wheel = new Wheel({ who: { read_only: false }, changed: () => {} });
  const told = (shares, consumers) => {
    const replicas = shares.map((share, at) => ({ number: at + 1, share }));
    const row = { name: "orders", steering: "auto", replicas: 2, replicas_wanted: 2, waiting: 0 };
    wheel.show({ row,
      replicas_min: 1, replicas_max: 3, policy: "load", prefetch_goal: "", shares_by_hand: false,
      consumers, points: [{ replicas }], allowed: ["scaling", "shares", "prefetch", "goal"] });
    return wheel.element.textContent;
  };
  const one = { client_id: 1, consumer: 1, prefetch: 3, mode: "" };
  return [told([null, null], []), told([0.5, 0.5], []), told([0.5, 0.5], [one])];
}"""


def test_a_dead_letter_is_read_and_redriven(
    page: Page, people: AnyHouse, mq: BlockingClient
) -> None:
    queue = "brittle"
    mq.create_queue(queue)
    mq.put(queue, b'{"customer": null}')
    mq.get(queue, lease=30.0).reject(error="no such customer")
    eventually(lambda: len(mq.browse(f"{queue}.dead")) == 1, "it is dead")

    page.goto(f"{people.page}/#/messages/{queue}.dead")
    row = page.get_by_role("table", name=f"Messages of {queue}.dead").locator("tbody tr")
    expect(row).to_contain_text("no such customer")
    row.get_by_role("button").click()
    expect(page.get_by_role("dialog").locator("pre")).to_have_text('{\n  "customer": null\n}')
    page.keyboard.press("Escape")

    page.get_by_role("button", name="Redrive").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("is not mended by this")
    dialog.get_by_role("button", name="Redrive").click()
    expect(page.locator("#toasts")).to_contain_text("1 message went back")
    assert eventually(lambda: mq.browse(queue), "it is back where it came from")


def test_a_question_about_one_queue_is_not_asked_about_another(
    page: Page, people: AnyHouse, mq: BlockingClient
) -> None:
    for queue in ("asked about", "elsewhere"):
        mq.create_queue(queue)
    page.goto(f"{people.page}/#/messages/elsewhere")
    page.goto(f"{people.page}/#/messages/asked%20about")
    page.get_by_role("button", name="Put a message").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("put to asked about")

    # What is told before the address changes, and done after it.
    page.evaluate(_HOLD_CLOSING)
    page.go_back()
    expect(page.get_by_label("Queue", exact=True)).to_have_value("elsewhere")
    dialog.get_by_label("Text").fill("for whom it was meant")
    dialog.get_by_role("button", name="Put it").click()
    expect(page.locator("#toasts")).to_contain_text("was put to asked about")
    assert [len(mq.browse(queue)) for queue in ("asked about", "elsewhere")] == [1, 0]

    page.go_forward()
    page.reload()
    page.get_by_role("button", name="Put a message").click()
    expect(dialog).to_be_visible()
    page.go_back()
    expect(page.get_by_label("Queue", exact=True)).to_have_value("elsewhere")
    expect(dialog).to_have_count(0)


# A dialog that stays though one has gone elsewhere, as before a browser has told the page of it.
_HOLD_CLOSING = """() => {
  const dialog = document.querySelector("dialog[open]");
  dialog.close = () => { delete dialog.close; };
}"""


def test_of_a_queue_with_replicas_it_is_said_whether_all_are_shown(
    page: Page, people: AnyHouse, mq: BlockingClient
) -> None:
    queue = "many replicas"
    mq.create_queue(queue)
    mq.set_scaling(queue, Scaling(replicas=Range(1, 3), steering=ControlMode.RECOMMEND))
    mq.put_many(queue, [b"few"] * 10)
    page.goto(f"{people.page}/#/messages/{queue}")
    state = page.locator(".messages [role=status]")
    expect(state).to_contain_text("All 10 are shown")
    filtered = page.get_by_label("Filter by text")
    filtered.fill("nothing")
    expect(page.get_by_text("No message that waits matches.")).to_be_visible()

    mq.put_many(queue, [b"many"] * 50)
    filtered.fill("")
    expect(state).to_contain_text("The first 50 are shown")
    mq.put_many(queue, [b"many"] * 450)
    filtered.fill("nothing")
    expect(page.get_by_text("None of the first 500 matches.")).to_be_visible()


def test_a_script_in_a_name_stays_text(page: Page, people: AnyHouse, mq: BlockingClient) -> None:
    mq.create_queue(HOSTILE)
    mq.put(HOSTILE, HOSTILE.encode(), headers={"note": HOSTILE})
    page.goto(people.page)
    link = page.get_by_role("link", name=HOSTILE)
    expect(link).to_be_visible()
    link.click()
    expect(page.get_by_role("heading", name=HOSTILE)).to_be_visible()
    page.get_by_role("link", name="Messages").last.click()
    page.get_by_role("table").locator("tbody").get_by_role("button").first.click()
    expect(page.get_by_role("dialog").locator("pre")).to_have_text(HOSTILE)
    assert page.locator("img[src=x]").count() == 0
    assert page.title() != "1"


def test_a_model_shows_its_curve_or_why_it_was_refused(page: Page, people: AnyHouse) -> None:
    page.goto(f"{people.page}/#/models")
    accepted = page.locator("article", has_text="orders")
    expect(accepted).to_contain_text("accepted")
    expect(accepted.get_by_role("img", name="12 points and the fitted curve")).to_be_visible()
    refused = page.locator("article", has_text="payments")
    expect(refused).to_contain_text("refused")
    expect(refused).to_contain_text(REASON)


def test_a_report_is_shown_and_may_run_nothing(logged_in: BrowserContext, people: AnyHouse) -> None:
    page = logged_in.new_page()
    page.goto(f"{people.page}/#/experiments")
    frame = page.frame_locator("iframe")
    expect(frame.get_by_role("heading", name="What was kept")).to_be_visible()
    expect(frame.locator("body")).not_to_contain_text("it runs")
    page.close()


def test_page_tells_readers_that_they_may_only_look(
    browser: Browser, people: AnyHouse, orders: str
) -> None:
    with contextlib.closing(browser.new_context()) as context:
        page = context.new_page()
        log_in(page, people, LOOKER)
        page.goto(f"{people.page}/#/service/queue/{orders}")
        wheel = page.locator("section.wheel")
        expect(wheel).to_contain_text("You may only look")
        buttons = wheel.get_by_role("button")
        assert buttons.count() > 3
        assert all(button.is_disabled() for button in buttons.all())


def test_a_page_of_somebody_else_can_do_nothing(
    logged_in: BrowserContext, people: AnyHouse, mq: BlockingClient, another_origin: str
) -> None:
    # The same host, so that the browser sends our cookie along; another port, so another origin.
    page = logged_in.new_page()
    page.goto(another_origin)
    told = page.evaluate(
        """async console => {
          const tell = async (path, options) => {
            try {
              return (await fetch(console + path, {credentials: "include", ...options})).type;
            } catch { return "kept away"; }
          };
          const put = {method: "POST", mode: "no-cors", body: '{"name": "intruder"}'};
          return [await tell("/api/queues", put), await tell("/api/overview", {})];
        }""",
        people.page,
    )
    assert told == ["kept away", "kept away"]
    page.close()
    assert "intruder" not in {queue.name for queue in mq.queues()}


@pytest.fixture
def another_origin() -> Iterator[str]:
    class Quiet(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>somebody else</title>")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_page_that_nobody_sees_rests_and_catches_up(
    page: Page, people: AnyHouse, orders: str
) -> None:
    page.clock.install()
    page.goto(f"{people.page}/#/service/queue/{orders}")
    connection = page.locator(".connection")
    expect(connection).to_have_attribute("data-state", "open")

    _seen(page, "false")
    page.clock.fast_forward(6_000)
    expect(connection).to_have_attribute("data-state", "resting")

    _seen(page, "true")
    expect(connection).to_have_attribute("data-state", "open")


def _seen(page: Page, is_seen: str) -> None:
    """As when another tab comes before it, which a headless browser has not."""
    page.evaluate(
        f"Object.defineProperty(document, 'hidden', {{ value: !{is_seen}, configurable: true }});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )


@pytest.mark.parametrize("place", PAGES, ids=lambda place: place.partition("/")[0] or "overview")
def test_every_page_is_sound_in_light_and_dark_on_a_desk_and_on_a_phone(
    page: Page, people: AnyHouse, orders: str, pictures: Path, place: str
) -> None:
    page.goto(f"{people.page}/#/{place}")
    expect(page.locator("main .page")).to_be_visible()
    name = place.partition("/")[0] or "overview"
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": 1440, "height": 900})
        page.screenshot(path=pictures / f"{name}-{scheme}.png")
        assert serious_faults(page) == []
        page.set_viewport_size({"width": 360, "height": 740})
        page.screenshot(path=pictures / f"{name}-{scheme}-phone.png")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, "nothing sticks out"


def test_the_keyboard_reaches_everything(page: Page, people: AnyHouse, orders: str) -> None:
    page.goto(f"{people.page}/#/")
    expect(page.get_by_role("link", name=orders, exact=True)).to_be_visible()
    # Where a browser begins is its own affair.
    skip = "document.activeElement.className"
    assert tabbed_to(page, lambda: page.evaluate(skip) == "skip"), "the way past the menu"
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    reached = tabbed_to(page, lambda: page.evaluate("document.activeElement.textContent") == orders)
    assert reached, "the row of a service"
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=orders, exact=True)).to_be_visible()


def tabbed_to(page: Page, is_there: Callable[[], bool]) -> bool:
    for _ in range(60):
        page.keyboard.press("Tab")
        if is_there():
            return True
    return False


def test_the_way_past_the_menu_leaves_the_page_where_it_is(page: Page, people: AnyHouse) -> None:
    page.goto(f"{people.page}/#/fleet")
    heading = page.get_by_role("heading", name="Fleet", exact=True)
    expect(heading).to_be_visible()
    page.get_by_role("link", name="Skip to the content").focus()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    assert page.url.endswith("#/fleet")
    page.reload()
    expect(heading).to_be_visible()


def test_an_address_of_no_page_shows_the_overview_after_the_login(
    browser: Browser, people: AnyHouse, mq: BlockingClient
) -> None:
    with contextlib.closing(browser.new_context()) as context:
        page = context.new_page()
        page.goto(f"{people.page}/#main")
        page.get_by_label("Name", exact=True).fill(ADMIN)
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("table", name="Services")).to_be_visible()
