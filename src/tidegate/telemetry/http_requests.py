"""Single HTTP requests, one in N of them: where each spent its time.

    arrived → wait for an instance → chosen → connect → sent → server → answered

What a request asked for, its path and query, its headers and what it carried are nobody's business
here: a method, a status and times are all that is kept. A door asks for one comparison a request:

    samples.skip -= 1
    if samples.skip <= 0:
        samples.take(method, status, instance_id, (arrived, chosen, sent, answered))
"""

from __future__ import annotations

from tidegate.telemetry.recorder import Row
from tidegate.telemetry.sampler import Sampler

# Seconds by the monotonic clock: arrived, chosen, sent, answered. What never happened (a request
# that was turned away) lasted no time: the cut is that of the next.
Cuts = tuple[float, float, float, float]

# Whatever else somebody calls a method: names are for grouping, and anybody may invent any.
_METHODS = frozenset(
    ("CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE")
)
_OTHER = "other"


class HttpRequestSamples:
    """Requests that were taken since the last tick."""

    __slots__ = ("_sampler", "_taken", "skip")

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._taken: list[tuple[str, int, int | None, int, Cuts]] = []
        # How many are passed over before the next is taken.
        self.skip = sampler.skip

    def take(self, method: str, status: int, instance: int | None, cuts: Cuts) -> None:
        """The request that was just answered is the one."""
        self._taken.append((method, status, instance, self._sampler.one_by_one(), cuts))
        self.skip = self._sampler.skip

    def tick(self, node: str, service: str, door: str, now: float, now_us: int) -> list[Row]:
        """An interval is over: rows of the requests that were taken."""
        self._sampler.skip = self.skip
        self._sampler.tick()
        self.skip = self._sampler.skip
        taken, self._taken = self._taken, []
        return [
            (
                now_us - int(1e6 * (now - cuts[-1])),
                *(node, service, door, instance),
                *(method if method in _METHODS else _OTHER, status, float(weight)),
                *_phases_us(cuts),
            )
            for method, status, instance, weight, cuts in taken
        ]


def _phases_us(cuts: Cuts) -> Row:
    arrived_us, chosen_us, sent_us, answered_us = (1e6 * cut for cut in cuts)
    return (
        chosen_us - arrived_us,
        sent_us - chosen_us,
        answered_us - sent_us,
        answered_us - arrived_us,
    )
