"""Server-sent events for one page: the overview after each poll, and one service's points.

A stream ends with its session, or when the broker rejects the user. Other failures (a silent node
or store, a deleted queue) do not end it. They appear in the overview, so that the page reports them
instead of a lost console.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Sequence

import msgspec

from tidegate.console.schemas import DecisionView, Kind, Point
from tidegate.console.security import RequestRefused
from tidegate.console.sessions import AnyRequest, session_of
from tidegate.console.snapshot import Key, with_timeout
from tidegate.console.watch import UserConnection
from tidegate.core.decisions import OVERRIDE_LAW, Decision, format_action, format_rule
from tidegate.core.errors import TidegateError
from tidegate.core.model import Right
from tidegate.core.services import decision_subject
from tidegate.core.text import escape_control_characters, format_duration

# Seconds between two requests for new decisions.
_DECISIONS_EVERY_S = 2.0


async def live_events(
    request: AnyRequest, person: UserConnection, key: Key | None
) -> AsyncIterator[bytes]:
    watch = person.watch
    streams: set[object] = request.app.state.streams
    stopping: asyncio.Event = request.app.state.stopping
    mark = object()
    streams.add(mark)
    person.streams += 1
    has_session = session_of(request) is not None
    news = None if key is None else UnsentDecisions(person, key)
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
            await watch.next_snapshot()
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


class UnsentDecisions:
    """The decisions about a service that the stream has not sent yet."""

    def __init__(self, person: UserConnection, key: Key) -> None:
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
        except (TidegateError, RequestRefused, TimeoutError):
            return []
        keys = {one.key for one in known}
        told, self._told = keys if self._told is None else self._told, keys
        return [one for one in reversed(known) if one.key not in told]


def _event(name: str, data: bytes) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


# The decisions about a service: from a node for queues, from the store for HTTP services.


DECISIONS_SHOWN = 100


async def explanations(
    person: UserConnection, key: Key | None, count: int = DECISIONS_SHOWN
) -> list[DecisionView]:
    """Return decisions, newest first; without a key, those about machines."""
    if key is None:
        found = await with_timeout(person.client.explain(None, count=count))
    elif key[0] is Kind.QUEUE:
        found = await with_timeout(person.client.explain(key[1], count=count))
    else:
        if not person.may(Right.SEE, key[1]):
            raise no_service(key)
        if person.store is None:
            return []
        documents = await with_timeout(person.store.decisions(decision_subject(key[1]), count))
        found = [msgspec.json.decode(one, type=Decision) for one in documents]
    # Unpack the timeline once: it has hundreds of points.
    points = None if key is None or not found else person.watch.timeline(key).points()
    now = time.time()
    return [decision_view(one, points, now) for one in found]


def no_service(key: Key) -> RequestRefused:
    return RequestRefused(
        404, "NOT_FOUND", f"there is no {key[0].value} {key[1]!r}, or not for this user"
    )


# Decisions for people: measurements, rule, actions, and the effect that followed.


_BEFORE_S = 10.0
# The effect is measured from `_AFTER_S` to `_UNTIL_S` seconds after the decision.
_AFTER_S = 15.0
_UNTIL_S = 30.0
_HEADLINE_MAX = 160


def decision_view(decision: Decision, points: Sequence[Point] | None, now: float) -> DecisionView:
    actions = [escape_control_characters(format_action(one)) for one in decision.actions]
    # For an override, the rule contains only the user.
    said = decision.reason.rstrip(".") if decision.law == OVERRIDE_LAW else ""
    headline = ", ".join(actions) or said or format_rule(decision.rule)
    return DecisionView(
        key=key_of(decision),
        at=decision.at,
        loop=decision.loop,
        law=decision.law,
        rule=escape_control_characters(format_rule(decision.rule)),
        headline=escape_control_characters(headline)[:_HEADLINE_MAX],
        measured=list(decision.inputs.items()),
        outputs=list(decision.outputs.items()),
        actions=actions,
        reason=escape_control_characters(decision.reason),
        otherwise=escape_control_characters(decision.otherwise),
        carried_out=decision.carried_out,
        outcome=escape_control_characters(decision.outcome),
        effect=None if points is None else effect_of(decision.at, points, now),
        by=decision.by if decision.law == OVERRIDE_LAW else "",
    )


def key_of(decision: Decision) -> str:
    """Return a key that is the same for the same decision, wherever it was read."""
    told = f"{decision.service}\n{decision.at!r}\n{decision.law}\n{decision.rule}"
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def effect_of(at: float, points: Sequence[Point], now: float) -> str | None:
    """Compare the service before a decision and 15 to 30 seconds after it.

    Returns None if it is too early, and "" if there is no data for one of the two times.
    """
    before = _between(points, at - _BEFORE_S, at)
    if not before:
        return ""
    if now < at + _UNTIL_S:
        return None
    after = _between(points, at + _AFTER_S, at + _UNTIL_S)
    if not after:
        return ""
    pairs = [
        ("waiting", f"{_mean_waiting(before):,.0f}", f"{_mean_waiting(after):,.0f}"),
        ("done", f"{_mean_out(before):,.1f}/s", f"{_mean_out(after):,.1f}/s"),
        ("p95 of waits", _p95(before), _p95(after)),
        ("replicas", _replicas(before), _replicas(after)),
    ]
    told = [
        f"{name} {old} → {new}" if old != new else f"{name} {new}, as before"
        for name, old, new in pairs
        if old and new
    ]
    return "; ".join(told)


def _between(points: Sequence[Point], since: float, until: float) -> list[Point]:
    # Test each point: after a change of the system clock they are out of order.
    return [one for one in points if since <= one.at < until]


def _mean_waiting(points: Sequence[Point]) -> float:
    return sum(one.waiting for one in points) / len(points)


def _mean_out(points: Sequence[Point]) -> float:
    return sum(one.out_per_s for one in points) / len(points)


def _p95(points: Sequence[Point]) -> str:
    """Return the worst second's p95, since a mean of percentiles has no meaning."""
    known = [one.wait_p95_s for one in points if one.wait_p95_s is not None]
    return format_duration(float(f"{max(known):.3g}")) if known else ""


def _replicas(points: Sequence[Point]) -> str:
    return str(len(points[-1].replicas)) if points[-1].replicas else ""
