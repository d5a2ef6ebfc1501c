"""What doors saw of an HTTP service, as its agreement counts it.

    kept     = answered − server errors        answers of 500 and above keep nobody's promise, and
                                               are no throughput
    missed   = refused + server errors         turned away by the door, or answered so
    availability = kept / (kept + missed)
    came                                       load is what clients ask for, and not what is
                                               answered: an instance that hangs answers nobody
    unanswered = refused                       their clients wait for ever: no percentile of
                                               responses is shorter
    in hand                                    who waits still, by how long already: at the end of
                                               a window those beyond the breach are unanswered, too

Response times are those of clients, waiting in the door included; service times begin when a
request is sent to an instance. Plain arithmetic, so that the same functions take numbers and Spark
Columns: live loops make samples of it, the pipeline reads what was recorded.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.agreement.windows import Sample
from tidegate.core.hosting import DoorSample
from tidegate.core.term import Term


def kept(answered: Term, server_errors: Term) -> Term:
    """Requests that were answered as they should be."""
    return answered - server_errors


def missed(refused: Term, server_errors: Term) -> Term:
    """Requests that were not."""
    return refused + server_errors


def sample_of(
    between: DoorSample, interval_s: float, free_memory_bytes: Iterable[float | None] = ()
) -> Sample:
    """What one door saw in one interval (core.door_interval), and what instances have left."""
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
