"""The decisions about a service: from a node for queues, from the store for HTTP services."""

from __future__ import annotations

import time

import msgspec

from tidegate.console.decision_views import decision_view
from tidegate.console.model import DecisionView, Kind
from tidegate.console.person import Person
from tidegate.console.problems import Refused
from tidegate.console.services_seen import Key
from tidegate.console.sight import in_time
from tidegate.core.hosting import decided_about
from tidegate.core.steering import Decision
from tidegate.core.users import Right

DECISIONS_SHOWN = 100


async def explanations(
    person: Person, key: Key | None, count: int = DECISIONS_SHOWN
) -> list[DecisionView]:
    """Return decisions, newest first; without a key, those about machines."""
    if key is None:
        found = await in_time(person.client.explain(None, count=count))
    elif key[0] is Kind.QUEUE:
        found = await in_time(person.client.explain(key[1], count=count))
    else:
        if not person.may(Right.SEE, key[1]):
            raise no_service(key)
        if person.store is None:
            return []
        documents = await in_time(person.store.decisions(decided_about(key[1]), count))
        found = [msgspec.json.decode(one, type=Decision) for one in documents]
    # Unpack the timeline once: it has hundreds of points.
    points = None if key is None or not found else person.watch.timeline(key).points()
    now = time.time()
    return [decision_view(one, points, now) for one in found]


def no_service(key: Key) -> Refused:
    return Refused(404, "NOT_FOUND", f"there is no {key[0].value} {key[1]!r}, or not for this user")
