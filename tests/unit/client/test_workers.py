"""Workers on a real node: what they are called with, what becomes of the message, how they end."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest
from backing import Connect, StartNode
from waiting import LIMIT_S, eventually_async

import tidegate
import tidegate.client.app
from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.client.message import Undecodable, encode_payload, payload_decoder
from tidegate.client.worker import EXIT_MESSAGE_S, STOPPED_TEXT
from tidegate.core import errors as e
from tidegate.core.model import QueuePolicy
from tidegate.core.runtime import NodeLimits
from tidegate.storage.memory import MemoryStore

# What fails comes again without a wait that the test would have to sit out.
AT_ONCE = QueuePolicy(retry_first_s=0.0, retry_jitter=0.0)


@dataclass
class Order:
    number: int
    customer: str = "nobody"


@dataclass
class Crate:
    within: Crate | None
    opened: asyncio.Event


class Parcel(msgspec.Struct):
    number: int
    weight_g: float = 1.0


class Letter(TypedDict):
    number: int


class Panic(BaseException):
    """No Exception, as those of libraries that are not written in Python."""


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("nothing to say")


def kind_of(error: BaseException) -> str:
    return type(error).__name__


class Invoice(pydantic.BaseModel):
    number: int
    total: float = pydantic.Field(default=1.0, ge=0)


@pytest.fixture
async def node(start_node: StartNode) -> Node:
    return await start_node(limits=NodeLimits(settle_linger_s=0.001))


@pytest.fixture
async def mq(node: Node, connect: Connect) -> Client:
    return await connect(node, mode="admin")


@pytest.fixture
def app(node: Node) -> tidegate.App:
    return tidegate.App(node.address)


def numbers_of(node: Node, queue: str) -> Any:
    (replica,) = [one for one in node.replicas.values() if one.info.name == queue]
    return replica.numbers()


async def until_empty(node: Node, queue: str) -> None:
    """Nothing waits and nothing is in anybody's hands."""

    def empty() -> bool:
        numbers = numbers_of(node, queue)
        return not numbers.waiting and not numbers.unacknowledged

    await eventually_async(empty)


async def soon(event: asyncio.Event) -> None:
    async with asyncio.timeout(LIMIT_S):
        await event.wait()


# What a function is called with


def handlers() -> list[Any]:
    def unannotated(payload):  # type: ignore[no-untyped-def]
        return payload

    def raw(payload: bytes) -> object:
        return payload

    def text(payload: str) -> object:
        return payload

    def a_dataclass(order: Order) -> object:
        return order

    def a_struct(parcel: Parcel) -> object:
        return parcel

    def a_typed_dict(letter: Letter) -> object:
        return letter

    def a_model(invoice: Invoice) -> object:
        return invoice

    def several_models(invoices: list[Invoice]) -> object:
        return invoices

    def anything(value: Any) -> object:
        return value

    def a_number(number: int) -> object:
        return number

    json = b'{"number": 7}'
    return [
        pytest.param(unannotated, b"\xff", b"\xff", id="unannotated"),
        pytest.param(raw, b"\xff", b"\xff", id="bytes"),
        pytest.param(text, "grüezi".encode(), "grüezi", id="str"),
        pytest.param(a_dataclass, json, Order(7), id="dataclass"),
        pytest.param(a_struct, json, Parcel(7), id="msgspec"),
        pytest.param(a_typed_dict, json, {"number": 7}, id="TypedDict"),
        pytest.param(a_model, json, Invoice(number=7), id="pydantic"),
        pytest.param(several_models, b"[" + json + b"]", [Invoice(number=7)], id="models"),
        pytest.param(anything, json, {"number": 7}, id="Any"),
        pytest.param(a_number, b"7", 7, id="int"),
    ]


@pytest.mark.parametrize(("function", "payload", "expected"), handlers())
async def test_a_payload_becomes_what_the_function_is_annotated_with(
    function: Callable[[Any], Any],
    payload: bytes,
    expected: object,
    app: tidegate.App,
    node: Node,
    mq: Client,
) -> None:
    seen: list[object] = []

    @app.middleware
    async def look(message: tidegate.Message, call_next: tidegate.CallNext) -> None:
        seen.append(await call_next())

    app.worker("orders")(function)

    async with app.running():
        await mq.put("orders", payload)
        await until_empty(node, "orders")

    assert seen == [expected]


async def test_a_function_may_take_the_message_too_wherever_it_stands(
    app: tidegate.App, node: Node, mq: Client
) -> None:
    seen: list[Any] = []

    @app.worker("both")
    async def both(order: Order, factor: int = 2, *, message: tidegate.Message) -> None:
        seen.append((order.number, factor, message.queue, message.headers))

    @app.worker("message-only")
    def message_only(message: tidegate.Message, /) -> None:
        seen.append(message.payload)

    async with app.running():
        await mq.put("both", b'{"number": 3}', headers={"trace": "4f"})
        await until_empty(node, "both")
        await mq.put("message-only", b"\x00")
        await until_empty(node, "message-only")

    assert seen == [(3, 2, "both", {"trace": "4f"}), b"\x00"]


# Where it runs


async def test_a_worker_holds_twice_what_it_works_on_and_no_more(
    app: tidegate.App, node: Node, mq: Client
) -> None:
    go_on = asyncio.Event()

    @app.worker("orders", concurrency=2)
    async def wait(payload: bytes) -> None:
        await go_on.wait()

    async with app.running():
        await mq.put_many("orders", [b"x"] * 20)
        await mq.ping()
        numbers = numbers_of(node, "orders")
        assert (numbers.unacknowledged, numbers.waiting) == (4, 16)
        go_on.set()
        await until_empty(node, "orders")


# What becomes of the message


@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        StopIteration("x"),
        asyncio.CancelledError("x"),
        Panic("as extensions raise it"),
        Speechless(),
        FileNotFoundError("half a character: \udcff"),
        tidegate.Retry("half a character: \udcff"),
    ],
    ids=kind_of,
)
async def test_whatever_a_function_raises_fails_its_message_and_not_the_worker(
    kind: str,
    error: BaseException,
    app: tidegate.App,
    node: Node,
    mq: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Half characters in a captured log cannot travel between the processes of a test run.
    monkeypatch.setattr(logging.getLogger("tidegate.client.worker"), "disabled", True)
    calls = 0

    async def awaited(payload: bytes) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise error

    def blocking(payload: bytes) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise error

    app.worker("orders", policy=AT_ONCE)(awaited if kind == "async" else blocking)

    async with app.running():
        await mq.put("orders", b"x")
        await eventually_async(lambda: calls == 2)
        await until_empty(node, "orders")


async def test_no_value_is_no_reply(app: tidegate.App, node: Node, mq: Client) -> None:
    @app.worker("questions")
    async def leave_it_to_somebody_else(message: tidegate.Message) -> None:
        await app.put("elsewhere", message.payload)

    await mq.create_queue("elsewhere")
    async with app.running():
        asking = asyncio.create_task(mq.request("questions", b"?", timeout=LIMIT_S))
        assert (await mq.get("elsewhere", wait=LIMIT_S)).payload == b"?"
        await until_empty(node, "questions")
        assert not asking.done()
        asking.cancel()


async def test_a_reply_that_cannot_be_written_fails_the_message(
    app: tidegate.App, node: Node, mq: Client
) -> None:
    calls = 0

    @app.worker("questions", policy=AT_ONCE)
    async def answer(payload: bytes) -> object:
        nonlocal calls
        calls += 1
        return object() if calls == 1 else "better"

    async with app.running():
        assert (await mq.request("questions", b"?", timeout=LIMIT_S)).payload == b"better"


# Around the call


async def test_workers_put_with_async_and_without(
    app: tidegate.App, node: Node, mq: Client
) -> None:
    arrived: list[object] = []

    @app.worker("last")
    def last(parcel: Parcel) -> None:
        arrived.append(parcel)

    @app.worker("middle")
    def middle(order: Order) -> None:
        app.wait(app.send(last, Parcel(order.number + 1)))

    @app.worker("first")
    async def first(number: int) -> None:
        await app.send(middle, Order(number + 1), priority=9)

    async with app.running():
        await app.put("first", 1)
        await eventually_async(lambda: bool(arrived))
        with pytest.raises(e.InvalidValue, match="await it instead"):
            app.wait(app.put("first", 1))
        with pytest.raises(e.InvalidValue, match=r"lambda.* is no worker"):
            await app.send(lambda: None, 1)

    assert arrived == [Parcel(3)]


async def test_a_producer_uses_the_app_without_working(
    app: tidegate.App, node: Node, mq: Client
) -> None:
    @app.worker("orders")
    async def handle(order: Order) -> None: ...

    await mq.create_queue("orders")
    async with app.connected():
        await app.send(handle, Order(7))
        await mq.ping()

    waiting = await mq.get("orders")
    assert (waiting.payload, waiting.content_type) == (
        b'{"number":7,"customer":"nobody"}',
        "application/json",
    )


async def test_a_function_may_settle_by_itself(app: tidegate.App, node: Node, mq: Client) -> None:
    done: list[bytes] = []

    @app.worker("orders", policy=AT_ONCE)
    async def handle(message: tidegate.Message) -> None:
        if message.payload == b"acked":
            await message.ack_confirmed()
        elif not message.redelivered:
            await message.nack()
            return
        done.append(message.payload)

    async with app.running():
        for payload in (b"acked", b"nacked", b"plain"):
            await mq.put("orders", payload, priority=9 if payload == b"acked" else 5)
        await eventually_async(lambda: len(done) == 3)
        await until_empty(node, "orders")

    assert sorted(done) == [b"acked", b"nacked", b"plain"]


# The end


@pytest.mark.parametrize("hurried", ["deadline", "second stop", "cancelled"])
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_unfinished_message_returns_flagged_after_the_drain(
    kind: str, hurried: str, app: tidegate.App, node: Node, mq: Client
) -> None:
    begun, cleaned_up = threading.Event(), False
    never = threading.Event()

    async def hang(payload: bytes) -> None:
        nonlocal cleaned_up
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned_up = True

    def block(payload: bytes) -> None:
        begun.set()
        never.wait(60)

    app.worker("orders")(hang if kind == "async" else block)
    drain_s = 0.05 if hurried == "deadline" else 1000.0
    serving = asyncio.create_task(app.serve(drain_s=drain_s))
    await mq.create_queue("orders", exist_ok=True)
    await mq.put("orders", b"x")
    await eventually_async(begun.is_set)

    if hurried == "cancelled":
        serving.cancel()
    else:
        app.stop()
    if hurried == "second stop":
        app.stop()
    await asyncio.wait([serving])
    assert serving.cancelled() == (hurried == "cancelled")

    again = await mq.get("orders", wait=LIMIT_S, lease=10)
    assert again.payload == b"x"
    assert again.redelivered
    assert cleaned_up == (kind == "async")
    never.set()


async def test_handler_that_ignores_cancellation_loses_its_message(
    app: tidegate.App, node: Node, mq: Client
) -> None:
    begun = asyncio.Event()
    stubborn: list[asyncio.Task[Any] | None] = []

    @app.worker("orders")
    async def not_listening(payload: bytes) -> None:
        stubborn.append(asyncio.current_task())
        begun.set()
        for _ in range(2):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    serving = asyncio.create_task(app.serve(drain_s=0.0))
    await mq.create_queue("orders", exist_ok=True)
    await mq.put("orders", b"x")
    await soon(begun)
    app.stop()
    await serving

    assert (await mq.get("orders", wait=LIMIT_S)).redelivered
    for task in stubborn:
        assert task is not None
        task.cancel()


async def test_stopping_under_load_repeats_nothing(
    app: tidegate.App, node: Node, mq: Client
) -> None:
    done: list[bytes] = []

    @app.worker("orders", concurrency=8)
    async def handle(payload: bytes) -> None:
        await asyncio.sleep(0.001)  # the work
        done.append(payload)

    await mq.create_queue("orders")
    await mq.put_many("orders", [b"%d" % n for n in range(2000)])
    for rounds in range(1, 6):
        async with app.running():
            await eventually_async(lambda expected=100 * rounds: len(done) > expected)  # type: ignore[misc]
    left = await mq.purge("orders")

    assert len(done) == len(set(done))
    assert len(done) + left == 2000
    assert left > 0, "it was stopped under load"


# Holding on


async def test_a_lease_that_is_shortened_meanwhile_takes_nothing_from_who_works(
    app: tidegate.App, node: Node, mq: Client
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    calls = 0

    @app.worker("orders")
    async def work(payload: bytes) -> None:
        nonlocal calls
        calls += 1
        begun.set()
        await go_on.wait()

    async with app.running():
        await mq.set_policy("orders", lease_s=0.2)
        await mq.put("orders", b"x")
        await soon(begun)
        (replica,) = [one for one in node.replicas.values() if one.info.name == "orders"]
        (consumer,) = replica.dispatch.holders.consumers
        (lease,) = consumer.book
        # Who subscribed when it was a minute renews for a minute.
        assert lease.deadline - lease.granted_at == node.limits.delivery_lease_s
        go_on.set()
        await until_empty(node, "orders")
    assert calls == 1


async def test_a_worker_outlives_an_outage_longer_than_its_patience() -> None:
    store = MemoryStore()
    node = Node(store)
    await node.start()
    port = int(node.address.rpartition(":")[2])
    app = tidegate.App(node.address, reconnect_s=0.05)
    done: list[bytes] = []

    @app.worker("orders")
    async def handle(payload: bytes) -> None:
        done.append(payload)

    async with app.running():
        await app.put("orders", b"before")
        await eventually_async(lambda: done == [b"before"])
        await node.stop()
        with pytest.raises(e.Unavailable):
            await app.put("orders", b"during")
        node = Node(store, port=port)
        await node.start()
        async with tidegate.connect(node.address) as mq:
            await mq.put("orders", b"after")
        await eventually_async(lambda: b"after" in done)
    await node.stop()


# Wrong use is said where it happens


def test_an_app_without_workers_says_so() -> None:
    with pytest.raises(e.InvalidValue, match=r"no workers: decorate .* @app\.worker"):
        tidegate.App().run()


def test_wrong_declarations_are_refused() -> None:
    app = tidegate.App()

    @app.worker("orders")
    def first(payload: bytes) -> None: ...

    def second(payload: bytes) -> None: ...
    def generator(payload: bytes) -> Any:
        yield payload

    def greedy(payload: bytes, more: int) -> None: ...
    def nothing() -> None: ...
    def unheard_of(payload: Unknown) -> None: ...  # type: ignore[name-defined]  # noqa: F821
    def undecodable(payload: Callable[[], int]) -> None: ...
    def undecodable_within(payload: list[Crate | None]) -> None: ...
    def not_async(message: Any, call_next: Any) -> None: ...

    for declare, said in [
        (lambda: app.worker("orders")(second), "has a worker already, .*first.* of its own"),
        (lambda: app.worker("a", concurrency=0)(second), "whole number from 1 to 10000, not 0"),
        (lambda: app.worker("a", concurrency="8")(second), "not '8'"),  # type: ignore[arg-type]
        (lambda: app.worker("a", concurrency=8, prefetch=4)(second), "prefetch of 4 keeps"),
        (lambda: app.worker("")(second), "not empty"),
        (lambda: app.worker(second), "names its queue"),  # type: ignore[arg-type]
        (lambda: app.worker("a")(generator), "is a generator"),
        (lambda: app.worker("a")(greedy), "'more' is neither the payload"),
        (lambda: app.worker("a")(nothing), "takes nothing"),
        (lambda: app.worker("a")(unheard_of), "cannot be looked up .*'Unknown'"),
        (lambda: app.worker("a")(undecodable), "cannot take its payload: JSON does not become"),
        (lambda: app.worker("a")(undecodable_within), "nobody knows how Event is written"),
        (lambda: app.middleware(not_async), "is async, and .*not_async is not"),  # type: ignore[arg-type]
        (lambda: tidegate.Retry(after=-1), "after is in seconds"),
    ]:
        with pytest.raises(e.InvalidValue, match=said):
            declare()  # type: ignore[no-untyped-call]

    assert [worker.queue for worker in app.workers] == ["orders"]


async def test_wrong_wishes_are_refused_before_anything_runs(app: tidegate.App) -> None:
    @app.worker("orders", prefetch=30)
    async def handle(payload: bytes) -> None: ...

    for wishes, said in [
        ({"queues": ["mails", "orders"]}, "no worker serves mails; there are workers for orders"),
        ({"queues": []}, "no worker serves nothing"),
        ({"concurrency": 0}, "concurrency is a whole number"),
        ({"concurrency": 4, "prefetch": 2}, "prefetch of 2 keeps"),
        ({"drain_s": -1.0}, "drain_s is in seconds"),
    ]:
        with pytest.raises(e.InvalidValue, match=said):
            await app.serve(**wishes)  # type: ignore[arg-type]
    with pytest.raises(e.InvalidValue, match="not connected"):
        await app.put("orders", b"x")

    async with app.running():
        with pytest.raises(e.InvalidValue, match="running already"):
            await app.serve()


# Only on a node that keeps dead letters and delays


async def dead_letter(mq: Client, queue: str) -> tidegate.Message:
    """The first dead letter of a queue, whose dead-letter queue is made when first needed."""

    async def is_there() -> bool:
        try:
            await mq.queue(f"{queue}.dead")
        except e.QueueNotExisting:
            return False
        return True

    await eventually_async(is_there)
    return await mq.get(f"{queue}.dead", wait=LIMIT_S)


async def test_failures_are_told_in_the_dead_letter(
    app: tidegate.App, node: Node, mq: Client
) -> None:
    policy = QueuePolicy(deliveries_max=3, retry_first_s=0.0, retry_jitter=0.0)

    @app.worker("orders", policy=policy)
    def fail(message: tidegate.Message) -> None:
        if message.delivery_count == 2:
            raise tidegate.Retry("the bank is closed", after=0)
        raise ValueError(f"number {message.delivery_count}")

    async with app.running():
        await mq.put("orders", b"x")
        (death,) = (await dead_letter(mq, "orders")).deaths

    assert (death.reason, death.deliveries) == ("deliveries", 3)
    assert death.error == "ValueError: number 3"
    assert [failure.error for failure in death.failures] == [
        "ValueError: number 1",
        "the bank is closed",
        "ValueError: number 3",
    ]


async def test_unstarted_messages_return_without_a_failure(
    app: tidegate.App, node: Node, mq: Client
) -> None:
    begun = asyncio.Event()

    @app.worker("orders", concurrency=1, prefetch=10)
    async def hang(payload: bytes) -> None:
        begun.set()
        await asyncio.Event().wait()

    await mq.create_queue("orders", policy=QueuePolicy(deliveries_max=1))
    await mq.put_many("orders", [b"%d" % n for n in range(10)])
    async with app.running():
        await soon(begun)
        app.stop()
        app.stop()

    again = [await mq.get("orders", wait=LIMIT_S) for _ in range(9)]
    assert [message.payload for message in again] == [b"%d" % n for n in range(1, 10)]
    assert all(message.redelivered for message in again), "whoever says so may be wrong"


async def test_death_of_a_cut_off_message_names_the_stop(
    app: tidegate.App, node: Node, mq: Client
) -> None:
    begun = asyncio.Event()

    @app.worker("orders", policy=QueuePolicy(deliveries_max=1))
    async def hang(payload: bytes) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with app.running(drain_s=0.0):
        await mq.put("orders", b"x")
        await soon(begun)

    (death,) = (await dead_letter(mq, "orders")).deaths
    assert death.error == STOPPED_TEXT


# Payloads as values


@pytest.mark.parametrize(
    ("wanted", "payload", "said"),
    [
        (Order, b"{", "the payload is no Order: Input data was truncated"),
        (Order, b'{"number": "x"}', "the payload is no Order: Expected `int`, got `str`"),
        (str, b"\xff", "the payload is no text"),
        (Invoice, b'{"number": 1, "total": -5}', "the payload is no Invoice: .* at total"),
    ],
)
def test_a_payload_that_does_not_decode_says_what_is_wrong(
    wanted: Any, payload: bytes, said: str
) -> None:
    with pytest.raises(Undecodable, match=said):
        payload_decoder(wanted)(payload)


@pytest.mark.parametrize(
    ("result", "payload", "content_type"),
    [
        (b"\xff", b"\xff", None),
        ("grüezi", "grüezi".encode(), "text/plain; charset=utf-8"),
        ({"number": 1}, b'{"number":1}', "application/json"),
        (Order(1), b'{"number":1,"customer":"nobody"}', "application/json"),
        (Invoice(number=1), b'{"number":1,"total":1.0}', "application/json"),
        ([Invoice(number=1)], b'[{"number":1,"total":1.0}]', "application/json"),
        (False, b"false", "application/json"),
    ],
)
def test_result_is_encoded_by_its_type(
    result: object, payload: bytes, content_type: str | None
) -> None:
    assert encode_payload(result) == (payload, content_type)


@pytest.mark.parametrize("value", [object(), [object()]])
def test_payload_without_json_form_is_refused_with_alternatives(value: object) -> None:
    with pytest.raises(e.InvalidValue, match=r"cannot be written as JSON: .*Give bytes, a string"):
        encode_payload(value)


def test_a_signal_that_comes_while_another_is_handled_ends_the_drain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits_s: list[float] = []

    class RecordedExit:
        def within(self, seconds: float) -> None:
            if not limits_s:
                limits_s.append(seconds)
                signal.raise_signal(signal.SIGTERM)
            else:
                limits_s.append(seconds)

        def call_off(self) -> None: ...

    class SignalledApp(tidegate.App):
        async def serve(self, **_: object) -> None:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(tidegate.client.app, "ForcedExit", RecordedExit)

    SignalledApp().run(drain_s=1000.0)

    assert limits_s == [1000.0 + EXIT_MESSAGE_S, EXIT_MESSAGE_S]
