"""How evenly requests are spread over instances, from what the gateway noted.

    even      of those that are not ejected nobody has more than twice the mean in hand, and one
    herding   the share of all requests of a second that the busiest instance got

Strategy: one moment proves nothing, since requests come and go by chance; spread evenly is what was
even in nine of ten moments from then on.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.lab.tapas.gateway_process import Note

_MOST = 2.0
_SPARE = 1.0
_OF_MOMENTS = 0.9
# What is left at the end has to last, or nothing is said.
_LAST_S = 2.0


def is_even(note: Note) -> bool:
    in_hand = [count for count, out in zip(note.outstanding, note.ejected, strict=True) if not out]
    # An ejected one that still has requests in hand has them waiting for nothing.
    stuck = sum(count for count, out in zip(note.outstanding, note.ejected, strict=True) if out)
    if not in_hand or stuck:
        return False
    return max(in_hand) <= _MOST * sum(in_hand) / len(in_hand) + _SPARE


def even_after_s(notes: Sequence[Note], since: float) -> float | None:
    """Seconds until it is even for good; None: never, as far as was seen."""
    later = [note for note in notes if note.at >= since]
    if not later:
        return None
    ends_at = later[-1].at
    for position, note in enumerate(later):
        if ends_at - note.at < _LAST_S:
            return None
        rest = later[position:]
        if is_even(note) and sum(map(is_even, rest)) >= _OF_MOMENTS * len(rest):
            return note.at - since
    return None


def herding(notes: Sequence[Note], begin_s: float, end_s: float) -> float:
    """The mean over seconds of the busiest instance's share; 1 / instances is the least."""
    seen = [note for note in notes if begin_s <= note.at < end_s]
    shares = []
    before = seen[0] if seen else None
    for note in seen[1:]:
        assert before is not None
        if note.at - before.at < 1.0:
            continue
        sent = [now - then for now, then in zip(note.sent, before.sent, strict=True)]
        if sum(sent) > 0:
            shares.append(max(sent) / sum(sent))
        before = note
    return sum(shares) / len(shares) if shares else 0.0
