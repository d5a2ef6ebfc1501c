"""The policy "length": the number of replicas that KEDA and the Kubernetes HPA would choose.

    desired = ceil(messages / queue_length)

The law follows KEDA and the Kubernetes autoscaler (HPA):
- Messages are the ready and the unacknowledged ones, as KEDA's scaler for RabbitMQ counts by
  default.
- The queue is polled once per polling interval (KEDA: 30 s); the proposal is unchanged in between.
- A ratio messages / (replicas · queue_length) within 10 % of 1 changes nothing (HPA's tolerance).
- A scale-up is immediate, to at most twice the replicas or four more (HPA's default policies).
- A scale-in goes to the largest number desired within the last 300 s (HPA's stabilisation window,
  here `cooldown_period`).
- On the first poll the current number of replicas counts as desired until then.
- Only the step from one replica to none is KEDA's own: after `cooldown_period` without a message.

The weakness of the policy: an empty queue may be empty because just enough replicas keep it so. The
law removes them, the queue fills, and the replicas come back.
"""

from __future__ import annotations

import math
from collections import deque

from tidegate.laws.wish import Situation, Wish

POLLING_S = 30.0
STABILISATION_S = 300.0
TOLERANCE = 0.1
# HPA's default scale-up policies; the larger result of the two counts.
UP_FACTOR = 2
UP_MORE = 4


class LengthLaw:
    """A `LengthLaw` divides the number of messages by a target, once per polling interval."""

    def __init__(
        self,
        queue_length: float,
        *,
        polling_s: float = POLLING_S,
        stabilisation_s: float = STABILISATION_S,
    ) -> None:
        if not queue_length > 0.0:
            raise ValueError(f"queue_length is above 0 messages per replica, not {queue_length}")
        self._queue_length = queue_length
        self._polling_s = polling_s
        self._stabilisation_s = stabilisation_s
        self._polled_at = -math.inf
        self._active_at = -math.inf
        self._wish: Wish | None = None
        # Desired numbers within the window as (time, number): the largest first, later smaller ones
        # behind it.
        self._desired: deque[tuple[float, int]] = deque()

    def step(self, now: Situation) -> Wish:
        """Return the proposal of the last poll, and poll again if the interval has passed."""
        if self._wish is None or now.at - self._polled_at >= self._polling_s * (1.0 - 1e-9):
            self._polled_at = now.at
            self._wish = self._poll(now)
        return self._wish

    def _poll(self, now: Situation) -> Wish:
        messages = now.waiting + now.unacknowledged
        count = now.replicas
        window = self._desired
        if not window:
            # On the first poll, as HPA does, the current replicas count as desired, because the
            # time since which the queue has been idle is unknown.
            window.append((now.at, count))
            self._active_at = now.at if count else -math.inf
        if messages:
            self._active_at = now.at
        desired = math.ceil(messages / self._queue_length)
        if desired == 0 and now.at - self._active_at < self._stabilisation_s:
            desired = 1
        if count and abs(messages / (count * self._queue_length) - 1.0) <= TOLERANCE:
            desired = count
        desired = min(desired, max(count * UP_FACTOR, count + UP_MORE))
        while window and window[-1][1] <= desired:
            window.pop()
        window.append((now.at, desired))
        while window[0][0] < now.at - self._stabilisation_s:
            window.popleft()
        seen = f"{messages} messages for a target of {self._queue_length:g} per replica"
        if desired >= count:
            return Wish(
                desired,
                "messages / queue_length",
                f"{seen} ask for {desired} replicas, and there are {count}.",
                f"At {count * self._queue_length:g} messages nothing would change.",
            )
        stable = min(window[0][1], count)
        return Wish(
            stable,
            "messages / queue_length" if stable < count else "held: stabilisation window",
            f"{seen} ask for {desired} replicas; the most that was asked for in the last "
            f"{self._stabilisation_s:g} s was {window[0][1]}.",
            f"A scale-in goes no lower than what was asked for within {self._stabilisation_s:g} s.",
        )
