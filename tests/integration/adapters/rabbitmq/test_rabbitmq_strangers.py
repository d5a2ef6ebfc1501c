"""What strangers may send to RabbitMQ: none of it ends a worker's connection or stops a worker."""

from __future__ import annotations

import asyncio
import base64
import struct
from datetime import UTC, datetime
from typing import Any

import aio_pika
import aiormq
import pytest
from aiormq import spec
from aiormq.abc import ChannelFrame
from pamqp.body import ContentBody
from pamqp.header import ContentHeader
from rabbitmq import VirtualHost

import tidegate

PATIENCE_S = 20
A_TIME = datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC)
ITS_BYTES = struct.pack(">Q", 1_000_000_000)
IN_NANOSECONDS = struct.pack(">Q", 1_700_000_000 * 10**9)
NOT_UTF8 = "Ärger".encode("latin-1")

# Properties, and which of their bytes are replaced by what no library of ours would write.
STRANGE: dict[str, tuple[dict[str, Any], bytes, bytes]] = {
    "a text that is not UTF-8": ({"app_id": "xxxxx"}, b"xxxxx", NOT_UTF8),
    "the name of a header that is not UTF-8": ({"headers": {"xxxxx": 1}}, b"xxxxx", NOT_UTF8),
    "a time in nanoseconds": ({"timestamp": A_TIME}, ITS_BYTES, IN_NANOSECONDS),
    "a header with such a time": ({"headers": {"at": A_TIME}}, ITS_BYTES, IN_NANOSECONDS),
    "a forged reason": ({"headers": {"x-tidegate-reason": {"a": 1}}}, b"", b""),
    "a forged death": ({"headers": {"x-death": ["nonsense"]}}, b"", b""),
    "another forged death": ({"headers": {"x-death": [{"reason": ["x"]}]}}, b"", b""),
}


async def publish_raw(
    url: str, queue: str, payload: bytes, properties: dict[str, Any], old: bytes, new: bytes
) -> None:
    async with aiormq.connect(url) as connection:
        channel = await connection.channel(publisher_confirms=False)
        message: list[Any] = [
            spec.Basic.Publish(exchange="", routing_key=queue),
            ContentHeader(body_size=len(payload), properties=spec.Basic.Properties(**properties)),
            ContentBody(payload),
        ]
        written = ChannelFrame.marshall(channel_number=channel.number, frames=message).payload
        assert old in written
        assert len(old) == len(new)
        changed = ChannelFrame(payload=written.replace(old, new), should_close=False)
        await connection.write_queue.put(changed)
        # An answer says that what was written before it was read.
        await channel.queue_declare(queue, passive=True)


class Working:
    """A worker that notes what it is called with, and fails the first time with what is bad."""

    def __init__(self, url: str) -> None:
        self.app = tidegate.App(url)
        self.calls: list[bytes] = []
        self._last = asyncio.Event()

        @self.app.worker("orders")
        async def work(payload: bytes, message: tidegate.Message) -> bytes:
            self.calls.append(payload)
            if payload == b"last":
                self._last.set()
            if payload == b"bad" and message.delivery_count == 1:
                raise tidegate.Retry(after=0.0)
            return b"done"

    async def until_last(self) -> None:
        await self.app.put("orders", b"last")
        async with asyncio.timeout(PATIENCE_S):
            await self._last.wait()


@pytest.mark.parametrize("what", STRANGE)
async def test_a_strange_message_is_worked_off_like_any_other(
    rabbitmq: VirtualHost, what: str
) -> None:
    properties, old, new = STRANGE[what]
    worker = Working(rabbitmq.url)
    async with worker.app.running():
        await publish_raw(rabbitmq.url, "orders", b"bad", properties, old, new)
        await worker.until_last()
    assert sorted(worker.calls) == [b"bad", b"bad", b"last"]


async def test_headers_that_are_too_deep_to_read_are_none(rabbitmq: VirtualHost) -> None:
    nested = b""
    for _ in range(3000):
        inner = b"\x01aF" + struct.pack(">I", len(nested)) + nested
        nested = inner
    table = struct.pack(">I", len(nested)) + nested
    placeholder: dict[str, Any] = {"headers": {"x": "y" * (len(table) - 4 - 7)}}
    written = ContentHeader(properties=spec.Basic.Properties(**placeholder)).marshal()
    worker = Working(rabbitmq.url)
    async with worker.app.running():
        await publish_raw(
            rabbitmq.url, "orders", b"bad", placeholder, written[-len(table) :], table
        )
        await worker.until_last()
    assert sorted(worker.calls) == [b"bad", b"bad", b"last"]


async def test_expired_message_with_forged_headers_is_removed(rabbitmq: VirtualHost) -> None:
    async with tidegate.connect(rabbitmq.url) as mq, await aio_pika.connect(rabbitmq.url) as theirs:
        await mq.create_queue("orders")
        channel = await theirs.channel()
        forged: Any = {
            "x-tidegate-expires-at": 1,
            "x-tidegate-reason": {"a": 1},
            "x-death": ["x", {}],
        }
        await channel.default_exchange.publish(aio_pika.Message(b"old", headers=forged), "orders")
        await mq.put("orders", b"new")
        async with mq.subscribe("orders", prefetch=1) as subscription:
            async with asyncio.timeout(PATIENCE_S):
                assert (await anext(aiter(subscription))).payload == b"new"


@pytest.mark.parametrize("forged", ["no.sense", base64.b64encode(b"\x83a\x01").decode() + ".key"])
async def test_forged_reply_address_gets_no_reply(rabbitmq: VirtualHost, forged: str) -> None:
    worker = Working(rabbitmq.url)
    async with worker.app.running(), await aio_pika.connect(rabbitmq.url) as theirs:
        channel = await theirs.channel()
        question = aio_pika.Message(b"forged", reply_to=f"amq.rabbitmq.reply-to.{forged}")
        await channel.default_exchange.publish(question, "orders")
        reply = await worker.app.request("orders", b"honest", timeout=PATIENCE_S)
        assert reply.payload == b"done"
        await worker.until_last()
    assert worker.calls == [b"forged", b"honest", b"last"]


async def test_headers_that_fit_into_no_frame_are_refused_or_go_without_what_we_add(
    rabbitmq: VirtualHost,
) -> None:
    async with tidegate.connect(rabbitmq.url) as mq, await aio_pika.connect(rabbitmq.url) as theirs:
        await mq.create_queue("orders")
        with pytest.raises(tidegate.TooLarge, match="into the payload"):
            await mq.put("orders", b"x", headers={"a": "b" * 200_000})
        for text in ("t" * 300, "ä" * 200):
            with pytest.raises(tidegate.InvalidValue, match="255 bytes"):
                await mq.put("orders", b"x", content_type=text)
            with pytest.raises(tidegate.InvalidValue, match="255 bytes"):
                await mq.put("orders", b"x", headers={text: "x"})

        channel = await theirs.channel()
        almost = aio_pika.Message(b"large", headers={"a": "b" * 130_000})
        await channel.default_exchange.publish(almost, "orders")
        async with mq.subscribe("orders") as subscription, asyncio.timeout(PATIENCE_S):
            message = await anext(aiter(subscription))
            await message.nack(delay=0.0, error="e" * 5_000)
            again = await anext(aiter(subscription))
            assert (again.delivery_count, len(again.headers["a"])) == (2, 130_000)
            await again.reject(error="e" * 5_000)
        assert (await mq.get("orders.dead")).deaths[0].reason == "rejected"


async def test_refused_put_does_not_fail_other_puts(rabbitmq: VirtualHost) -> None:
    async with tidegate.connect(rabbitmq.url) as mq:
        await mq.create_queue("orders")
        puts = [mq.put("orders", b"%d" % number) for number in range(100)]
        # RabbitMQ wants a list there, and closes the channel.
        puts.insert(50, mq.put("orders", b"refused", headers={"CC": "others"}))
        results = await asyncio.gather(*puts, return_exceptions=True)
        refused = [one for one in results if isinstance(one, BaseException)]
        assert [type(one) for one in refused] == [tidegate.InvalidValue]

        seen: dict[bytes, int] = {}
        async with mq.subscribe("orders") as subscription, asyncio.timeout(PATIENCE_S):
            while len(seen) < 100:
                message = await anext(aiter(subscription))
                # Who was on the way when the channel closed may come twice, flagged.
                assert message.payload not in seen or message.redelivered
                seen[message.payload] = 1
                message.ack()


async def test_a_message_that_failed_keeps_its_id_and_is_copied_to_nobody_again(
    rabbitmq: VirtualHost,
) -> None:
    async with tidegate.connect(rabbitmq.url) as mq:
        await mq.create_queue("orders")
        await mq.create_queue("copies")
        copied = {"headers": {"CC": ["copies"]}}
        await publish_raw(rabbitmq.url, "orders", b"x", copied, b"", b"")
        async with mq.subscribe("orders") as subscription, asyncio.timeout(PATIENCE_S):
            message = await anext(aiter(subscription))
            assert message.properties.message_id is None  # type: ignore[attr-defined]
            await message.nack(delay=0.0)
            assert (await anext(aiter(subscription))).message_id == message.message_id
        copies: Any = await mq.queue("copies")
        assert copies.messages == 1


async def test_a_name_that_no_queue_can_have_is_refused(rabbitmq: VirtualHost) -> None:
    async with tidegate.connect(rabbitmq.url) as mq:
        for name in ("", "\ud800", "new\nline", "nul\0", "n" * 201, "amq.mine", "ü"):
            with pytest.raises(tidegate.InvalidValue):
                await mq.create_queue(name)
            with pytest.raises(tidegate.InvalidValue):
                await mq.put(name, b"x")
