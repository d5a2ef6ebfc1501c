"""Measures of how evenly the gateway distributes requests over instances, from its notes.

    even      no instance has more outstanding requests than twice the mean plus one, and an ejected
              instance has none; the mean is over the instances that are not ejected
    herding   the busiest instance's share of the requests of a second

A single moment proves nothing, because outstanding requests vary by chance. The distribution is
even from the first even moment on after which nine of ten moments are even.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.lab.tapas.gateway_process import Note

_MOST = 2.0
_SPARE = 1.0
_OF_MOMENTS = 0.9
# The result needs at least this many seconds of notes after it.
_LAST_S = 2.0


def is_even(note: Note) -> bool:
    """Return whether the outstanding requests of one note are distributed evenly."""
    in_hand = [count for count, out in zip(note.outstanding, note.ejected, strict=True) if not out]
    # Requests at an ejected instance still wait, so the distribution is not even yet.
    stuck = sum(count for count, out in zip(note.outstanding, note.ejected, strict=True) if out)
    if not in_hand or stuck:
        return False
    return max(in_hand) <= _MOST * sum(in_hand) / len(in_hand) + _SPARE


def even_after_s(notes: Sequence[Note], since: float) -> float | None:
    """Return the seconds from `since` until the distribution stays even.

    None means that it did not become even, or too close to the end of the notes.
    """
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
    """Return the busiest instance's share of a second's requests, as the mean of a period.

    The least possible value is 1 / instances; 0 means that there were no requests.
    """
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
