"""The data of `tidegate top`: the console's overview, sorted by urgency, with recent decisions.

`tidegate.console` decides on the status lights and on what needs attention. This module needs only
the parts of the console that work without its web packages.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from tidegate.cli.store_wiring import opened
from tidegate.client.connect import connect
from tidegate.console.model import Kind, Light, Overview, ServiceRow
from tidegate.console.person import Person
from tidegate.core.errors import TidegateError
from tidegate.core.fleet import FleetInfo
from tidegate.core.hosting import decided_about
from tidegate.core.steering import Decision

if TYPE_CHECKING:
    from tidegate.client.client import Client
    from tidegate.storage.postgres import PostgresStore

# How long a call waits for a reconnect before the connection counts as lost.
PATIENCE_S = 2.0
# The number of services whose decisions are read, the most urgent first, and of decisions for each.
_EXPLAINED = 5
_DECISIONS = 4
_NEED = tuple(Light)


@dataclass(frozen=True)
class Glance:
    """The overview of all services at one moment."""

    overview: Overview
    # The most urgent first.
    rows: Sequence[ServiceRow]
    # The sum of the prefetch of a queue's consumers, by queue.
    prefetch: dict[str, int]
    fleet: FleetInfo
    # The newest first.
    decisions: Sequence[Decision]
    # Why the data is out of date; empty if it is current.
    lost: str = ""


def by_need(overview: Overview) -> list[ServiceRow]:
    """Return the services by attention, then by status light, then by waiting messages."""
    first = None if overview.attention is None else overview.attention.service
    return sorted(
        overview.services,
        key=lambda row: (row.name != first, _NEED.index(row.light), -row.waiting, row.name),
    )


class Lookout:
    """Polls the overview repeatedly, as the console does for one user."""

    def __init__(self, client: Client, person: Person) -> None:
        self._client = client
        self._person = person

    @property
    def person(self) -> Person:
        return self._person

    async def look(self) -> Glance:
        """Wait for the next snapshot of the console's watch, taken each second, and return it."""
        watch = self._person.watch
        await watch.next_look()
        sight, overview = watch.sight, watch.overview
        rows = by_need(overview)
        lost = ""
        if sight.is_stale:
            outage = self._client.outage
            lost = str(outage) if outage is not None else "; ".join(overview.complaints)
        return Glance(
            overview=overview,
            rows=rows,
            prefetch={
                name: held
                for name, parts in sight.parts.items()
                if (held := sum(part.prefetch for part in parts))
            },
            fleet=sight.fleet,
            decisions=[] if lost else await self._decisions(rows),
            lost=lost or ("no node answers" if sight.is_stale else ""),
        )

    async def _decisions(self, rows: Sequence[ServiceRow]) -> list[Decision]:
        found: list[Decision] = []
        steered = [row for row in rows if row.steering]
        try:
            found += await self._client.explain(None, count=_DECISIONS)
            for row in steered[:_EXPLAINED]:
                found += await self._about(row)
        except TidegateError:
            # A queue was just deleted, or the connection failed. The next poll reports that.
            return found
        return sorted(found, key=lambda one: -one.at)

    async def _about(self, row: ServiceRow) -> list[Decision]:
        if row.kind is Kind.QUEUE:
            return await self._client.explain(row.name, count=_DECISIONS)
        store = self._person.store
        if store is None:
            return []
        documents = await store.decisions(decided_about(row.name), _DECISIONS)
        return [msgspec.json.decode(one, type=Decision) for one in documents]


@asynccontextmanager
async def lookout(url: str, stores: Sequence[str]) -> AsyncIterator[Lookout]:
    """Connect to a node, and to a store if there is one, and provide a poller."""
    async with AsyncExitStack() as open_:
        client = await open_.enter_async_context(
            connect(url, mode="read-only", reconnect_s=PATIENCE_S)
        )
        store = await open_.enter_async_context(opened(stores)) if stores else None
        async with looking(client, store) as found:
            yield found


@asynccontextmanager
async def looking(client: Client, store: PostgresStore | None) -> AsyncIterator[Lookout]:
    """Provide a poller on an existing connection."""
    user, grants = await client.rights()
    person = Person(client, user, grants, store)
    try:
        yield Lookout(client, person)
    finally:
        await person.watch.close()
