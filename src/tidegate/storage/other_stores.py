"""The stores beside the catalogue, as one: who is meant, who answers, and our life there.

Each has to be the one that the catalogue knows by its number. One that is away is told what it has
missed when it is back.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from tidegate.core.errors import InvalidValue, TidegateError, Unavailable
from tidegate.core.model import QueuePolicy
from tidegate.core.replication import STORE_SHIFT
from tidegate.storage.other_store import OtherStore
from tidegate.storage.postgres import PostgresStore
from tidegate.storage.postgres_queues import json_of

log = logging.getLogger(__name__)

# How long a node that joins waits for stores that do not answer at once.
_JOIN_S_MAX = 5.0

T = TypeVar("T")


class OtherStores:
    """Stores 1, 2, … of several; the catalogue is 0."""

    def __init__(
        self,
        catalogue: PostgresStore,
        urls: Sequence[str],
        *,
        writers: int = 1,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._catalogue = catalogue
        self.all = [
            OtherStore(url, number, writers=writers, monotonic=monotonic)
            for number, url in enumerate(urls, start=1)
        ]
        self._identity = ""
        # What renews our life in them, beside us: their slowness is not ours.
        self._keeping: dict[int, asyncio.Task[None]] = {}

    async def open(self) -> None:
        """They may come later, but must be those that are meant."""
        self._identity = str((await self._catalogue.ask("select store_identity()"))[0][0])
        outcomes = await asyncio.gather(*map(self._meet, self.all), return_exceptions=True)
        for other, outcome in zip(self.all, outcomes, strict=True):
            if isinstance(outcome, Unavailable):
                log.warning("store %d does not answer: %s", other.number, outcome)
            elif isinstance(outcome, BaseException):
                raise outcome

    async def close(self) -> None:
        await self._stop_keeping()
        await asyncio.gather(*(other.close() for other in self.all), return_exceptions=True)

    # Who is meant

    async def _meet(self, other: OtherStore) -> None:
        """Make sure that it is the one that is meant."""
        async with other.meeting:
            if other.is_known:
                return
            identity = await other.identify(self._identity, 1 + len(self.all))
            query = "select know_store(%s::int, %s::uuid)"
            rows = await self._catalogue.ask(query, other.number, identity)
            if not rows[0][0]:
                raise InvalidValue(
                    f"store {other.number} of the list is not the one that it was: list the stores "
                    "in the same order everywhere, and new ones at the end"
                )
            await self._make_up_for(other)
            other.is_known = True
            other.seems(up=True)

    async def _make_up_for(self, other: OtherStore) -> None:
        """What the catalogue was told while it was away."""
        policies = {
            alias_id: policy
            for queue_id, alias_id, _, _, _, policy, _ in await self.places(None)
            if queue_id >> STORE_SHIFT == other.number
        }
        for alias_id, policy in policies.items():
            await self.copy_policy(other, alias_id, msgspec.convert(policy, QueuePolicy))

    async def places(self, queue_id: int | None) -> list[tuple[Any, ...]]:
        """The replicas that are to be beside the catalogue, as it has them."""
        return await self._catalogue.ask("select * from place_queues(%s::int)", queue_id)

    @staticmethod
    async def copy_policy(other: OtherStore, alias_id: int, policy: QueuePolicy) -> None:
        await other.ask("select copy_policy(%s::int, %s::jsonb)", alias_id, json_of(policy))

    async def make(self, other: OtherStore, queue_id: int) -> bool:
        """Have a replica in its own store, if the catalogue says that there is one to be made."""
        for _, alias_id, number, name, durable, policy, made in await self.places(queue_id):
            if not made:
                await other.ask(
                    "select make_replica(%s::int, %s::int, %s::int, %s, %s, %s::jsonb)",
                    queue_id,
                    alias_id,
                    number,
                    name,
                    durable,
                    json_of(policy),
                )
                await self._catalogue.ask("select place_made(%s::int)", queue_id)
                return True
        return False

    # Which store

    async def holder(self, queue_id: int) -> PostgresStore:
        """The store that a queue is in; Unavailable while it was never reached."""
        number = queue_id >> STORE_SHIFT
        if number == 0:
            return self._catalogue
        if not 0 < number <= len(self.all):
            raise Unavailable(f"there is no store {number}: list it, and start this node again")
        other = self.all[number - 1]
        if not other.is_known:
            await self._meet(other)
        return other

    def of(self, queue_id: int) -> OtherStore | None:
        """The one that a queue is in; None: it is in the catalogue, or nowhere."""
        number = queue_id >> STORE_SHIFT
        return self.all[number - 1] if 0 < number <= len(self.all) else None

    @property
    def up(self) -> list[OtherStore]:
        return [other for other in self.all if other.is_known and other.is_up]

    async def ask(self, question: Callable[[OtherStore], Awaitable[T]]) -> list[tuple[int, T]]:
        """The answers of those that are there, by number."""
        stores = self.up
        answers = await asyncio.gather(*map(question, stores), return_exceptions=True)
        found = []
        for other, answer in zip(stores, answers, strict=True):
            if isinstance(answer, Unavailable):
                other.seems(up=False, why=str(answer))
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found.append((other.number, answer))
        return found

    # Our life there

    async def join(self, member_id: int, name: str, address: str, lease_s: float) -> None:
        """As the member that the catalogue has made us."""
        await self._stop_keeping()
        for other in self.all:
            other.enter(member_id, name, address)
        self.keep_beside(lease_s)
        if self._keeping:
            # Those that are there are joined when we are; the others are not waited for.
            await asyncio.wait(self._keeping.values(), timeout=min(lease_s, _JOIN_S_MAX))

    async def leave(self) -> None:
        await self._stop_keeping()
        await asyncio.gather(*(other.part() for other in self.all), return_exceptions=True)

    def keep_beside(self, lease_s: float) -> None:
        for other in self.all:
            running = self._keeping.get(other.number)
            if running is None or running.done():
                keeping = asyncio.create_task(self._keep(other, lease_s))
                self._keeping[other.number] = keeping

    async def _keep(self, other: OtherStore, lease_s: float) -> None:
        """Live on in another store; whatever fails is tried again with the next renewal."""
        try:
            await self._meet(other)
            was_up = other.is_up
            await other.keep(lease_s)
            if not was_up:
                await self._make_up_for(other)
        except Unavailable as failure:
            other.seems(up=False, why=str(failure))
        except TidegateError as failure:
            log.error("store %d cannot be used: %s", other.number, failure)
        except Exception:
            log.exception("a bug while store %d was told that we live", other.number)

    async def _stop_keeping(self) -> None:
        running, self._keeping = list(self._keeping.values()), {}
        for keeping in running:
            keeping.cancel()
        await asyncio.gather(*running, return_exceptions=True)
