"""Traces across processes: the context travels in the message, and costs nothing untraced."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from places import SUPPORT

from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.storage.memory import MemoryStore

APPLICATION = SUPPORT / "traced_application.py"
Span = dict[str, Any]


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    node = Node(MemoryStore())
    await node.start()
    async with Client(node.address) as mq:
        for queue in ("orders", "copies", "batches", "together"):
            await mq.create_queue(queue)
        await mq.create_topic("news")
        await mq.subscribe_to("news", "readers")
    yield node
    await node.stop()


async def run(*command: str) -> bytes:
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out


async def spans_of(role: str, node: Node) -> dict[str, list[Span]]:
    """What an application in this role has traced, by name."""
    found: dict[str, list[Span]] = {}
    for span in json.loads(await run(str(APPLICATION), role, node.address)):
        found.setdefault(span["name"], []).append(span)
    return found


async def test_a_put_is_a_span_and_its_context_travels_in_the_headers(node: Node) -> None:
    spans = await spans_of("producer", node)

    (checkout,) = spans["checkout"]
    put, refused = spans["publish orders"]
    assert (put["kind"], put["parent"], put["trace"]) == (
        "PRODUCER",
        checkout["span"],
        checkout["trace"],
    )
    async with Client(node.address) as mq:
        message = await mq.get("orders")
        twin = await mq.get("copies")
        plain = await mq.get("batches")
        news = await mq.get("readers")
        joint = await mq.get("together")
    assert put["attributes"] == {
        "messaging.system": "tidegate",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.message.id": str(message.message_id),
    }
    assert message.headers["region"] == "eu"
    assert message.headers["traceparent"].startswith(f"00-{put['trace']}-{put['span']}-")
    (both,) = spans["publish orders, copies"]
    assert twin.headers["traceparent"].startswith(f"00-{both['trace']}-{both['span']}-")
    for destination, each in (("news", news), ("together", joint)):
        (span,) = spans[f"publish {destination}"]
        assert span["parent"] == checkout["span"]
        assert each.headers["traceparent"].startswith(f"00-{span['trace']}-{span['span']}-")
    assert joint.headers["region"] == "eu"
    (batch,) = spans["publish batches"]
    assert batch["attributes"]["messaging.batch.message_count"] == 2
    assert plain.headers == {}, "a batch stays plain bytes"
    assert (refused["status"], refused["attributes"]["error.type"]) == ("ERROR", "InvalidValue")
    (lost,) = spans["publish nowhere"]
    assert (lost["status"], lost["attributes"]["error.type"]) == ("ERROR", "QueueNotExisting")
    assert all(span["ended"] for group in spans.values() for span in group)


async def test_a_blocking_put_belongs_to_the_span_of_its_thread(node: Node) -> None:
    spans = await spans_of("blocking_producer", node)

    (checkout,), (put,) = spans["checkout"], spans["publish orders"]
    assert put["parent"] == checkout["span"]


async def test_a_handler_is_a_span_below_the_put_in_another_process(node: Node) -> None:
    (put,) = (await spans_of("blocking_producer", node))["publish orders"]

    spans = await spans_of("consumer", node)

    failed, done = spans["process orders"]
    for handled, inner in zip((failed, done), spans["bookkeeping"], strict=True):
        assert (handled["kind"], handled["trace"]) == ("CONSUMER", put["trace"])
        assert (handled["parent"], handled["links"]) == (put["span"], [put["span"]])
        assert handled["attributes"]["messaging.operation.type"] == "process"
        assert inner["parent"] == handled["span"], "it is the current one within the handler"
    assert (failed["status"], failed["attributes"]["error.type"]) == ("ERROR", "ValueError")
    assert done["status"] == "UNSET"
    assert (
        failed["attributes"]["messaging.message.id"] == done["attributes"]["messaging.message.id"]
    )


async def test_a_trace_goes_on_through_a_worker_that_puts_in_a_thread(node: Node) -> None:
    (put,) = (await spans_of("blocking_producer", node))["publish orders"]

    spans = await spans_of("worker", node)

    (handled,), (forwarded,) = spans["process orders"], spans["publish copies"]
    assert (handled["parent"], handled["trace"]) == (put["span"], put["trace"])
    assert (forwarded["parent"], forwarded["trace"]) == (handled["span"], put["trace"])
    (finished,) = spans["process copies"]
    assert (finished["parent"], finished["trace"]) == (forwarded["span"], put["trace"])
    assert (handled["status"], finished["status"]) == ("UNSET", "UNSET")


async def test_process_span_links_a_get_to_its_put(node: Node) -> None:
    (put,) = (await spans_of("blocking_producer", node))["publish orders"]

    spans = await spans_of("blocking_reader", node)

    assert spans["process orders"][0]["parent"] == spans["own"][0]["parent"] == put["span"]


async def test_span_of_an_untraced_put_has_no_parent(node: Node) -> None:
    async with Client(node.address) as mq:
        await mq.put("orders", b"x")

    (handled,) = (await spans_of("blocking_reader", node))["process orders"]

    assert (handled["parent"], handled["links"]) == (None, [])


UNTRACED = """
import sys, asyncio, tidegate
{before}
async def main():
    async with tidegate.connect(sys.argv[1]) as mq:
        await mq.put("orders", b"x")
        assert "put" not in vars(mq), "puts go the plain way"
        message = await mq.get("orders")
        assert message.headers == {{}}
        with tidegate.tracing.process_span(message) as span:
            assert span is None
asyncio.run(main())
print(sorted(name for name in sys.modules if name.startswith("opentelemetry")))
"""


async def test_without_opentelemetry_nothing_of_it_is_imported(node: Node) -> None:
    assert await run("-c", UNTRACED.format(before=""), node.address) == b"[]\n"


async def test_without_a_tracer_provider_nothing_is_traced(node: Node) -> None:
    await run("-c", UNTRACED.format(before="import opentelemetry.trace"), node.address)


async def test_without_the_extra_the_error_says_what_to_install(node: Node) -> None:
    missing = "sys.modules['opentelemetry'] = None"
    program = UNTRACED.format(before=missing).replace(
        "asyncio.run(main())",
        "asyncio.run(main())\n"
        "try: tidegate.tracing.context_of(None)\n"
        "except ModuleNotFoundError as error: print(error)",
    )
    assert re.match(rb".*pip install 'tidegate\[otel\]'", await run("-c", program, node.address))
