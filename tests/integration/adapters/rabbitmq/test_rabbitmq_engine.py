"""RabbitMQ's own ways, on a real one: what a suite that all engines pass cannot ask."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import aio_pika
import pytest
from free_ports import free_ports
from rabbitmq import VirtualHost
from waiting import eventually_async

import tidegate
from tidegate.client.client import Client
from tidegate.engines.rabbitmq.client import RabbitmqClient

PATIENCE_S = 60.0
QUEUE_ARGUMENTS: list[tuple[str, dict[str, Any], bool]] = [
    ("plain", {}, True),
    ("classic", {"x-queue-type": "classic"}, True),
    ("quorum", {"x-queue-type": "quorum"}, False),
    ("ranked", {"x-max-priority": 5}, True),
    ("limited quorum", {"x-queue-type": "quorum", "x-delivery-limit": 3}, False),
]


async def first_of(subscription: Any) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        return await anext(aiter(subscription))


def engine_of(app: tidegate.App) -> RabbitmqClient:
    assert isinstance(app.engine, RabbitmqClient)
    return app.engine


@pytest.mark.parametrize(("name", "arguments", "is_classic"), QUEUE_ARGUMENTS, ids=lambda v: str(v))
async def test_a_queue_that_exists_is_taken_as_it_is_and_its_prefetch_is_live(
    rabbitmq: VirtualHost, name: str, arguments: dict[str, Any], is_classic: bool
) -> None:
    async with await aio_pika.connect(rabbitmq.url) as theirs:
        channel = await theirs.channel()
        await channel.declare_queue(name, durable=True, arguments=arguments)

    async with tidegate.connect(rabbitmq.url) as mq:
        assert await mq.queues.is_classic(name) is is_classic  # type: ignore[attr-defined]
        await mq.put_many(name, [b"x"] * 20)
        async with mq.subscribe(name, prefetch=2) as subscription:
            await eventually_async(lambda: subscription.held == 2)
            await subscription.set_prefetch(5)
            await eventually_async(lambda: subscription.held >= 5)
            for _ in range(20):
                (await first_of(subscription)).ack()
        await until_empty(mq, name)


async def until_empty(mq: Client, queue: str) -> None:
    async def is_empty() -> bool:
        return not await mq.waiting(queue)

    await eventually_async(is_empty)


async def until_cut(host: VirtualHost) -> None:
    """The management API knows of a connection a while after it was made."""
    await eventually_async(host.close_connections)


async def connections_beyond(host: VirtualHost, known: set[str], count: int) -> set[str]:
    """Names of all connections, once the management API knows so many that are not `known`."""

    def names() -> set[str]:
        found = set(host.connections())
        return found if len(found - known) >= count else set()

    return await eventually_async(names)


async def test_queues_of_every_sort_leave_the_connection_alone(rabbitmq: VirtualHost) -> None:
    async with await aio_pika.connect(rabbitmq.url) as theirs, tidegate.connect(rabbitmq.url) as mq:
        channel = await theirs.channel()
        await channel.declare_queue("aged", durable=True, arguments={"x-message-ttl": 60_000})
        await channel.declare_queue("short-lived", durable=False, auto_delete=False)
        await mq.create_queue("plain")
        await mq.put("plain", b"x")
        # Theirs, and ours for publishing and for everything else.
        before = await connections_beyond(rabbitmq, set(), 3)

        for name in ("aged", "short-lived"):
            async with mq.subscribe(name) as subscription:
                await mq.put(name, b"x")
                assert (await first_of(subscription)).payload == b"x"

        # Had one of them been lost, the one in its place would be known before the last one is.
        async with await aio_pika.connect(rabbitmq.url):
            after = await connections_beyond(rabbitmq, before, 1)
        assert before < after
        assert len(after - before) == 1


async def test_foreign_message_is_delivered_with_its_headers(rabbitmq: VirtualHost) -> None:
    async with tidegate.connect(rabbitmq.url) as mq, await aio_pika.connect(rabbitmq.url) as theirs:
        await mq.create_queue("orders")
        channel = await theirs.channel()
        foreign = aio_pika.Message(
            b"x", headers={"a": "b", "n": 1, "nested": {"c": [1]}}, correlation_id="no number"
        )
        await channel.default_exchange.publish(foreign, "orders")

        async with mq.subscribe("orders") as subscription:
            message = await first_of(subscription)
            assert (message.headers, message.context) == ({"a": "b", "n": "1"}, None)
            await message.nack(delay=0.0)
            again = await first_of(subscription)
            assert (again.headers, again.message_id) == (message.headers, message.message_id)
            assert again.properties.headers["nested"] == {"c": [1]}
            again.ack()


async def test_others_may_ask_and_are_answered(rabbitmq: VirtualHost) -> None:
    app = tidegate.App(rabbitmq.url)

    @app.worker("sums")
    async def add(numbers: list[int]) -> int:
        return sum(numbers)

    async with app.running(), await aio_pika.connect(rabbitmq.url) as theirs:
        channel = await theirs.channel()
        replies = await channel.declare_queue(exclusive=True)
        question = aio_pika.Message(b"[1, 2]", correlation_id="mine", reply_to=replies.name)
        await channel.default_exchange.publish(question, "sums")
        reply = await eventually_async(lambda: replies.get(fail=False))
        assert (reply.body, reply.correlation_id) == (b"3", "mine")


async def test_a_reply_that_nobody_waits_for_does_not_fail_the_worker(
    rabbitmq: VirtualHost,
) -> None:
    app = tidegate.App(rabbitmq.url)
    answered = asyncio.Event()

    @app.worker("sums")
    async def add(payload: bytes) -> bytes:
        answered.set()
        return payload

    async with app.running(), await aio_pika.connect(rabbitmq.url) as theirs:
        channel = await theirs.channel()
        question = aio_pika.Message(b"x", correlation_id="1", reply_to="gone")
        await channel.default_exchange.publish(question, "sums")
        await answered.wait()
    async with tidegate.connect(rabbitmq.url) as mq:
        # It was acknowledged, neither given back nor given up.
        assert await mq.waiting("sums") == 0
        with pytest.raises(tidegate.QueueNotExisting):
            await mq.queue("sums.dead")


async def test_an_ack_after_the_connection_was_cut_is_dropped_and_settles_no_stranger(
    rabbitmq: VirtualHost,
) -> None:
    async with tidegate.connect(rabbitmq.url) as mq:
        await mq.create_queue("orders")
        await mq.put_many("orders", [b"first", b"second"])
        async with mq.subscribe("orders", prefetch=1) as subscription:
            late = await first_of(subscription)
            await until_cut(rabbitmq)
            again = await first_of(subscription)
            assert (again.payload, again.redelivered) == (late.payload, True)

            # On the channel that there is now, its tag is that of `again`.
            late.ack()
            with pytest.raises(tidegate.LeaseLost):
                await late.ack_confirmed()
            with pytest.raises(tidegate.LeaseLost):
                await late.nack()
            with pytest.raises(tidegate.LeaseLost):
                await late.reject()
        # Nothing was settled: both are there.
        assert [(await mq.get("orders", wait=PATIENCE_S)).payload for _ in range(2)] == [
            b"first",
            b"second",
        ]


async def test_puts_and_requests_survive_a_connection_that_is_cut(rabbitmq: VirtualHost) -> None:
    app = tidegate.App(rabbitmq.url)

    @app.worker("echo")
    async def echo(payload: bytes) -> bytes:
        return payload

    async with app.running():
        assert (await app.request("echo", b"before")).payload == b"before"
        await until_cut(rabbitmq)
        assert (await app.request("echo", b"after", timeout=PATIENCE_S)).payload == b"after"


@pytest.mark.parametrize("kind", ["classic", "quorum"])
async def test_failed_message_is_kept_without_configure_permission(
    rabbitmq: VirtualHost, kind: str
) -> None:
    async with tidegate.connect(f"{rabbitmq.url}?queue_type={kind}") as mq:
        await mq.create_queue("orders")
        await mq.put("orders", b"x")

    async with (
        tidegate.connect(rabbitmq.user(write=".*", read=".*")) as mq,
        mq.subscribe("orders") as subscription,
    ):
        message = await first_of(subscription)
        with pytest.raises(tidegate.Forbidden, match=r"orders\.delay\.100.*set_permissions"):
            await message.nack(delay=0.1)
        # It went back to its queue, and is flagged.
        again = await first_of(subscription)
        assert (again.payload, again.redelivered) == (b"x", True)
        again.ack()


async def test_delay_queues_go_by_themselves_and_dead_letters_stay(rabbitmq: VirtualHost) -> None:
    async with tidegate.connect(rabbitmq.url) as mq:
        await mq.create_queue("orders")
        await mq.put("orders", b"x", delay=0.05)
        async with mq.subscribe("orders") as subscription:
            await (await first_of(subscription)).reject(error="hopeless")
        await eventually_async(lambda: "orders.dead" in rabbitmq.queues())
    queues = rabbitmq.queues()
    (delaying,) = (queue for name, queue in queues.items() if name.startswith("orders.delay.50."))
    arguments = delaying["arguments"]
    assert arguments["x-expires"] == 2 * 86_400_000 + 50
    assert arguments["x-dead-letter-strategy"] == "at-least-once"
    assert "x-expires" not in queues["orders.dead"]["arguments"]


async def test_a_full_queue_refuses(rabbitmq: VirtualHost) -> None:
    policy = tidegate.QueuePolicy(length_max=2, overflow=tidegate.Overflow.REFUSE)
    async with tidegate.connect(rabbitmq.url) as mq:
        await mq.create_queue("orders", policy=policy)
        await mq.put_many("orders", [b"1", b"2"])
        with pytest.raises(tidegate.LimitReached, match="orders"):
            await mq.put("orders", b"3")
        for policy in (tidegate.QueuePolicy(paused=True), tidegate.QueuePolicy(length_max=2)):
            with pytest.raises(tidegate.InvalidValue, match="tidegate:// only"):
                await mq.create_queue("others", policy=policy)


async def test_rabbitmq_refuses_calls_that_only_nodes_have(rabbitmq: VirtualHost) -> None:
    app = tidegate.App(rabbitmq.url)
    async with app.connected():
        with pytest.raises(tidegate.InvalidValue, match=r"app\.engine"):
            _ = app.client
        mq = engine_of(app)
        with pytest.raises(tidegate.InvalidValue, match="transaction is for tidegate:// only"):
            mq.transaction()  # type: ignore[operator]
        assert not hasattr(mq, "publish")
        with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
            _ = mq.nonsense


def test_without_async_it_is_the_same(rabbitmq: VirtualHost) -> None:
    with tidegate.connect(rabbitmq.url) as mq:
        mq.create_queue("orders")
        mq.put("orders", b"x", headers={"a": "b"})
        with mq.subscribe("orders", prefetch=3) as subscription:
            for message in subscription:
                assert (message.payload, message.headers) == (b"x", {"a": "b"})
                message.ack_confirmed()
                break
            subscription.set_prefetch(1)
        with pytest.raises(tidegate.NoMessagesInQueue):
            mq.get("orders")


@pytest.mark.parametrize("has_published", [True, False])
async def test_an_outage_is_told_once_and_tried_again_after_longer_and_longer_pauses(
    rabbitmq: VirtualHost,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    has_published: bool,
) -> None:
    port = int(rabbitmq.url.rpartition(":")[2].partition("/")[0])
    writers: list[asyncio.StreamWriter] = []

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inside, outside = await asyncio.open_connection("127.0.0.1", port)
        writers.extend((writer, outside))
        await asyncio.gather(forward(reader, outside), forward(inside, writer))

    own_port = free_ports()
    door = await asyncio.start_server(accept, "127.0.0.1", own_port)
    async with tidegate.connect(rabbitmq.url.replace(str(port), str(own_port))) as mq:
        await mq.create_queue("orders")
        if has_published:
            await mq.put("orders", b"x")
        # What was known of is forgotten: nobody listens for anything.
        mq.news.invalidate("orders")  # type: ignore[attr-defined]
        door.close()
        for writer in writers:
            writer.close()
        tried: list[float] = []
        loop = asyncio.get_running_loop()

        async def trying(*where: Any, **settings: Any) -> Any:
            if own_port in (*where, settings.get("port")):
                tried.append(loop.time())
            return await open_connection(*where, **settings)

        open_connection = asyncio.open_connection
        monkeypatch.setattr(asyncio, "open_connection", trying)
        connections = 2 if has_published else 1
        await eventually_async(lambda: len(tried) > 4 * connections)
        putting = asyncio.create_task(mq.put("orders", b"x"))
        await asyncio.sleep(0)  # it waits for what is not there
        door = await asyncio.start_server(accept, "127.0.0.1", own_port)
        await putting
    door.close()
    # Of one connection there are four pauses at the least: 0.1, 0.2, 0.4 and 0.8 s, or half of it.
    assert tried[-1] - tried[0] > 0.7
    told = [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert len([one for one in told if one.name.startswith("tidegate")]) == 1
    assert not [one for one in told if "transport" in one.getMessage()]
