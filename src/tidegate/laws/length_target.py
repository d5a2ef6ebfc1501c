"""How many replicas KEDA and the Kubernetes autoscaler (HPA) would want: the policy "length".

    desired = ceil(messages / queue_length)

As they do it:
- messages are ready and unacknowledged ones, as KEDA's scaler for RabbitMQ counts by default;
- looked at once per polling interval (KEDA: 30 s), and nothing happens in between;
- a ratio messages / (replicas · queue_length) within 10 % of 1 changes nothing (HPA's tolerance);
- a scale-up is immediate, to at most twice the replicas or four more (HPA's default policies);
- a scale-in goes to the largest number desired within the last 300 s (HPA's stabilisation window,
  here `cooldown_period`);
- a law that has just begun takes the replicas that are there as what was asked for until now;
- only the step from one replica to none is KEDA's own: after `cooldown_period` without a message.

What it cannot see: an empty queue may be empty because just enough replicas keep it so. It removes
them, the queue fills, and they come back.
"""

from __future__ import annotations

import math
from collections import deque

from tidegate.laws.wish import Situation, Wish

POLLING_S = 30.0
STABILISATION_S = 300.0
TOLERANCE = 0.1
# HPA's default scale-up policies: the larger of the two.
UP_FACTOR = 2
UP_MORE = 4


class LengthLaw:
    """Messages divided by a target, looked at now and then."""

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
        # Of the window: when and how many, the largest first (later smaller ones wait behind it).
        self._desired: deque[tuple[float, int]] = deque()

    def step(self, now: Situation) -> Wish:
        """What the last poll asks for."""
        if self._wish is None or now.at - self._polled_at >= self._polling_s * (1.0 - 1e-9):
            self._polled_at = now.at
            self._wish = self._poll(now)
        return self._wish

    def _poll(self, now: Situation) -> Wish:
        messages = now.waiting + now.unacknowledged
        count = now.replicas
        window = self._desired
        if not window:
            # It has just begun to look: the replicas that are there were asked for by somebody, and
            # nobody knows for how long there was nothing to do (HPA begins so too).
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
