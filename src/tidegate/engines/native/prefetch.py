"""Estimation of how many messages wait in a consumer, as TCP Vegas estimates a network's queue.

    held = outstanding · (1 − base / sojourn)      sojourn: from delivery to acknowledgement

By Little's law, `outstanding` is the rate times the sojourn. The part of the sojourn that is
neither network nor handler time is waiting. `base` is the sojourn of a message that meets hardly
any other message.

The smallest observed sojourn is no usable base. If the handler's time varies, it belongs to the
luckiest message, and everything slower would look like waiting. So the base is the mean of some
messages that are delivered during a probe.

A probe works as follows:

- The credit is cut to half of the messages that are estimated to be at work. With half of the
  handler's slots free, no message waits, for any number of slots.
- When no more messages are outstanding than that, the probe counts deliveries: at least eight and
  twice the credit, or two after one second. Then the credit is restored.
- When all these messages are acknowledged, their mean sojourn updates the base.
- A probe is abandoned after 30 seconds.

Probes cost one or two per cent of the rate. Without them, a base that was once too short would look
like waiting for ever. A probe that confirms the base doubles the pause to the next one, from 10
seconds to a minute. If the mean sojourn changes by a factor of 1.5, the next probe starts sooner.

The first probe, without any base, cuts the credit to one. If messages take a second or longer, that
would leave the handler idle for many seconds. Such a consumer is probed only in two cases: it holds
more than 16 messages, so most of them must be waiting, or its prefetch is one anyway.

A consumer that acknowledges n messages together received them together. In a batch of n, n − 1
messages wait because of the way they travel, not because of the prefetch. So n − 1 is subtracted
from `held`.
"""

from __future__ import annotations

from tidegate.node.consumer import Consumer
from tidegate.telemetry.meters import Probe

# Minimum number of messages in a probe; after `_FEWER_AFTER_S` seconds `_FEWER` suffice. A probe is
# abandoned after `_GIVEN_UP_S` seconds.
PROBE_MESSAGES = 8
_FEWER, _FEWER_AFTER_S = 2, 1.0
_GIVEN_UP_S = 30.0
# Seconds between probes, at first and at most; and the minimum pause as a multiple of a probe's
# duration, which bounds the cost to about two per cent.
PROBE_EVERY_S, _SELDOM_S = 10.0, 60.0
_REST = 30.0
# Factor of the pause after a probe that confirmed the base.
_SELDOMER = 2.0
# Without a base, a consumer with such slow messages and so few outstanding ones is not probed: the
# probe would take several seconds.
_SLOW_S, _FEW_OUTSTANDING = 1.0, 16
# The base is a moving mean of about so many probes. A probe that differs by more than this factor
# replaces it.
_PROBES = 4
_JUMP = 1.5


class Sojourn:
    """The base sojourn of one consumer, and the number of messages that wait in it."""

    def __init__(self, consumer: Consumer, now: float) -> None:
        self._consumer = consumer
        # Seconds; None means unknown.
        self.base_s: float | None = None
        self._probes = 0
        self._probe_at = now
        self._began_at = now
        self._every_s = PROBE_EVERY_S
        # When the last probe ended, and the mean sojourn then.
        self._ended_at = now
        self._mean_then_s: float | None = None
        # The reduced credit while a probe runs; None means that no probe runs.
        self.probing: int | None = None
        # The counter of deliveries when the probe began to count, and deliveries since.
        self._delivered = self._expected = 0
        self._sum_s = consumer.meters.service.sum_s
        self._count = consumer.meters.service.count
        self._settlements = consumer.meters.settlements
        self._mean_s: float | None = None

    def held(self, outstanding: float) -> float | None:
        """Return the mean number of waiting messages since the previous call; None if unknown."""
        meters = self._consumer.meters
        service = meters.service
        sum_s, count = service.sum_s - self._sum_s, service.count - self._count
        together = count / max(meters.settlements - self._settlements, 1)
        self._sum_s, self._count = service.sum_s, service.count
        self._settlements = meters.settlements
        if not count:
            return None
        self._mean_s = sum_s / count
        if self.base_s is None:
            return None
        waiting = outstanding * (1.0 - self.base_s / max(self._mean_s, 1e-9))
        return max(waiting - (together - 1.0), 0.0)

    def look(self, now: float) -> None:
        """Begin, continue or end a probe, as is due."""
        if self.probing is not None:
            self._go_on(self.probing, now)
        elif self._consumer.meters.probe is not None:
            self._wait_for_all(self._consumer.meters.probe, now)
        elif self._is_worth_it() and (now >= self._probe_at or self._is_otherwise(now)):
            self._begin(now)

    def _is_worth_it(self) -> bool:
        """Return whether a probe is short, free of cost, or likely to find waiting messages."""
        outstanding = self._consumer.book.outstanding
        if not outstanding:
            return False
        if self.base_s is not None or self._consumer.prefetch <= 1:
            return True
        if self._mean_s is None:
            # No message was acknowledged yet, so the handler may be slow.
            return False
        return self._mean_s < _SLOW_S or outstanding > _FEW_OUTSTANDING

    def _is_otherwise(self, now: float) -> bool:
        """Return whether the mean sojourn has changed clearly since the last probe."""
        then_s, now_s = self._mean_then_s, self._mean_s
        if then_s is None or now_s is None or now < self._ended_at + PROBE_EVERY_S:
            return False
        return not then_s / _JUMP <= now_s <= then_s * _JUMP

    def _begin(self, now: float) -> None:
        in_use = float(self._consumer.book.outstanding)
        if self.base_s is None or self._mean_s is None:
            in_use = 1.0
        else:
            in_use *= min(self.base_s / max(self._mean_s, 1e-9), 1.0)
        self.probing = max(int(in_use / 2.0), 1)
        self._began_at = now

    def _go_on(self, probing: int, now: float) -> None:
        """Continue a probe: let the outstanding messages drain, then count deliveries."""
        meters, lasted_s = self._consumer.meters, now - self._began_at
        delivered = meters.delivered.total
        if meters.probe is None:
            if self._consumer.book.outstanding <= probing:
                # From now on a delivered message meets hardly any other message.
                meters.probe = Probe(now)
                self._delivered = delivered
        else:
            self._expected = delivered - self._delivered
            few_are_enough = self._expected >= _FEWER and lasted_s >= _FEWER_AFTER_S
            if self._expected >= max(PROBE_MESSAGES, 2 * probing) or few_are_enough:
                meters.probe.until = now
                self._end_cut(now, lasted_s)
                return
        if lasted_s > _GIVEN_UP_S:
            meters.probe = None
            self._end_cut(now, lasted_s)

    def _wait_for_all(self, probe: Probe, now: float) -> None:
        """Learn the base when all messages of the probe are acknowledged.

        The first acknowledgements alone would be those of the luckiest messages.
        """
        if probe.count >= self._expected:
            self._learn(probe.sum_s / probe.count)
            self._consumer.meters.probe = None
        elif now - probe.until > _GIVEN_UP_S:
            # Some messages were returned, or their lease expired.
            self._consumer.meters.probe = None

    def _end_cut(self, now: float, lasted_s: float) -> None:
        self.probing = None
        self._ended_at = now
        self._mean_then_s = self._mean_s
        self._probe_at = now + max(self._every_s, _REST * lasted_s)

    def _learn(self, base_s: float) -> None:
        known = self.base_s
        if known is None or not known / _JUMP <= base_s <= known * _JUMP:
            self.base_s, self._probes, self._every_s = base_s, 1, PROBE_EVERY_S
        else:
            self._every_s = min(_SELDOMER * self._every_s, _SELDOM_S)
            self._probes = min(self._probes + 1, _PROBES)
            self.base_s = known + (base_s - known) / self._probes

    def close(self) -> None:
        """Stop counting for a probe."""
        self._consumer.meters.probe = None
