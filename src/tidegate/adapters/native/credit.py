"""One consumer as a controlled plant: its node measures it and sets its prefetch.

Theory of operation.

The prefetch loop of a node has one `ConsumerCredit` for each consumer that it controls. All calls
run in the node's event loop, in this order:

- `poll`, at least five times per sample: record how many messages the consumer holds, and whether
  its credit was used up. Advance the sojourn estimator.
- `sense`, once per sample: return the rates since the last sample, and how well they reflect the
  prefetch.
- `notify_consumer`, once per sample: inform the client of a new level, if it differs from the last
  one by more than 10 %.
- `wanted`, at every tick: return the prefetch to set now, which a probe of the estimator may
  reduce.

A sample is marked `starved` if unused credit was seen in more than 20 % of the polls. The node
delivers as soon as there is credit, so unused credit means that the prefetch does not limit the
rate. Then the queue is empty, paused or limited in rate, the socket is full, or the consumer holds
the maximum of bytes.

A sample is also `starved` if nothing was acknowledged for four sojourns, and at least 2 seconds: a
stuck consumer would only absorb more credit.

If the goal is to keep up with the handler, the sample also has `held` and `busy`. `busy` is 1.0
while messages wait in the consumer. If none has waited for three samples, it is 0.5: the law then
assumes twice the present capacity, and the prefetch grows by factors.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from tidegate.adapters.native.sojourn import Sojourn
from tidegate.core.prefetch import ConsumerSample
from tidegate.node.consumer import Consumer

# Part of the polls with unused credit, above which a sample says nothing about the prefetch.
_STARVED_PART = 0.2
# Relative change of the level that is reported to the client, which sizes its batches of
# acknowledgements by its prefetch.
_TOLD_PART = 0.1
# After so many sojourns without an acknowledgement, and at least so many seconds, the consumer
# counts as stuck.
_STUCK_SOJOURNS = 4.0
_STUCK_S = 2.0
# Assumed utilisation of the handler while no message waits. It makes the estimated capacity twice
# the present rate, so the prefetch grows by factors instead of steps.
_BUSY_BELOW_KNEE = 0.5
# Consecutive samples without waiting messages before the handler counts as idle.
_BELOW_KNEE_SAMPLES = 3


class Sensed(NamedTuple):
    """One sample, with the values that are reported beside it."""

    sample: ConsumerSample
    acked_per_s: float
    # Mean time from delivery to acknowledgement; 0 means unknown.
    sojourn_s: float
    # A probe reduced the credit during this sample, so the sample is unfit for control.
    is_probe: bool


class ConsumerCredit:
    """The measurements of one consumer, and the prefetch to set for it."""

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
        # Integral of the prefetch that was set, in messages times seconds.
        self._prefetch_s = 0.0
        self._set_at = now
        self._probed = False
        self._told = consumer.prefetch
        self.sojourn = Sojourn(consumer, now) if keep_up else None
        self._empty_samples = 0

    # Sensing

    def look(self, now: float) -> None:
        """Poll the consumer; called several times per sample."""
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
        """Prefetch to set during a probe; None means that no probe runs."""
        return None if self.sojourn is None else self.sojourn.probing

    def sense(self, now: float) -> Sensed:
        """Return the sample since the previous call, and begin the next one."""
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
        """Return 1.0, or after some samples without waiting messages `_BUSY_BELOW_KNEE`."""
        self._empty_samples = self._empty_samples + 1 if held < 0.25 else 0
        return _BUSY_BELOW_KNEE if self._empty_samples >= _BELOW_KNEE_SAMPLES else 1.0

    def _is_stuck(self, now: float) -> bool:
        """Return whether the consumer has acknowledged nothing for too long."""
        patience_s = max(_STUCK_SOJOURNS * self._sojourn_s, _STUCK_S)
        return now - self._acked_at > patience_s

    # Acting

    def _note_set(self, now: float) -> None:
        self._prefetch_s += self.consumer.prefetch * (now - self._set_at)
        self._set_at = now

    def wanted(self, prefetch: int, now: float) -> int:
        """Return the prefetch to set now; from this call on it counts as set."""
        self._note_set(now)
        probing = self.probing
        return prefetch if probing is None else min(prefetch, probing)

    def tell(self, level: float) -> None:
        """Inform the client of a new level if it differs enough from the last one reported."""
        wanted = math.ceil(level)
        if self.consumer.limit is not None:
            wanted = min(wanted, self.consumer.limit)
        if abs(wanted - self._told) > _TOLD_PART * self._told:
            self._told = wanted
            self.consumer.outlet.prefetch_changed(self.consumer.consumer, wanted)

    def close(self) -> None:
        """End the measurements of the estimator."""
        if self.sojourn is not None:
            self.sojourn.close()
