"""Automatic prefetch of a worker, on any engine.

    prefetch = AutomaticPrefetch("orders", PrefetchGoal(rate_per_s=400.0), start=10)
    await prefetch.run(subscription)        until cancelled; again with the next subscription

A sample is divided into ticks. At each tick the prefetch is set to a whole number, so that the mean
over the sample is the controller's level. At the end of the sample the controller gets what
arrived, what was handled, and what was held meanwhile. All of it is measured at the consumer.

While the subscription is broken, nothing is measured. The loop then keeps its prefetch, uses the
fallback if the outage lasts, and continues without a jump. A change of prefetch that has not been
confirmed is waited for before the next one is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable
from typing import NamedTuple

from tidegate.client.engine import EngineSubscription
from tidegate.client.handler import HandlerCounts, HandlerMeter
from tidegate.core.decisions import Decision
from tidegate.core.errors import TidegateError
from tidegate.core.prefetch import ConsumerSample, PrefetchGoal, PrefetchModel
from tidegate.laws.prefetch.controller import ControllerMode, ControlStep, Saturation
from tidegate.laws.prefetch.loop import PrefetchRegulator, explain_step

log = logging.getLogger(__name__)

TICKS = 20
# Ticks per sample where each change costs a new subscription.
TICKS_COSTLY = 2
TICK_S_MIN = 0.02
# The part of a sample for which the loop waits for the number of waiting messages.
ASKED_FOR = 0.5
# The least time between two log entries about an unchanged condition, in seconds.
REPEAT_WARNING_S = 60.0


class PrefetchStep(NamedTuple):
    """One control step of a worker's prefetch, as passed to `App.on_prefetch_step`."""

    queue: str
    goal: PrefetchGoal
    # The model in use; `None` if there is none yet.
    model: PrefetchModel | None
    # `None` if the measurement was lost.
    sample: ConsumerSample | None
    step: ControlStep
    # The prefetch after this step.
    prefetch: int

    def explained(self) -> Decision:
        """Return the step as a `Decision`, the form that all control loops use."""
        return explain_step(
            self.step, self.goal, self.model, service=self.queue, output=self.prefetch
        )


OnStep = Callable[[PrefetchStep], None]


class _Reading(NamedTuple):
    at: float
    delivered: int
    handled: HandlerCounts | None


class AutomaticPrefetch:
    """The prefetch loop of one consumer; it survives the subscriptions that it controls."""

    def __init__(
        self,
        queue: str,
        goal: PrefetchGoal,
        *,
        start: int,
        model: PrefetchModel | None = None,
        handling: HandlerMeter | None = None,
        on_step: OnStep | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.queue = queue
        self.steering = PrefetchRegulator(goal, model, start)
        self._handling = handling
        self._on_step = on_step
        self._clock = clock or asyncio.get_running_loop().time
        self._setting: asyncio.Task[None] | None = None
        # Of the current sample:
        self._since = _Reading(0.0, 0, None)
        self._ticked_at = 0.0
        self._prefetch_s = 0.0
        self._held_s = 0.0
        self._was_broken = False
        # What was logged last, and when.
        self._told: tuple[ControllerMode, Saturation, bool] | None = None
        self._told_at = -math.inf

    @property
    def goal(self) -> PrefetchGoal:
        return self.steering.goal

    async def run(self, subscription: EngineSubscription) -> None:
        """Control the prefetch of this subscription until cancelled."""
        self._begin_sample(subscription)
        try:
            while True:
                ticks = TICKS_COSTLY if subscription.is_prefetch_costly else TICKS
                tick_s = max(self.goal.sample_s / ticks, TICK_S_MIN)
                ends_at = self._since.at + self.goal.sample_s
                while (now := self._clock()) < ends_at:
                    self._tick(subscription)
                    await asyncio.sleep(min(tick_s, ends_at - now))
                await self._sampled(subscription)
        finally:
            if self._setting is not None:
                self._setting.cancel()
                await asyncio.wait({self._setting})
                self._setting = None

    async def _sampled(self, subscription: EngineSubscription) -> None:
        sample = await self.sense(subscription)
        lost = sample is None
        step = (
            self.steering.step_without_sample(self._clock()) if lost else self.steering.step(sample)
        )
        self._begin_sample(subscription)
        self._report_step(
            PrefetchStep(
                self.queue,
                self.goal,
                self.steering.model,
                sample,
                step,
                subscription.prefetch,
            )
        )

    async def sense(self, subscription: EngineSubscription) -> ConsumerSample | None:
        """Return the measurement since the sample began; `None` if the subscription was broken."""
        self._count(subscription)
        before, now = self._since, self._read(subscription)
        interval_s = now.at - before.at
        if self._was_broken or not interval_s > 0.0:
            return None
        processed_per_s = busy = None
        if self._handling is not None and before.handled and now.handled:
            processed_per_s = (now.handled.messages - before.handled.messages) / interval_s
            slots_s = self._handling.slots * interval_s
            busy = min((now.handled.busy_s - before.handled.busy_s) / slots_s, 1.0)
        return ConsumerSample(
            at=now.at,
            interval_s=interval_s,
            arrived_per_s=(now.delivered - before.delivered) / interval_s,
            processed_per_s=processed_per_s,
            busy=busy,
            held=self._held_s / interval_s,
            prefetch=self._prefetch_s / interval_s,
            starved=await self._is_starved(subscription, now.delivered - before.delivered),
        )

    async def _is_starved(self, subscription: EngineSubscription, arrived: int) -> bool:
        """Return whether the queue has no messages for this consumer.

        If the broker does not know, the queue counts as empty when no message has arrived.
        """
        if subscription.held:
            return False
        waiting: int | None = None
        with contextlib.suppress(TidegateError, TimeoutError):
            async with asyncio.timeout(ASKED_FOR * self.goal.sample_s):
                waiting = await subscription.waiting()
        # A higher prefetch gets nothing from a queue that delivers nothing, even if messages wait
        # in it.
        return not arrived if waiting is None else waiting == 0

    # Ticks

    def _tick(self, subscription: EngineSubscription) -> None:
        self._count(subscription)
        wanted = self.steering.tick()
        if self._setting is not None:
            if not self._setting.done():
                return
            self._setting = None
        if wanted != subscription.prefetch and subscription.is_live:
            setting = self._set(subscription, wanted)
            self._setting = asyncio.get_running_loop().create_task(setting)

    async def _set(self, subscription: EngineSubscription, prefetch: int) -> None:
        try:
            await subscription.set_prefetch(prefetch)
        except TidegateError as failure:
            # The task that takes messages gets the same error and handles it.
            self._was_broken = True
            log.debug("a prefetch was not set: %s", failure, extra={"queue": self.queue})

    def _begin_sample(self, subscription: EngineSubscription) -> None:
        self._since = self._read(subscription)
        self._ticked_at = self._since.at
        self._prefetch_s = self._held_s = 0.0
        self._was_broken = not subscription.is_live

    def _read(self, subscription: EngineSubscription) -> _Reading:
        handled = None if self._handling is None else self._handling.read()
        return _Reading(self._clock(), subscription.delivered, handled)

    def _count(self, subscription: EngineSubscription) -> None:
        """Add the prefetch and the held messages since the last tick to the sample."""
        now = self._clock()
        lasted_s, self._ticked_at = now - self._ticked_at, now
        self._prefetch_s += lasted_s * subscription.prefetch
        self._held_s += lasted_s * subscription.held
        self._was_broken = self._was_broken or not subscription.is_live

    # Reporting

    def _report_step(self, told: PrefetchStep) -> None:
        if self._on_step is not None:
            try:
                self._on_step(told)
            except Exception:
                log.exception("who listens to prefetch steps has failed")
        step = told.step
        is_redesigned = any(note.startswith(("redesigned", "swings")) for note in step.notes)
        now = self._clock()
        news = (step.mode, step.saturated, told.model is not None)
        if news == self._told and not is_redesigned and now - self._told_at < REPEAT_WARNING_S:
            return
        self._told, self._told_at = news, now
        log.info(
            "the prefetch is steered",
            extra={"queue": self.queue, "prefetch": told.prefetch, "why": told.explained().reason},
        )
