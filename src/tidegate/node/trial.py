"""Prefetch experiments: a client sets another consumer's prefetch for a while.

An experiment belongs to the connection that began it. When that connection ends, even by a crash,
the consumer gets the prefetch that it had asked for. Only one client at a time may experiment with
a consumer: a second one would measure the first and restore the wrong prefetch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.core.errors import InvalidValue

if TYPE_CHECKING:
    from tidegate.node.consumer import Consumer, Outlet
    from tidegate.node.dispatch import Dispatch


def check_no_other_trial(consumer: Consumer, by: Outlet) -> None:
    """Raise `InvalidValue` if another client experiments with the consumer."""
    if consumer.trial is not None and consumer.trial is not by:
        raise InvalidValue(
            f"{consumer.trial.client_name} is trying out prefetches with "
            f"{consumer.outlet.client_name} just now (`tidegate tune prefetch` does): wait until "
            "that has ended, or end it"
        )


def try_prefetch(dispatch: Dispatch, consumer: Consumer, prefetch: int, by: Outlet) -> None:
    """Set the prefetch of an experiment; 0 ends the experiment."""
    if not prefetch:
        if consumer.trial is not None:
            _end(dispatch, consumer)
        return
    consumer.trial = by
    _set(dispatch, consumer, prefetch)


def end_trials(dispatch: Dispatch, by: Outlet) -> None:
    """End the experiments of a connection that is gone."""
    for consumer in dispatch.holders.consumers:
        if consumer.trial is by:
            _end(dispatch, consumer)


def _end(dispatch: Dispatch, consumer: Consumer) -> None:
    consumer.trial = None
    # If a control loop sets the prefetch by now, its value stays.
    if consumer.control is None:
        _set(dispatch, consumer, consumer.asked)


def _set(dispatch: Dispatch, consumer: Consumer, prefetch: int) -> None:
    if not consumer.asked:
        return  # The client wants no more messages
    consumer.outlet.prefetch_changed(consumer.consumer, prefetch, lasting=False)
    dispatch.steer([(consumer, prefetch)])
