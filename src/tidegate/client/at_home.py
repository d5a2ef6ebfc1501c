"""Messages of a logical queue that are addressed to this client.

One replica holds all messages for a receiver. If a subscription is assigned to another replica, it
has an additional consumer there. That consumer gets only addressed messages and does not count as a
member. It follows when the assignment changes, and ends when the subscription itself moves to that
replica.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tidegate.core.errors import QueueNotExisting, RetryLater, TidegateError

if TYPE_CHECKING:
    from tidegate.client.footing import Footing
    from tidegate.client.leg import Leg
    from tidegate.client.subscription import Subscription

_BACKOFF_FIRST_S = 0.02
_BACKOFF_MAX_S = 1.0
# The divisor of the subscription's prefetch that gives the prefetch of the additional consumer.
# Addressed messages are seldom many.
_PREFETCH_PART = 8


class AtHome:
    """The additional consumer of a subscription for addressed messages."""

    def __init__(self, subscription: Subscription, footing: Footing) -> None:
        self._subscription = subscription
        self._footing = footing
        self._going = False
        self.leg: Leg | None = None

    @property
    def prefetch(self) -> int:
        return max(self._subscription.prefetch // _PREFETCH_PART, 1)

    def look(self) -> None:
        """Start to move the consumer to the right replica, if it is at another one."""
        if not self._going and self._is_elsewhere():
            self._going = True
            self._subscription.spawn(self._go())

    def lost(self, leg: Leg) -> None:
        if leg is self.leg:
            self.leg = None

    async def set_prefetch(self) -> None:
        """Adapt to a new prefetch of the subscription."""
        if self.leg is not None and self.leg.is_connected:
            await self.leg.set_prefetch(self.prefetch)

    def _is_elsewhere(self) -> bool:
        return (0 if self.leg is None else self.leg.queue_id) != self._subscription.home_id()

    async def _go(self) -> None:
        try:
            await self._go_as_often_as_it_takes()
        except TidegateError as error:
            self._subscription.fail(error)
        finally:
            self._going = False

    async def _go_as_often_as_it_takes(self) -> None:
        subscription = self._subscription
        backoff_s = _BACKOFF_FIRST_S
        while self._is_elsewhere():
            former, self.leg = self.leg, None
            if former is not None:
                self._footing.part_from(former)
            home_id = subscription.home_id()
            if not home_id:
                return
            leg = await subscription.new_leg_at_home(home_id, self.prefetch)
            try:
                await leg.subscribe()
            except (RetryLater, QueueNotExisting):
                # The replica does not serve this client now. Its assignment may have changed.
                subscription.lose(leg)
                subscription.join_again()
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)
                continue
            except BaseException:
                subscription.lose(leg)
                leg.abandon()
                raise
            if leg.lost:
                continue
            self.leg = leg
            if not subscription.wants_more():
                self._footing.part_from(leg)
                self.leg = None
                return
