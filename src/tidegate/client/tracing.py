"""Traces: OpenTelemetry spans of puts and handlers, when the application is traced.

    put      →  span "publish orders", its context in the message's headers (W3C: `traceparent`,
                `tracestate`); it ends with the confirmation
    handler  →  span "process orders", child of the one that put the message, and linked to it

Nothing is imported, and a put takes not one instruction more, unless the application has set a
tracer provider (`opentelemetry.trace.set_tracer_provider`) before it makes its client: who has not
imported OpenTelemetry cannot have set one. Names and attributes are those of OpenTelemetry's
messaging conventions. The extra `tidegate[otel]` brings the API; which SDK is for the application
to choose.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack

from tidegate.client.options import PutOptions

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

SYSTEM = "tidegate"
Result = TypeVar("Result")


class Traceable(Protocol):
    """What a span is about: a message, of either client."""

    @property
    def queue(self) -> str: ...

    @property
    def message_id(self) -> int: ...

    @property
    def headers(self) -> dict[str, str]: ...


class Putting(Protocol):
    """How messages are put."""

    def __call__(
        self, destination: str, payload: bytes, /, **options: Unpack[PutOptions]
    ) -> asyncio.Future[int]: ...


def context_of(message: Traceable) -> Context:
    """The context in which a message was put, as a parent for spans of your own."""
    try:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "OpenTelemetry is not installed: pip install 'tidegate[otel]'"
        ) from None
    return TraceContextTextMapPropagator().extract(message.headers)


def process_span(message: Traceable) -> contextlib.AbstractContextManager[Span | None]:
    """Around what handles a message: its span, current within; None when nobody traces."""
    tracer = _tracer()
    return contextlib.nullcontext() if tracer is None else _processing(tracer, message)


@contextlib.contextmanager
def publishing(
    destination: str, headers: dict[str, str] | None = None, *, count: int = 1
) -> Iterator[dict[str, str] | None]:
    """Around what puts messages: gives the headers to put them with, the context among them.

    Its span is the parent of nothing but what handles the messages.
    """
    tracer = _tracer()
    if tracer is None:
        yield headers
        return
    span, carrier = _publishing(tracer, destination, headers)
    if count > 1:
        span.set_attribute("messaging.batch.message_count", count)
    try:
        yield carrier
    except BaseException as error:
        _blame(span, error)
        raise
    finally:
        span.end()


def traced_put(put: Putting, *, answers_id: bool = True) -> Putting | None:
    """The same put with a span around each; None when nobody traces.

    What is published to a topic is put in the same way, and answered with another number.
    """
    tracer = _tracer()
    if tracer is None:
        return None

    @wraps(put)
    def put_with_span(
        queue: str, payload: bytes, **options: Unpack[PutOptions]
    ) -> asyncio.Future[int]:
        span, options["headers"] = _publishing(tracer, queue, options.get("headers"))
        try:
            future = put(queue, payload, **options)
        except BaseException as error:
            _blame(span, error)
            span.end()
            raise
        future.add_done_callback(lambda done: _ended_with(span, done, answers_id))
        return future

    return put_with_span


def traced_handler(
    handler: Callable[[Any], Awaitable[Result]],
) -> Callable[[Any], Awaitable[Result]]:
    """The same handler with a span around each message; itself when nobody traces."""
    tracer = _tracer()
    if tracer is None:
        return handler

    @wraps(handler)
    async def handler_with_span(message: Traceable) -> Result:
        with _processing(tracer, message):
            return await handler(message)

    return handler_with_span


def _tracer() -> Tracer | None:
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    tracer: Tracer = provider.get_tracer("tidegate")
    return tracer


def _publishing(tracer: Tracer, queue: str, headers: Any) -> tuple[Span, Any]:
    from opentelemetry.trace import SpanKind, set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    span = tracer.start_span(
        f"publish {queue}",
        kind=SpanKind.PRODUCER,
        attributes=_attributes(queue, "publish", "send"),
    )
    if headers is not None and not isinstance(headers, dict):
        return span, headers  # the put will say what is wrong with them
    carrier = dict(headers or {})
    TraceContextTextMapPropagator().inject(carrier, set_span_in_context(span))
    return span, carrier


@contextlib.contextmanager
def _processing(tracer: Tracer, message: Traceable) -> Iterator[Span]:
    from opentelemetry.trace import Link, SpanKind, get_current_span

    put_in = context_of(message)
    put_by = get_current_span(put_in).get_span_context()
    span_of_put = [Link(put_by)] if put_by.is_valid else []
    attributes = _attributes(message.queue, "process", "process")
    attributes["messaging.message.id"] = str(message.message_id)
    with tracer.start_as_current_span(
        f"process {message.queue}",
        # What was put by nobody traced belongs to whoever handles it, if that is traced.
        context=put_in if span_of_put else None,
        kind=SpanKind.CONSUMER,
        attributes=attributes,
        links=span_of_put,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield span
        except Exception as error:
            _blame(span, error)
            raise


def _attributes(queue: str, name: str, kind: str) -> dict[str, str]:
    return {
        "messaging.system": SYSTEM,
        "messaging.destination.name": queue,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }


def _ended_with(span: Span, done: asyncio.Future[int], answers_id: bool) -> None:
    """The put is confirmed, or it failed."""
    if done.cancelled():
        _blame(span, asyncio.CancelledError("nobody waited for the confirmation"))
    elif (error := done.exception()) is not None:
        _blame(span, error)
    elif answers_id:
        span.set_attribute("messaging.message.id", str(done.result()))
    span.end()


def _blame(span: Span, error: BaseException) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.record_exception(error)
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, str(error)))
