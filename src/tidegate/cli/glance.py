"""What `tidegate top` shows: the console's overview of everything, those in need first.

What a light is and what needs attention, the console says (tidegate.console); here it is put into
an order for a terminal, with what was decided of late beside it. None of it needs what only the
console's pages do.
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

# A call waits so long for the connection to come back before it is called lost.
PATIENCE_S = 2.0
# Services whose decisions are asked for, the neediest first, and of each how many.
_EXPLAINED = 5
_DECISIONS = 4
_NEED = tuple(Light)


@dataclass(frozen=True)
class Glance:
    """Everything at a moment."""

    overview: Overview
    # The neediest first.
    rows: Sequence[ServiceRow]
    # What the consumers of a queue may hold together, by its name.
    prefetch: dict[str, int]
    fleet: FleetInfo
    # The newest first.
    decisions: Sequence[Decision]
    # Why this is not of now; "": it is.
    lost: str = ""


def by_need(overview: Overview) -> list[ServiceRow]:
    """What needs attention, then by the light, then by what waits."""
    first = None if overview.attention is None else overview.attention.service
    return sorted(
        overview.services,
        key=lambda row: (row.name != first, _NEED.index(row.light), -row.waiting, row.name),
    )


class Lookout:
    """Looks again and again, as the console does for one user."""

    def __init__(self, client: Client, person: Person) -> None:
        self._client = client
        self._person = person

    @property
    def person(self) -> Person:
        return self._person

    async def look(self) -> Glance:
        """How it all is at the next look, which the console's watch takes each second."""
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
            # A queue that was deleted just now, or the connection: the next look says so.
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
    """A connection, and a store if there is one, to look through."""
    async with AsyncExitStack() as open_:
        client = await open_.enter_async_context(
            connect(url, mode="read-only", reconnect_s=PATIENCE_S)
        )
        store = await open_.enter_async_context(opened(stores)) if stores else None
        async with looking(client, store) as found:
            yield found


@asynccontextmanager
async def looking(client: Client, store: PostgresStore | None) -> AsyncIterator[Lookout]:
    """The same through a connection that somebody has."""
    user, grants = await client.rights()
    person = Person(client, user, grants, store)
    try:
        yield Lookout(client, person)
    finally:
        await person.watch.close()
