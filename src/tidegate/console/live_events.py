"""Server-sent events for one page: the overview after each poll, and one service's points.

A stream ends with its session, or when the broker rejects the user. Other failures (a silent node
or store, a deleted queue) do not end it. They appear in the overview, so that the page reports them
instead of a lost console.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import msgspec

from tidegate.console.access import AnyRequest, session_of
from tidegate.console.explanations import explanations
from tidegate.console.model import DecisionView
from tidegate.console.person import Person
from tidegate.console.problems import Refused
from tidegate.console.services_seen import Key
from tidegate.core.errors import TidegateError

# Seconds between two requests for new decisions.
_DECISIONS_EVERY_S = 2.0


async def live_events(request: AnyRequest, person: Person, key: Key | None) -> AsyncIterator[bytes]:
    watch = person.watch
    streams: set[object] = request.app.state.streams
    stopping: asyncio.Event = request.app.state.stopping
    mark = object()
    streams.add(mark)
    person.streams += 1
    has_session = session_of(request) is not None
    news = None if key is None else NewDecisions(person, key)
    try:
        while not stopping.is_set():
            yield _event("overview", watch.encoded())
            if key is not None and news is not None:
                watch.focus(key)
                point = watch.newest(key)
                if point is not None:
                    yield _event("point", msgspec.json.encode(point))
                # Do not wait for silent nodes: without events the page would report a lost console.
                for one in await news.found() if watch.overview.nodes else ():
                    yield _event("decision", msgspec.json.encode(one))
            await watch.next_look()
            if has_session and session_of(request) is None:
                return
            # The user's rights may have changed. If they cannot be read now, a later poll does.
            if watch.overview.nodes:
                with contextlib.suppress(TidegateError, TimeoutError):
                    await person.refresh()
    except TidegateError:
        # The view of this user has ended. The page reconnects, and gets the reason.
        return
    finally:
        person.streams -= 1
        streams.discard(mark)


class NewDecisions:
    """The decisions about a service that the stream has not sent yet."""

    def __init__(self, person: Person, key: Key) -> None:
        self._person = person
        self._key = key
        # Keys that were sent. None before the first request: the page gets earlier decisions with
        # the service itself.
        self._told: set[str] | None = None
        self._asked_at = 0.0

    async def found(self) -> list[DecisionView]:
        """Return new decisions, oldest first; none within 2 seconds of the last request."""
        if time.monotonic() - self._asked_at < _DECISIONS_EVERY_S:
            return []
        self._asked_at = time.monotonic()
        try:
            known = await explanations(self._person, self._key)
        except (TidegateError, Refused, TimeoutError):
            return []
        keys = {one.key for one in known}
        told, self._told = keys if self._told is None else self._told, keys
        return [one for one in reversed(known) if one.key not in told]


def _event(name: str, data: bytes) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
