"""Workers, on every engine: the same application, whatever holds its messages."""

from __future__ import annotations

import asyncio
import threading
import time
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from engine_under_test import (
    PATIENCE_S,
    Engine,
    dead_letter,
    numbered,
    payloads_of,
    put_all,
    take,
    taken_until_last,
)
from waiting import eventually_async

import tidegate
from tidegate.core.model import QueuePolicy

# One RabbitMQ serves all tests of the engines.
pytestmark = pytest.mark.xdist_group("engines")

AT_ONCE = QueuePolicy(retry_first_s=0.0, retry_jitter=0.0)


@dataclass
class Order:
    number: int
    customer: str = "nobody"


class Parcel(msgspec.Struct):
    weight_g: float


async def soon(event: asyncio.Event) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await event.wait()


async def test_a_worker_makes_its_queue_and_is_called_for_each_message_once(
    app: tidegate.App, mq: Any
) -> None:
    seen: list[Order] = []

    @app.worker("orders", concurrency=4)
    async def ship(order: Order) -> None:
        seen.append(order)

    async with app.running():
        for number in range(40):
            await app.send(ship, Order(number, "ann"))
        await eventually_async(lambda: len(seen) == 40)

    assert sorted(order.number for order in seen) == list(range(40))
    assert seen[0].customer == "ann"
    assert await taken_until_last(mq, "orders") == []


async def test_payloads_are_what_functions_are_annotated_with(app: tidegate.App, mq: Any) -> None:
    seen: dict[str, object] = {}

    @app.worker("raw")
    async def raw(payload: bytes) -> None:
        seen["raw"] = payload

    @app.worker("text")
    def text(payload: str) -> None:
        seen["text"] = payload

    @app.worker("parcels")
    async def parcels(parcel: Parcel, *, message: tidegate.Message) -> None:
        seen["parcels"] = (parcel, message.content_type, message.queue, message.headers)

    async with app.running():
        await app.put("raw", b"\xff")
        await app.put("text", "grüezi")
        await app.put("parcels", Parcel(2.5), headers={"a": "b"})
        await eventually_async(lambda: len(seen) == 3)

    assert seen == {
        "raw": b"\xff",
        "text": "grüezi",
        "parcels": (Parcel(2.5), "application/json", "parcels", {"a": "b"}),
    }


async def test_a_payload_that_does_not_decode_is_a_dead_letter_and_not_retried(
    app: tidegate.App, mq: Any
) -> None:
    calls = 0

    @app.worker("orders")
    async def ship(order: Order) -> None:
        nonlocal calls
        calls += 1

    async with app.running():
        await mq.put("orders", b'{"number": "x"}')
        letter = await dead_letter(mq, "orders")

    (death,) = letter.deaths
    assert (letter.payload, death.reason, death.deliveries) == (b'{"number": "x"}', "rejected", 1)
    assert "the payload is no Order: Expected `int`, got `str`" in death.error
    assert calls == 0


async def test_failed_handler_gets_the_message_again_flagged_and_counted(
    app: tidegate.App, mq: Any
) -> None:
    deliveries: list[tuple[int, bool]] = []

    @app.worker("orders", policy=AT_ONCE)
    async def fail_twice(message: tidegate.Message) -> None:
        deliveries.append((message.delivery_count, message.redelivered))
        if len(deliveries) < 3:
            raise ValueError("not yet")

    async with app.running():
        await mq.put("orders", b"x")
        await eventually_async(lambda: len(deliveries) == 3)

    assert deliveries == [(1, False), (2, True), (3, True)]
    assert await taken_until_last(mq, "orders") == []


async def test_retry_says_when(app: tidegate.App, mq: Any) -> None:
    calls: list[float] = []

    @app.worker("orders", policy=QueuePolicy(retry_first_s=1000.0))
    async def later(payload: bytes) -> None:
        calls.append(time.monotonic())
        if len(calls) == 1:
            raise tidegate.Retry("the bank is closed", after=0.3)

    async with app.running():
        await mq.put("orders", b"x")
        await eventually_async(lambda: len(calls) == 2)

    assert calls[1] - calls[0] >= 0.3
    assert await taken_until_last(mq, "orders") == []


async def test_reject_sends_to_the_dead_letters_with_the_reason(app: tidegate.App, mq: Any) -> None:
    @app.worker("orders")
    async def refuse(payload: bytes) -> None:
        raise tidegate.Reject("no such customer")

    @app.worker("mails")
    def refuse_blocking(payload: bytes) -> None:
        raise tidegate.Reject("no such customer")

    async with app.running():
        for queue in ("orders", "mails"):
            await mq.put(queue, b"x")
            letter = await dead_letter(mq, queue)
            (death,) = letter.deaths
            assert (letter.payload, death.reason, death.error, death.deliveries) == (
                *(b"x", "rejected"),
                *("no such customer", 1),
            )


async def test_message_becomes_a_dead_letter_after_its_last_failure(
    app: tidegate.App, mq: Any
) -> None:
    policy = QueuePolicy(deliveries_max=3, retry_first_s=0.0, retry_jitter=0.0)
    calls = 0

    @app.worker("orders", policy=policy)
    def fail(message: tidegate.Message) -> None:
        nonlocal calls
        calls += 1
        raise ValueError(f"number {message.delivery_count}")

    async with app.running():
        await mq.put("orders", b"x")
        (death,) = (await dead_letter(mq, "orders")).deaths

    assert (death.reason, death.deliveries, calls) == ("deliveries", 3, 3)
    assert death.error == "ValueError: number 3"


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_no_more_run_at_a_time_than_the_concurrency(
    kind: str, app: tidegate.App, mq: Any
) -> None:
    now, most, done = 0, 0, 0
    lock = threading.Lock()
    go_on, go_on_blocking = asyncio.Event(), threading.Event()

    def count(step: int) -> None:
        nonlocal now, most, done
        with lock:
            now += step
            most = max(most, now)
            done += step < 0

    async def slowly(payload: bytes) -> None:
        count(1)
        await go_on.wait()
        await asyncio.sleep(0.005)  # the handler's work: another one could begin meanwhile
        count(-1)

    def blocking(payload: bytes) -> None:
        count(1)
        go_on_blocking.wait(PATIENCE_S)
        time.sleep(0.005)  # the handler's work: another one could begin meanwhile
        count(-1)

    app.worker("orders", concurrency=3)(slowly if kind == "async" else blocking)
    await mq.create_queue("orders")
    await put_all(mq, "orders", numbered(30))

    async with app.running():
        await eventually_async(lambda: now == 3)
        go_on.set()
        go_on_blocking.set()
        await eventually_async(lambda: done == 30)

    assert most == 3


async def test_functions_that_block_run_at_once_in_threads_and_leave_the_loop_alone(
    app: tidegate.App, mq: Any
) -> None:
    together = threading.Barrier(4, timeout=PATIENCE_S)
    go_on = threading.Event()
    threads = set()

    @app.worker("orders", concurrency=4)
    def wait_for_the_others(payload: bytes) -> None:
        threads.add(threading.current_thread())
        together.wait()
        assert go_on.wait(PATIENCE_S)
        app.wait(app.put("done", payload))

    await mq.create_queue("done")
    async with app.running():
        await put_all(mq, "orders", numbered(4))
        await eventually_async(lambda: len(threads) == 4)
        go_on.set()
        async with mq.subscribe("done") as subscription:
            assert sorted(payloads_of(await take(subscription, 4))) == numbered(4)

    assert threading.current_thread() not in threads


async def test_two_apps_share_the_work(engine: Engine, mq: Any) -> None:
    seen: list[list[bytes]] = [[], []]
    both_at_work = asyncio.Event()
    apps = [engine.app(), engine.app()]

    async def handle(number: int, payload: bytes) -> None:
        seen[number].append(payload)
        # Whoever is first waits for the other: so both are seen to work.
        if all(seen):
            both_at_work.set()
        await both_at_work.wait()

    for number, one in enumerate(apps):

        async def work(payload: bytes, number: int = number) -> None:
            await handle(number, payload)

        one.worker("orders", concurrency=2)(work)

    async with apps[0].running(), apps[1].running():
        await put_all(mq, "orders", numbered(60))
        await eventually_async(lambda: len(seen[0]) + len(seen[1]) == 60)

    assert sorted(seen[0] + seen[1]) == sorted(numbered(60))
    assert await taken_until_last(mq, "orders") == []


async def test_middleware_stands_around_the_call_the_first_outermost_and_may_change_the_reply(
    app: tidegate.App, mq: Any
) -> None:
    told: list[str] = []
    session: ContextVar[str] = ContextVar("session")

    @app.middleware
    async def outer(message: tidegate.Message, call_next: tidegate.CallNext) -> object:
        told.append("outer before")
        try:
            return await call_next()
        except ValueError as error:
            told.append(f"outer saw {error}")
            raise
        finally:
            told.append("outer after")

    @app.middleware
    async def inner(message: tidegate.Message, call_next: tidegate.CallNext) -> object:
        session.set(f"session of {message.payload.decode()}")
        told.append("inner before")
        told.append(f"inner got {await call_next()}")
        return "another result"

    @app.worker("orders", policy=AT_ONCE)
    def handle(message: tidegate.Message) -> str:
        told.append(session.get())
        if not message.redelivered:
            raise ValueError("it")
        return "result"

    async with app.running():
        reply = await mq.request("orders", b"7", timeout=PATIENCE_S)

    assert reply.payload == b"another result"
    before = ["outer before", "inner before", "session of 7"]
    assert told == [
        *(*before, "outer saw it", "outer after"),
        *(*before, "inner got result", "outer after"),
    ]


async def test_hooks_run_before_the_first_message_and_after_the_last(
    app: tidegate.App, mq: Any
) -> None:
    told: list[str] = []
    begun = asyncio.Event()

    @app.on_start
    def open_database() -> None:
        told.append("opened")

    @app.on_start
    async def greet() -> None:
        told.append("greeted")

    @app.on_stop
    async def close_database() -> None:
        told.append("closed")
        await app.put("farewells", "we are closed")

    @app.on_stop
    def say_goodbye() -> None:
        told.append("goodbye")

    @app.worker("orders")
    async def handle(payload: bytes) -> None:
        begun.set()
        await asyncio.sleep(0)
        told.append("handled")

    await mq.create_queue("orders")
    await mq.create_queue("farewells")
    await mq.put("orders", b"x")
    async with app.running():
        await soon(begun)

    # The last to come is the first to go.
    assert told == ["opened", "greeted", "handled", "goodbye", "closed"]
    assert payloads_of(await taken_until_last(mq, "farewells")) == [b"we are closed"]


async def test_a_request_is_answered_by_what_the_function_returns(
    app: tidegate.App, mq: Any
) -> None:
    calls = 0

    @app.worker("double", concurrency=4)
    async def double(number: int) -> int:
        nonlocal calls
        calls += 1
        return 2 * number

    @app.worker("echo")
    def echo(message: tidegate.Message) -> bytes:
        return message.payload

    async with app.running():
        answers = await asyncio.gather(
            *(mq.request("double", b"%d" % number, timeout=PATIENCE_S) for number in range(10))
        )
        assert payloads_of(answers) == [b"%d" % (2 * number) for number in range(10)]
        assert answers[0].content_type == "application/json"
        assert (await app.request("double", 21, timeout=PATIENCE_S)).payload == b"42"
        assert (await mq.request("echo", b"\xff", timeout=PATIENCE_S)).payload == b"\xff"
        # What nobody asked for is not answered.
        await mq.put("double", b"1")
        await eventually_async(lambda: calls == 12)

    assert await taken_until_last(mq, "double") == []


async def test_a_worker_may_ask_workers_of_its_own_app(app: tidegate.App, mq: Any) -> None:
    @app.worker("double")
    async def double(number: int) -> int:
        return 2 * number

    @app.worker("questions")
    async def answer(number: int) -> bytes:
        return (await app.request("double", number + 1, timeout=PATIENCE_S)).payload

    async with app.running():
        assert (await mq.request("questions", b"20", timeout=PATIENCE_S)).payload == b"42"


async def test_a_request_that_nobody_answers_says_so_in_time(mq: Any) -> None:
    await mq.create_queue("questions")

    with pytest.raises(tidegate.NoReply):
        await mq.request("questions", b"?", timeout=0.2)
    with pytest.raises(tidegate.QueueNotExisting):
        await mq.request("nowhere", b"?", timeout=PATIENCE_S)


async def test_told_to_stop_it_finishes_what_runs_and_returns_what_it_has_not_begun(
    app: tidegate.App, mq: Any
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    finished: list[bytes] = []

    @app.worker("orders", concurrency=2, prefetch=6)
    async def handle(payload: bytes) -> None:
        if payload == b"1":
            begun.set()
        await go_on.wait()
        finished.append(payload)

    await mq.create_queue("orders")
    await put_all(mq, "orders", numbered(8))
    serving = asyncio.create_task(app.serve())
    await soon(begun)
    app.stop()
    # While it finishes, others get what it has not begun.
    async with mq.subscribe("orders", prefetch=20) as other:
        rest = await take(other, 6)
        assert sorted(payloads_of(rest)) == numbered(6, start=2)
        assert not serving.done()
        for message in rest:
            await message.ack_confirmed()
        go_on.set()
        async with asyncio.timeout(PATIENCE_S):
            await serving

    assert sorted(finished) == [b"0", b"1"]
    assert await taken_until_last(mq, "orders") == []


async def test_message_of_an_unfinished_handler_returns_flagged(app: tidegate.App, mq: Any) -> None:
    begun = asyncio.Event()

    @app.worker("orders")
    async def hang(payload: bytes) -> None:
        begun.set()
        await asyncio.Event().wait()

    await mq.create_queue("orders")
    await mq.put("orders", b"x")
    async with app.running(drain_s=0.0):
        await soon(begun)

    async with mq.subscribe("orders") as subscription:
        (message,) = await take(subscription, 1)
        assert (message.payload, message.redelivered) == (b"x", True)


async def test_a_queue_that_is_deleted_ends_the_app_in_good_order(
    app: tidegate.App, mq: Any
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    handled = asyncio.Event()

    @app.worker("orders")
    async def handle(payload: bytes) -> None:
        handled.set()

    @app.worker("mails")
    async def finish(payload: bytes) -> None:
        begun.set()
        await go_on.wait()

    await mq.create_queue("orders")
    await mq.create_queue("mails")
    serving = asyncio.create_task(app.serve())
    await mq.put("orders", b"x")
    await mq.put("mails", b"x")
    await soon(handled)
    await soon(begun)
    await mq.delete_queue("orders")
    go_on.set()

    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(tidegate.QueueNotExisting):
            await serving
    assert await taken_until_last(mq, "mails") == []


async def test_an_app_whose_engine_is_not_there_says_so(engine: Engine) -> None:
    scheme = engine.url.partition("://")[0]
    app = tidegate.App(f"{scheme}://127.0.0.1:9", reconnect_s=0.2)

    @app.worker("orders")
    async def handle(payload: bytes) -> None: ...

    with pytest.raises(tidegate.Unavailable):
        await app.serve()
