"""The credit of a consumer at its own node: what it does, and how much it may have.

    sense    deliveries, acknowledgements, what it holds; starved: its credit was not used up
    level    what a loop wants; the consumer is told when that has really changed, not at each tick

Credit that is not used while it is there says that the prefetch does not hold the rate: the queue
had nothing for it, is paused or paced, the socket is full, or the consumer holds all the bytes that
it may. A node delivers in the turn in which credit comes, so a look now and then tells.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from tidegate.adapters.native.sojourn import Sojourn
from tidegate.core.prefetch import ConsumerSample
from tidegate.node.consumer import Consumer

# Of the looks within a sample, beyond which it says nothing of the prefetch.
_STARVED_PART = 0.2
# A consumer is told of a change by so much: it gathers acknowledgements by its prefetch.
_TOLD_PART = 0.1
# Without an acknowledgement for so many sojourns it answers to nothing.
_STUCK_SOJOURNS = 4.0
_STUCK_S = 2.0
# Of keep up: while nothing waits, how busy the handler is taken to be; so its capacity is thought
# to be twice what it does, and the prefetch grows by factors and not by steps.
_BUSY_BELOW_KNEE = 0.5
# Samples without anything waiting until that is believed.
_BELOW_KNEE_SAMPLES = 3


class Sensed(NamedTuple):
    """One sample, and what else is worth telling."""

    sample: ConsumerSample
    acked_per_s: float
    # How long a message is away, from delivery to acknowledgement; 0: not known.
    sojourn_s: float
    # Its credit was cut for a while, to see what it holds: it says nothing of anything else.
    is_probe: bool


class ConsumerCredit:
    """Senses one consumer, and says how much credit it is to have."""

    def __init__(self, consumer: Consumer, now: float, *, keep_up: bool) -> None:
        self.consumer = consumer
        meters = consumer.meters
        self._delivered = meters.delivered.total
        self._acked = meters.acked.total
        self._service = (meters.service.count, meters.service.sum_s)
        self._sampled_at = now
        self._acked_at = now
        self._sojourn_s = 0.0
        self._looks = self._unused = self._outstanding = 0
        # Messages times seconds of what was set.
        self._prefetch_s = 0.0
        self._set_at = now
        self._probed = False
        self._told = consumer.prefetch
        self.sojourn = Sojourn(consumer, now) if keep_up else None
        self._empty_samples = 0

    # Sensing

    def look(self, now: float) -> None:
        """Several times a sample."""
        consumer = self.consumer
        outstanding = consumer.book.outstanding
        self._looks += 1
        self._outstanding += outstanding
        if outstanding < consumer.prefetch:
            self._unused += 1
        if self.sojourn is not None:
            self.sojourn.look(now)
            self._probed |= self.sojourn.probing is not None

    @property
    def probing(self) -> int | None:
        """What to cut its credit to for now."""
        return None if self.sojourn is None else self.sojourn.probing

    def sense(self, now: float) -> Sensed:
        """What happened since the last sample."""
        consumer = self.consumer
        interval_s = max(now - self._sampled_at, 1e-9)
        delivered, acked = consumer.meters.delivered.total, consumer.meters.acked.total
        self._note_set(now)
        prefetch = self._prefetch_s / interval_s
        arrived_per_s = (delivered - self._delivered) / interval_s
        acked_per_s = (acked - self._acked) / interval_s
        if acked > self._acked:
            self._acked_at = now
            service = consumer.meters.service
            count, sum_s = service.count - self._service[0], service.sum_s - self._service[1]
            self._service = (service.count, service.sum_s)
            self._sojourn_s = sum_s / count if count else self._sojourn_s
        held = self._held()
        starved = self._unused > _STARVED_PART * self._looks
        busy = None if held is None or starved or self._probed else self._busy(held)
        sample = ConsumerSample(
            at=now,
            interval_s=interval_s,
            arrived_per_s=arrived_per_s,
            processed_per_s=None if busy is None else acked_per_s,
            busy=busy,
            held=held,
            prefetch=prefetch,
            starved=starved or self._is_stuck(now),
        )
        is_probe, self._probed = self._probed, False
        self._delivered, self._acked, self._sampled_at = delivered, acked, now
        self._looks = self._unused = self._outstanding = 0
        self._prefetch_s = 0.0
        return Sensed(sample, acked_per_s, self._sojourn_s, is_probe)

    def _held(self) -> float | None:
        if self.sojourn is None:
            return None
        outstanding = self._outstanding / self._looks if self._looks else 0.0
        return self.sojourn.held(outstanding)

    def _busy(self, held: float) -> float:
        """All of the time while something waits; else there is room for more."""
        self._empty_samples = self._empty_samples + 1 if held < 0.25 else 0
        return _BUSY_BELOW_KNEE if self._empty_samples >= _BELOW_KNEE_SAMPLES else 1.0

    def _is_stuck(self, now: float) -> bool:
        """It answers to nothing: more credit would only be lost in it."""
        patience_s = max(_STUCK_SOJOURNS * self._sojourn_s, _STUCK_S)
        return now - self._acked_at > patience_s

    # Acting

    def _note_set(self, now: float) -> None:
        self._prefetch_s += self.consumer.prefetch * (now - self._set_at)
        self._set_at = now

    def wanted(self, prefetch: int, now: float) -> int:
        """What to set now, and from then on it counts as set."""
        self._note_set(now)
        probing = self.probing
        return prefetch if probing is None else min(prefetch, probing)

    def tell(self, level: float) -> None:
        """The consumer hears of a level that is not the one that it knows."""
        wanted = math.ceil(level)
        if self.consumer.limit is not None:
            wanted = min(wanted, self.consumer.limit)
        if abs(wanted - self._told) > _TOLD_PART * self._told:
            self._told = wanted
            self.consumer.outlet.prefetch_changed(self.consumer.consumer, wanted)

    def close(self) -> None:
        """Nobody senses it any more."""
        if self.sojourn is not None:
            self.sojourn.close()
