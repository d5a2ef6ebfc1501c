"""An application that is traced: run as `traced_application.py ROLE URL`, it prints its spans.

Each role is a process of its own: between them the context travels in the message alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import tidegate

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("application")


async def producer(url: str) -> None:
    async with tidegate.connect(url) as mq:
        with tracer.start_as_current_span("checkout"):
            await mq.put("orders", b"1", headers={"region": "eu"})
            await mq.put_many("batches", [b"1", b"2"])
            await mq.put_to(["orders", "copies"], b"2")
            await mq.publish("news", b"3")
            async with mq.transaction() as tx:
                tx.put("together", b"4", headers={"region": "eu"})
        with contextlib.suppress(tidegate.QueueNotExisting):
            await mq.put("nowhere", b"")
        with contextlib.suppress(tidegate.InvalidValue):
            mq.put("orders", b"", priority=11)


def blocking_producer(url: str) -> None:
    with tidegate.connect(url) as mq, tracer.start_as_current_span("checkout"):
        mq.put("orders", b"1")


async def consumer(url: str) -> None:
    seen = asyncio.Event()

    async def handle(message: tidegate.Message) -> None:
        with tracer.start_as_current_span("bookkeeping"):
            pass
        if message.delivery_count > 1:
            seen.set()
            return
        raise ValueError("not today")

    async with tidegate.connect(url) as mq:
        await mq.set_policy("orders", retry_first_s=0.01)
        work = asyncio.create_task(mq.consume("orders", handle))
        await asyncio.wait_for(seen.wait(), 60)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


async def worker(url: str) -> None:
    app = tidegate.App(url)

    @app.worker("orders")
    def forward(payload: bytes) -> None:
        # In a thread, and in the span all the same.
        app.wait(app.put("copies", payload))

    @app.worker("copies")
    async def finish(payload: bytes) -> None:
        app.stop()

    await app.serve()


def blocking_reader(url: str) -> None:
    with tidegate.connect(url) as mq:
        message = mq.get("orders", wait=10)
        with tidegate.tracing.process_span(message):
            pass
        context = tidegate.tracing.context_of(message)
        tracer.start_span("own", context=context).end()


def shown(span: ReadableSpan) -> dict[str, object]:
    context = span.get_span_context()
    assert context is not None
    return {
        "name": span.name,
        "kind": span.kind.name,
        "trace": f"{context.trace_id:032x}",
        "span": f"{context.span_id:016x}",
        "parent": None if span.parent is None else f"{span.parent.span_id:016x}",
        "links": [f"{link.context.span_id:016x}" for link in span.links],
        "attributes": dict(span.attributes or {}),
        "status": span.status.status_code.name,
        "ended": span.end_time is not None,
    }


if __name__ == "__main__":
    role, url = globals()[sys.argv[1]], sys.argv[2]
    if asyncio.iscoroutinefunction(role):
        asyncio.run(role(url))
    else:
        role(url)
    print(json.dumps([shown(span) for span in exporter.get_finished_spans()]))
