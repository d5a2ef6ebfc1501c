"""The measurements of doors as samples of an HTTP service's agreement.

    good       = answered − server errors      an answer of 500 or above is not a good answer
    bad        = refused + server errors       refused by the door, or a server error
    availability = good / (good + bad)

- `came` counts all requests that arrived. Load must not depend on answers: an instance that hangs
  answers no request.
- `unanswered` are the refused requests. They count as longer than any response time.
- `in_hand` are the requests that still wait, with their waiting time so far. At the end of a window
  those that have waited beyond the breaching point count as unanswered, too.

Response times are those of clients, with the wait in the door. Service times begin when the door
sends the request to an instance. The formulas use plain arithmetic and accept numbers and Spark
Columns. The control loops make samples with them; the pipeline applies them to recorded rows.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.agreement.windows import Sample
from tidegate.core.hosting import DoorSample
from tidegate.core.term import Term


def kept(answered: Term, server_errors: Term) -> Term:
    """Return the number of requests with a good answer."""
    return answered - server_errors


def missed(refused: Term, server_errors: Term) -> Term:
    """Return the number of requests with a server error or without an answer."""
    return refused + server_errors


def sample_of(
    between: DoorSample, interval_s: float, free_memory_bytes: Iterable[float | None] = ()
) -> Sample:
    """Return one door's measurements of one interval as a sample.

    `between` is a difference of counters (core.door_interval). The free memory of the sample is the
    smallest of all instances; None entries are not measured.
    """
    server_errors = sum(one.server_errors for one in between.instances)
    known = [one for one in free_memory_bytes if one is not None]
    return Sample(
        at_s=between.at,
        interval_s=interval_s,
        accepted=kept(between.answered, server_errors),
        served=kept(between.answered, server_errors),
        refused=missed(between.refused, server_errors),
        came=between.accepted,
        waiting=between.waiting,
        free_memory_bytes=min(known, default=None),
        unanswered=between.refused,
        in_hand=between.unanswered,
        source=between.door,
        times={
            "response": between.response,
            "service": [pair for one in between.instances for pair in one.response],
        },
    )
