"""A shard: a store beside the catalogue that has replicas, with their owners and epochs.

A node is a member of a shard under its member id of the catalogue, and has a separate lease there.
If the shard does not answer, only its own queues are affected.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from tidegate.core.errors import InvalidValue
from tidegate.storage.postgres import PostgresStore

log = logging.getLogger(__name__)


class OtherStore(PostgresStore):
    """Store 1, 2, ... of a sharded store."""

    def __init__(
        self,
        url: str,
        number: int,
        *,
        writers: int = 1,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(url, writers=writers)
        self.number = number
        self._monotonic = monotonic
        # Whether it was identified as the shard that the catalogue knows. It is not used before.
        self.is_known = False
        # Whether it answered last time.
        self.is_up = False
        # How often `is_up` has changed.
        self.turns = 0
        # Its topology version, as last noted in the catalogue.
        self.noted_version = -1
        self._alive_until = float("-inf")
        self._times_joined = 0
        # Member id, name and address of this node, from the first attempt to join until it leaves.
        self._member: tuple[int, str, str] | None = None
        self._is_joined = False
        self.meeting = asyncio.Lock()

    # Identity

    async def identify(self, catalogue: str, listed: int) -> str:
        """Return the shard's identity.

        Raises `InvalidValue` if it is not the shard with this number.
        """
        await self._prepare()
        query = "select store_trouble(%s::int, %s::uuid, %s::int)"
        trouble = (await self._call(query, self.number, catalogue, listed))[0][0]
        if trouble is not None:
            raise InvalidValue(f"store {self.number} of the list cannot be used: {trouble}")
        return str((await self._call("select store_identity()"))[0][0])

    # Membership

    def standing(self, queue_id: int) -> int | None:
        """Return how often this node has joined; None if its lease here has expired."""
        return self._times_joined if self._monotonic() < self._alive_until else None

    def enter(self, member_id: int, name: str, address: str) -> None:
        """Join with the next renewal."""
        self._member = (member_id, name, address)
        self._is_joined = False

    async def keep(self, lease_s: float) -> None:
        """Renew the lease here, or join again."""
        if self._member is None:
            return
        member_id, name, address = self._member
        asked_at = self._monotonic()
        if not (self._is_joined and await super().renew(member_id, lease_s)):
            await self._call(
                "select join_store(%s::int, %s, %s, %s)", member_id, name, address, lease_s
            )
            self._times_joined += 1
            self._is_joined = True
        self._alive_until = asked_at + lease_s
        self.seems(up=True)

    def seems(self, *, up: bool, why: str = "") -> None:
        if up == self.is_up:
            return
        self.is_up = up
        self.turns += 1
        if up:
            log.info("store %d answers", self.number)
        else:
            log.warning("store %d does not answer: %s", self.number, why)

    async def part(self) -> None:
        """Leave; if the shard does not answer, the lease expires by itself."""
        member, self._member = self._member, None
        self._alive_until = float("-inf")
        if member is not None and self._is_joined and self.is_up:
            await super().leave(member[0])
