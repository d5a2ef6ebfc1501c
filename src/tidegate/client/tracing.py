"""OpenTelemetry spans of puts and handlers.

    put      →  span "publish orders", whose context goes into the message's headers (W3C:
                traceparent, tracestate); it ends with the confirmation
    handler  →  span "process orders", child of the put's span, and linked to it

Without a tracer provider, nothing is imported and a put costs no extra instruction. The application
sets one with `opentelemetry.trace.set_tracer_provider` before it creates its client. So if the
application has not imported OpenTelemetry, there is none. Names and attributes follow
OpenTelemetry's messaging conventions. The extra `tidegate[otel]` installs the API; the application
chooses the SDK.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack

from tidegate.client.message import PutOptions

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

SYSTEM = "tidegate"
Result = TypeVar("Result")


class Traceable(Protocol):
    """A message of either client, as needed for a span."""

    @property
    def queue(self) -> str: ...

    @property
    def message_id(self) -> int: ...

    @property
    def headers(self) -> dict[str, str]: ...


class PutFunction(Protocol):
    """The signature of `put` and `publish`."""

    def __call__(
        self, destination: str, payload: bytes, /, **options: Unpack[PutOptions]
    ) -> asyncio.Future[int]: ...


def context_of(message: Traceable) -> Context:
    """Return the context in which a message was put, for use as a parent of other spans.

    Raise `ModuleNotFoundError` if OpenTelemetry is not installed.
    """
    try:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "OpenTelemetry is not installed: pip install 'tidegate[otel]'"
        ) from None
    return TraceContextTextMapPropagator().extract(message.headers)


def process_span(message: Traceable) -> contextlib.AbstractContextManager[Span | None]:
    """Return a context manager that makes a span for handling a message current.

    Its value is the span, or `None` without tracing.
    """
    tracer = _tracer()
    return contextlib.nullcontext() if tracer is None else _processing(tracer, message)


@contextlib.contextmanager
def publishing(
    destination: str, headers: dict[str, str] | None = None, *, count: int = 1
) -> Iterator[dict[str, str] | None]:
    """Yield the headers for a put, with the context of a new span.

    The span ends with the block. Without tracing, the headers are unchanged.
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


def traced_put(put: PutFunction, *, answers_id: bool = True) -> PutFunction | None:
    """Return `put` with a span around each call; `None` without tracing.

    With `answers_id=False`, the result of a call is no message id, as for `publish`.
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
    """Return the handler with a span around each message; unchanged without tracing."""
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
        return span, headers  # the put raises the error about them
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
        # If the put was not traced, the span belongs to the handler's own trace, if there is one.
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
    """End the span of a put with its result."""
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
