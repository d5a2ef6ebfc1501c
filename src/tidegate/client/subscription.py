"""A subscription: messages pushed by a node, wherever the queue's messages are.

It stands on a leg: a consumer at one queue, on one connection. When the connection breaks or the
queue changes its owner, it gets another one. Of a logical queue it stands at the replica that it
was elected onto; told to go over to another, it subscribes there first and leaves this one: see
footing.py. What is addressed to the client is fetched at its home: see at_home.py. What has arrived
lies in its inbox. Whoever iterates notices nothing of all this.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from tidegate.client import tracing
from tidegate.client.at_home import AtHome
from tidegate.client.checks import check_count
from tidegate.client.footing import Footing
from tidegate.client.inbox import Inbox
from tidegate.client.leg import Leg
from tidegate.client.membership import Membership
from tidegate.client.message import Message, MessageBatch
from tidegate.client.verdict import error_text
from tidegate.core.errors import (
    LeaseLost,
    NotOwner,
    QueueNotExisting,
    RetryLater,
    TidegateError,
    UniqueConstraint,
    from_code,
)
from tidegate.core.model import Order
from tidegate.core.replication import Role
from tidegate.wire.packets.subscriptions import ConsumerEnded

if TYPE_CHECKING:
    from tidegate.client.client import Client

log = logging.getLogger(__name__)

_BACKOFF_FIRST_S = 0.02
_BACKOFF_MAX_S = 1.0
# How long we hold still, when a logical queue has no replica for us, before we ask again.
_NOWHERE_S = 1.0


class Subscription:
    """Use with `async with`, then iterate."""

    def __init__(
        self,
        client: Client,
        queue: str | int,
        consumer: int,
        prefetch: int,
        order: Order,
        automatic: bool,
        *,
        wanted: int | None = None,
        is_bound: bool = False,
    ) -> None:
        self._client = client
        self._named = queue
        self.queue = str(queue)
        # By this number it joins a logical queue, and begins to consume.
        self._member = consumer
        self.consumer = consumer
        self.prefetch = prefetch
        self.automatic = automatic
        # How often it has lost what it stood on.
        self.interruptions = 0
        self._wanted = wanted
        self._is_bound = is_bound
        self._queue_id = 0
        self._membership: Membership | None = None
        self._inbox = Inbox()
        self._footing = Footing(
            client,
            self._inbox,
            self.queue,
            order,
            automatic,
            on_ended=self._ended,
            on_prefetch=self._prefetch_changed,
        )
        # What is addressed to us, while our leg is elsewhere.
        self._at_home = AtHome(self, self._footing)
        self._drained = False
        self._subscribing = False
        self._placed = asyncio.Event()
        self._renewal: asyncio.Task[None] | None = None

    # Coming and going

    async def __aenter__(self) -> Subscription:
        self._queue_id = await self._client.queue_id(self._named)
        self._inbox.is_open = True
        self._client.add_subscription(self)
        try:
            if self._client.is_elastic(self._queue_id):
                await self._join()
            if self._target():
                await self._subscribe()
            else:
                # Where there is nobody yet to subscribe to, iterating waits.
                self._subscribe_behind()
        except BaseException:
            self._inbox.is_open = False
            self._client.drop_subscription(self)
            if self._membership is not None:
                await self._membership.leave()
            raise
        self._renewal = self._client.spawn(self._renew())
        self._at_home.look()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._inbox.close()
        self._placed.set()
        self._client.drop_subscription(self)
        if self._renewal is not None:
            self._renewal.cancel()
        for leg in self._legs():
            await leg.unsubscribe()
            self.lose(leg)
        if self._membership is not None:
            await self._membership.leave()

    async def _join(self) -> None:
        """Come to a logical queue, and hear where we are to be."""
        joined = asyncio.get_running_loop().create_future()

        def refused(error: TidegateError) -> None:
            if isinstance(error, NotOwner):
                # A plain queue, by now: it is consumed from as such.
                self._client.drop_membership(self._membership)
                self._membership = None
                news()
            elif not joined.done():
                joined.set_exception(error)
            else:
                self.fail(error)

        def news() -> None:
            if not joined.done():
                joined.set_result(None)
            self._place_changed()

        self._membership = Membership(
            self._client,
            self._queue_id,
            Role.CONSUMER,
            self._member,
            wanted=self._wanted,
            is_bound=self._is_bound,
            on_news=news,
            on_refused=refused,
        )
        self._membership.start()
        await joined

    def _legs(self) -> list[Leg]:
        """All that hold something, or may."""
        legs = (self._footing.leg, self._at_home.leg, *self._footing.leaving)
        return [leg for leg in legs if leg is not None]

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run something for as long as the client lives."""
        self._client.spawn(work)

    def wants_more(self) -> bool:
        return self._inbox.is_open and not self._drained

    def _target(self) -> int:
        """The queue to consume from; 0: none yet."""
        return self._queue_id if self._membership is None else self._membership.replica_id

    def home_id(self) -> int:
        """The queue to have a second leg at, for what is addressed to us; 0: none."""
        topology = None if self._membership is None else self._membership.topology
        if topology is None or not self.wants_more():
            return 0
        number = topology.home_of(self._client.client_id)
        place = None if number is None else topology.replica(number)
        return 0 if place is None or place.queue_id == self._target() else place.queue_id

    def join_again(self) -> None:
        """What we know of the logical queue may hold no longer."""
        if self._membership is not None:
            self._membership.join_again()

    @property
    def replica(self) -> int | None:
        """The number of the replica that it is at; None: the queue is a plain one, or has none."""
        place = None if self._membership is None else self._membership.place
        return None if place is None else place.number

    @property
    def address(self) -> str | None:
        """Of the node that serves that replica."""
        place = None if self._membership is None else self._membership.place
        return None if place is None else place.address

    async def _subscribe(self) -> None:
        """Stand on a leg at where we are to be, as often as it takes; one at a time."""
        backoff_s = _BACKOFF_FIRST_S
        self._subscribing = True
        leg: Leg | None = None
        try:
            while self.wants_more():
                self._placed.clear()
                target = self._target()
                if not target:
                    await self._wait_for_place()
                    continue
                leg = await self._new_leg(target)
                try:
                    await leg.subscribe()
                except RetryLater as refusal:
                    self.lose(leg)
                    await self._refused(refusal)
                    await asyncio.sleep(backoff_s)
                    backoff_s = min(backoff_s * 2, _BACKOFF_MAX_S)
                    continue
                except QueueNotExisting as refusal:
                    self.lose(leg)
                    if self._membership is None:
                        raise
                    await self._refused(refusal)
                    await asyncio.sleep(backoff_s)
                    backoff_s = min(backoff_s * 2, _BACKOFF_MAX_S)
                    continue
                except UniqueConstraint:
                    # The end that we heard was an older one's: what stands there is ours.
                    self.lose(leg)
                    await leg.unsubscribe()
                    continue
                if leg.lost:
                    continue
                if not self.wants_more():
                    leg.abandon()
                    return
                self._footing.stand_on(leg)
                if self._target() == target:
                    return
        except BaseException:
            if leg is not None and leg is not self._footing.leg:
                leg.abandon()
            raise
        finally:
            self._subscribing = False

    async def _wait_for_place(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._placed.wait(), _NOWHERE_S)
        if not self._target() and self._membership is not None:
            self._membership.join_again()

    async def _refused(self, refusal: TidegateError) -> None:
        """Where we want to be, nobody serves us now."""
        if self._membership is not None:
            self._membership.join_again(elsewhere=not self._is_bound)
        elif isinstance(refusal, NotOwner):
            # It may have become a logical queue, from which nobody consumes.
            info = await self._client.queue(self._named)
            if info.elastic:
                self._queue_id = info.queue_id
                await self._join()

    async def _new_leg(self, queue_id: int) -> Leg:
        link = await self._client.connected()
        if self._membership is not None:
            # By the number that the owner of the alias knows, unless a former leg still has it.
            taken = self._client.has_leg(self._member)
            self.consumer = self._client.next_consumer() if taken else self._member
        elif self._footing.leg is not None:
            self.lose(self._footing.leg)
        return self._footing.new_leg(queue_id, self.consumer, link, self.prefetch)

    async def new_leg_at_home(self, queue_id: int, prefetch: int) -> Leg:
        """One that gets only what is addressed to us."""
        link = await self._client.connected()
        number = self._client.next_consumer()
        return self._footing.new_leg(queue_id, number, link, prefetch, mine_only=True)

    def lose(self, leg: Leg) -> None:
        """What it held has gone back."""
        self.interruptions += leg is self._footing.leg
        self._footing.lose(leg)
        self._at_home.lost(leg)

    def resubscribe(self, queue_id: int | None = None) -> None:
        """The client has a new connection, or the queue was made anew."""
        if not self._inbox.is_open:
            return
        self._queue_id = queue_id or self._queue_id
        for leg in self._legs():
            self.lose(leg)
        self.join_again()
        self._subscribe_behind()
        self._at_home.look()

    def _subscribe_behind(self) -> None:
        """Subscribe while others iterate; whoever is at it meets what is new by itself."""
        self._placed.set()
        if self._subscribing or self._drained or not self._inbox.is_open:
            return
        self._subscribing = True

        async def again() -> None:
            try:
                await self._subscribe()
            except TidegateError as error:
                self.fail(error)

        self._client.spawn(again())

    def _place_changed(self) -> None:
        """Where we are to be is known, or has changed."""
        target = self._target()
        if target and (self._footing.leg is None or self._footing.leg.queue_id != target):
            # On entering, whoever enters subscribes.
            if self._renewal is not None:
                self._subscribe_behind()
            self._placed.set()
        if self._renewal is not None:
            self._at_home.look()

    def fail(self, error: TidegateError) -> None:
        self._inbox.fail(error)

    # Pushes

    def _ended(self, leg: Leg, packet: ConsumerEnded) -> None:
        error = from_code(packet.code, packet.text)
        is_current = leg is self._footing.leg or leg not in self._footing.leaving
        is_at_home = leg is self._at_home.leg
        self.lose(leg)
        if not is_current:
            return
        if is_at_home and isinstance(error, QueueNotExisting | RetryLater):
            self.join_again()
            self._at_home.look()
        elif self._membership is not None and isinstance(error, QueueNotExisting | RetryLater):
            self._membership.join_again()
            self._subscribe_behind()
        elif isinstance(error, RetryLater):
            self._subscribe_behind()
        else:
            self.fail(error)

    def _prefetch_changed(self, leg: Leg, prefetch: int) -> None:
        if leg is self._footing.leg:
            self.prefetch = prefetch

    # Taking

    @property
    def held(self) -> int:
        """Messages that lie here, not yet taken by anybody."""
        return self._inbox.held

    @property
    def delivered(self) -> int:
        """Messages that have come to it since it began."""
        return self._inbox.delivered

    async def waiting(self) -> int | None:
        """Messages that are ready to be delivered where we stand; None: not known."""
        return None if self._footing.leg is None else await self._footing.leg.waiting()

    @property
    def is_live(self) -> bool:
        """Whether messages can come now."""
        return self._footing.leg is not None and self._footing.leg.is_connected

    @property
    def is_prefetch_costly(self) -> bool:
        """No: credit is a word to the node."""
        return False

    def batches(self) -> AsyncIterator[MessageBatch]:
        """Messages as they come together."""
        return self._inbox.batches()

    def __aiter__(self) -> AsyncIterator[Message]:
        """Message by message; several tasks may share a subscription, and go on after a break."""
        return self._inbox.messages()

    async def run(
        self,
        handler: Callable[[Message], Awaitable[Any]],
        *,
        on_error: Callable[[Message, Exception], Any] | None = None,
    ) -> None:
        """Call the handler for each message: acked when it returns, given back when it raises."""
        handler = tracing.traced_handler(handler)
        async for message in self:
            try:
                await handler(message)
            except Exception as error:
                log.warning(
                    "a handler failed, the message goes back",
                    extra={"queue": self.queue, "message_id": message.message_id},
                    exc_info=on_error is None,
                )
                if not self.automatic:
                    # Lost with its connection, it goes back by itself.
                    with contextlib.suppress(LeaseLost):
                        await message.nack(error=error_text(error))
                if on_error is not None:
                    on_error(message, error)
            else:
                if not self.automatic:
                    message.ack()

    # Steering

    async def set_prefetch(self, prefetch: int) -> None:
        """Change how many messages may be on their way to us or in our hands."""
        check_count("prefetch", prefetch)
        await self._client.connected()
        if self._footing.leg is not None:
            await self._footing.leg.set_prefetch(prefetch)
        self.prefetch = prefetch
        await self._at_home.set_prefetch()

    async def drain(self) -> None:
        """Take no more: what was not yet looked at goes back, as if it had never been delivered.

        What was taken stays ours, to be settled as usual.
        """
        self._drained = True
        self._placed.set()
        for leg in (self._footing.leg, self._at_home.leg):
            if leg is None or not leg.is_connected:
                continue  # what we had went back with the connection
            # If it fails, the connection or the queue is gone, and everything has gone back.
            with contextlib.suppress(TidegateError):
                await leg.withdraw_credit()
                await leg.give_back(self._inbox.untouched(leg))

    async def _renew(self) -> None:
        """A third of the lease: two may be lost."""
        while True:
            legs = [leg for leg in (self._footing.leg, self._at_home.leg) if leg is not None]
            await asyncio.sleep(min([60.0, *(leg.lease_s for leg in legs)]) / 3)
            for leg in (self._footing.leg, self._at_home.leg):
                if leg is not None:
                    await leg.renew()
