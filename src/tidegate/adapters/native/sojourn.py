"""How many messages lie unbegun in a consumer, as far as its node can see: TCP Vegas for prefetch.

    held = outstanding · (1 − base / sojourn)      sojourn: from delivery to acknowledgement

By Little's law `outstanding` is the rate times the sojourn; what of the sojourn is neither the
network nor the handler is waiting. `base`, the sojourn of a message that finds hardly any other, is
not the smallest one seen: of a handler whose time varies that is its luckiest message, and of
four at work at once everything above luck would look like waiting. It is the *mean* of some
messages delivered during a probe: now and then the credit is cut to half of what is not waiting,
until eight messages or more are delivered. Half of what keeps every slot of a handler busy leaves
half of them free, so nothing waits, however many slots there are; and what is cut costs one or two
per cent. Without probes a base once too short would look like waiting for ever; but probes that
say the same again and again come once a minute, and sooner if a message is away for clearly longer
or shorter than then.

The first probe, of a consumer of which nothing is known, has to cut to one. Where messages are away
for a second or longer that would leave its slots idle for many: such a one is left as it is, unless
it has so many that they can hardly all be at work, or one at a time anyway.

What a consumer acknowledges together it gets together, and of n that come at once n − 1 wait: that
is how they travel, and no stock. So much less counts as held.
"""

from __future__ import annotations

from tidegate.node.consumer import Consumer
from tidegate.telemetry.meters import Probe

# Messages of a probe, at least; after a while fewer are enough, and after long it is given up.
PROBE_MESSAGES = 8
_FEWER, _FEWER_AFTER_S = 2, 1.0
_GIVEN_UP_S = 30.0
# Between probes, at first and at most; and how many times as long as one: about two per cent.
PROBE_EVERY_S, _SELDOM_S = 10.0, 60.0
_REST = 30.0
# Times as long after a probe that said the same.
_SELDOMER = 2.0
# Away for so long, so few are not probed for the first time: it would take several seconds.
_SLOW_S, _FEW_OUTSTANDING = 1.0, 16
# The base is the mean of about so many probes; one off by more than a factor begins anew.
_PROBES = 4
_JUMP = 1.5


class Sojourn:
    """The base of one consumer, and what it holds."""

    def __init__(self, consumer: Consumer, now: float) -> None:
        self._consumer = consumer
        # Seconds; None: not known yet.
        self.base_s: float | None = None
        self._probes = 0
        self._probe_at = now
        self._began_at = now
        self._every_s = PROBE_EVERY_S
        # As it was: when the last probe ended, and how long a message was away then.
        self._ended_at = now
        self._mean_then_s: float | None = None
        # What to cut the credit to while a probe lasts; None: none does.
        self.probing: int | None = None
        # Deliveries before a probe, and in it.
        self._delivered = self._expected = 0
        self._sum_s = consumer.meters.service.sum_s
        self._count = consumer.meters.service.count
        self._settlements = consumer.meters.settlements
        self._mean_s: float | None = None

    def held(self, outstanding: float) -> float | None:
        """Messages that wait in it, on average since it was last asked; None: not known."""
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
        """Begin a probe, go on with it, or end it."""
        if self.probing is not None:
            self._go_on(self.probing, now)
        elif self._consumer.meters.probe is not None:
            self._wait_for_all(self._consumer.meters.probe, now)
        elif self._is_worth_it() and (now >= self._probe_at or self._is_otherwise(now)):
            self._begin(now)

    def _is_worth_it(self) -> bool:
        """Whether a probe takes a short while, or costs nothing, or much may be gained by it."""
        outstanding = self._consumer.book.outstanding
        if not outstanding:
            return False
        if self.base_s is not None or self._consumer.prefetch <= 1:
            return True
        if self._mean_s is None:
            # Nothing came back yet: it may be slow.
            return False
        return self._mean_s < _SLOW_S or outstanding > _FEW_OUTSTANDING

    def _is_otherwise(self, now: float) -> bool:
        """Whether a message is away for clearly longer or shorter than at the last probe."""
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
        """Credit is cut: let what was there drain, then some messages through."""
        meters, lasted_s = self._consumer.meters, now - self._began_at
        delivered = meters.delivered.total
        if meters.probe is None:
            if self._consumer.book.outstanding <= probing:
                # Whoever comes now finds hardly anybody.
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
        """The slow ones too: the first to come back would be the lucky ones again."""
        if probe.count >= self._expected:
            self._learn(probe.sum_s / probe.count)
            self._consumer.meters.probe = None
        elif now - probe.until > _GIVEN_UP_S:
            # Some were returned, or lost with their lease.
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
        """Nobody wants to know any more."""
        self._consumer.meters.probe = None
