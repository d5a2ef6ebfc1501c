"""The shards of a store: identification, calls to all of them, and membership.

The catalogue knows the identity of each shard by its number; no other store is accepted. A shard
that did not answer gets the missed changes when it is back.
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

# How long a joining node waits for shards that do not answer at once.
_JOIN_S_MAX = 5.0

T = TypeVar("T")


class OtherStores:
    """Stores 1, 2, ... of a sharded store; the catalogue is store 0."""

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
        # Renewals of the leases in the shards. They run beside the catalogue's, so that a slow
        # shard does not delay that one.
        self._keeping: dict[int, asyncio.Task[None]] = {}

    async def open(self) -> None:
        """Identify all shards that answer; a wrong one raises `InvalidValue`."""
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

    # Identification

    async def _meet(self, other: OtherStore) -> None:
        """Identify a shard, if that was not done, and send it the missed changes."""
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
        """Copy the policies to a shard, which may have changed while it did not answer."""
        policies = {
            alias_id: policy
            for queue_id, alias_id, _, _, _, policy, _ in await self.places(None)
            if queue_id >> STORE_SHIFT == other.number
        }
        for alias_id, policy in policies.items():
            await self.copy_policy(other, alias_id, msgspec.convert(policy, QueuePolicy))

    async def places(self, queue_id: int | None) -> list[tuple[Any, ...]]:
        """Return the replicas that are placed in shards, as rows of the catalogue."""
        return await self._catalogue.ask("select * from place_queues(%s::int)", queue_id)

    @staticmethod
    async def copy_policy(other: OtherStore, alias_id: int, policy: QueuePolicy) -> None:
        await other.ask("select copy_policy(%s::int, %s::jsonb)", alias_id, json_of(policy))

    async def make(self, other: OtherStore, queue_id: int) -> bool:
        """Create a replica in its shard if the catalogue says that this is missing.

        Returns whether it was created.
        """
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

    # Store of a queue

    async def holder(self, queue_id: int) -> PostgresStore:
        """Return the store that has a queue.

        Raises `Unavailable` while its shard has never answered.
        """
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
        """Return the shard that has a queue; None for the catalogue and unknown numbers."""
        number = queue_id >> STORE_SHIFT
        return self.all[number - 1] if 0 < number <= len(self.all) else None

    @property
    def up(self) -> list[OtherStore]:
        return [other for other in self.all if other.is_known and other.is_up]

    async def ask(self, question: Callable[[OtherStore], Awaitable[T]]) -> list[tuple[int, T]]:
        """Ask all shards that answer; return (number, answer) pairs."""
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

    # Membership

    async def join(self, member_id: int, name: str, address: str, lease_s: float) -> None:
        """Join all shards under the member id of the catalogue."""
        await self._stop_keeping()
        for other in self.all:
            other.enter(member_id, name, address)
        self.keep_beside(lease_s)
        if self._keeping:
            # Shards that answer are joined together with the catalogue. The others are not waited
            # for.
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
        """Renew the lease in one shard; after an error the next renewal tries again."""
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
