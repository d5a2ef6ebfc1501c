"""Server-sent events for one page: the overview after each look; of a service its points, too.

A stream ends with its session, and when the broker does not let its user in any more. Whatever else
goes wrong, a node or a store that does not answer, a queue that was deleted, stands in the overview
and is no reason to end: the page is to say that, and not that the console was lost.
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

# Between two looks for new decisions about the service of a stream.
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
                # Nodes that are silent would be waited for, and the page for us: it would believe
                # the console lost.
                for one in await news.found() if watch.overview.nodes else ():
                    yield _event("decision", msgspec.json.encode(one))
            await watch.next_look()
            if has_session and session_of(request) is None:
                return
            # Rights may have changed since this stream began; who cannot ask will.
            if watch.overview.nodes:
                with contextlib.suppress(TidegateError, TimeoutError):
                    await person.refresh()
    except TidegateError:
        # Nobody looks for this user any more. The page comes again, and is told why.
        return
    finally:
        person.streams -= 1
        streams.discard(mark)


class NewDecisions:
    """Those about a service that were not told yet."""

    def __init__(self, person: Person, key: Key) -> None:
        self._person = person
        self._key = key
        # By key; None: those that were there before are in the service's own answer.
        self._told: set[str] | None = None
        self._asked_at = 0.0

    async def found(self) -> list[DecisionView]:
        """The oldest first; now and then, else none."""
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
