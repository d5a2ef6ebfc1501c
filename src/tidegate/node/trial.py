"""A trial: somebody tries out prefetches with a consumer, and leaves no trace, however it ends.

A trial belongs to the connection that began it. When that connection is gone, killed or not, the
consumer has what it asked for again. A second trial of the same consumer is refused: it would
measure the first one, and take its prefetches for what the consumer had.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.core.errors import InvalidValue

if TYPE_CHECKING:
    from tidegate.node.consumer import Consumer, Outlet
    from tidegate.node.dispatch import Dispatch


def check_no_other_trial(consumer: Consumer, by: Outlet) -> None:
    """Raises if somebody else has it in hand."""
    if consumer.trial is not None and consumer.trial is not by:
        raise InvalidValue(
            f"{consumer.trial.client_name} is trying out prefetches with "
            f"{consumer.outlet.client_name} just now (`tidegate tune prefetch` does): wait until "
            "that has ended, or end it"
        )


def try_prefetch(dispatch: Dispatch, consumer: Consumer, prefetch: int, by: Outlet) -> None:
    """This one for a while; 0: over."""
    if not prefetch:
        if consumer.trial is not None:
            _end(dispatch, consumer)
        return
    consumer.trial = by
    _set(dispatch, consumer, prefetch)


def end_trials(dispatch: Dispatch, by: Outlet) -> None:
    """Whoever tried is gone."""
    for consumer in dispatch.holders.consumers:
        if consumer.trial is by:
            _end(dispatch, consumer)


def _end(dispatch: Dispatch, consumer: Consumer) -> None:
    consumer.trial = None
    # A loop that has taken it over meanwhile decides.
    if consumer.control is None:
        _set(dispatch, consumer, consumer.asked)


def _set(dispatch: Dispatch, consumer: Consumer, prefetch: int) -> None:
    if not consumer.asked:
        return  # it drains, and wants nothing more
    consumer.outlet.prefetch_changed(consumer.consumer, prefetch, lasting=False)
    dispatch.steer([(consumer, prefetch)])
