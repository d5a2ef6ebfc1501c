"""Messages that no consumer gets any more: failed too often, rejected, expired, or over a limit.

They go to the dead letters if the queue has any. Expired messages go there only if the policy keeps
them.
"""

from __future__ import annotations

from tidegate.core.model import DeathReason, Failure
from tidegate.core.ports import Attempt
from tidegate.core.segment import Segment
from tidegate.node.holding import Holding
from tidegate.node.lifecycle_watch import EXPIRED
from tidegate.node.retries import retry_wait_s
from tidegate.node.settling import Settling
from tidegate.queueing.lifecycle import Event, State
from tidegate.queueing.span import Span


class GivingUp:
    """Gives up messages of one replica."""

    __slots__ = ("_holding", "_settling")

    def __init__(self, holding: Holding, settling: Settling) -> None:
        self._holding = holding
        self._settling = settling

    def give_up(self, spans: list[Span], reason: DeathReason, error: str | None) -> None:
        if not spans or self._holding.fenced:
            return
        for span in spans:
            if span.state is State.LEASED:
                span.segment.mark_attempted(span.low, span.high)
            span.advance(Event.GIVEN_UP)
        self._holding.give_up(spans, reason, error)

    def shed(self, count: int) -> bool:
        """Give up `count` of the oldest messages to shorten the queue; False if there are none."""
        queue = self._holding.queue
        spans = queue.take_regardless(count) or queue.lanes.take_addressed(count)
        self.give_up(spans, DeathReason.OVERFLOW, None)
        return bool(spans)

    # Failed too often

    def failed(
        self, spans: list[Span], event: Event, failure: Failure, wait_s: float | None
    ) -> list[Span]:
        """Count failed deliveries; return the messages to be retried at once.

        Others are scheduled for later, or given up after `deliveries_max` failures.
        """
        policy = self._holding.policy
        hopeless: list[Span] = []
        again: list[Span] = []
        for span in spans:
            segment = span.segment
            for offset in range(span.low, span.high):
                failed = segment.mark_failed(offset, failure)
                if policy.deliveries_max and failed >= policy.deliveries_max:
                    hopeless.append(Span(segment, offset, offset + 1, span.state))
                    continue
                pause_s = retry_wait_s(policy, failed) if wait_s is None else wait_s
                if pause_s > 0:
                    self._put_off(Span(segment, offset, offset + 1, span.state), pause_s)
                elif again and again[-1].segment is segment and again[-1].high == offset:
                    again[-1].high += 1
                else:
                    again.append(Span(segment, offset, offset + 1, span.state))
                # A consumer that is gone held many messages and had seen few of them. Storing a
                # failure for each would not be worth a row. After a restart all are flagged as
                # redelivered anyway.
                if event is not Event.CONSUMER_GONE:
                    self._note_failed(segment, offset, failed, pause_s)
        self.give_up(hopeless, DeathReason.DELIVERIES, failure.error)
        return again

    def _put_off(self, span: Span, pause_s: float) -> None:
        self._holding.queue.put_off([span], self._holding.clock.monotonic() + pause_s)
        self._holding.meters.returned.add(len(span))

    def _note_failed(self, segment: Segment, offset: int, failed: int, pause_s: float) -> None:
        due_at = self._holding.clock.wall() + pause_s if pause_s > 0 else None
        failures = (segment.failures or {})[offset]
        self._settling.note_failed(segment, offset, Attempt(failed, due_at, failures))

    # Expired

    def living(self, spans: list[Span]) -> list[Span]:
        """Expire messages among spans that were just taken; return the others."""
        if all(span.segment.expires_at is None for span in spans):
            return spans
        now = self._holding.clock.wall()
        living: list[Span] = []
        for span in spans:
            for piece, is_over in span.parted(now):
                if is_over:
                    self._expire([piece])
                else:
                    living.append(piece)
        return living

    def expire(self) -> None:
        """Remove expired messages that wait in memory."""
        self._expire(self._holding.queue.take_expired(self._holding.clock.wall()))

    def _expire(self, spans: list[Span]) -> None:
        holding = self._holding
        if not spans:
            return
        holding.meters.expired.add(sum(map(len, spans)))
        if holding.policy.keep_expired:
            self.give_up(spans, DeathReason.EXPIRED, None)
            return
        holding.note_ended(spans, EXPIRED)
        for span in spans:
            self._settling.note_done(span, holding.queue.done(span, Event.EXPIRED))
