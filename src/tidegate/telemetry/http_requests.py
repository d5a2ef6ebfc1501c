"""Sampled HTTP requests, one in N: where each spent its time.

    arrived → wait for an instance → chosen → connect → sent → server → answered

Only the method, the status and times are kept. The path, query, headers and bodies are not
recorded. A door spends one comparison per request:

    samples.skip -= 1
    if samples.skip <= 0:
        samples.take(method, status, instance_id, (arrived, chosen, sent, answered))
"""

from __future__ import annotations

from tidegate.telemetry.recorder import Row
from tidegate.telemetry.sampler import Sampler

# Monotonic times in seconds: arrived, chosen, sent, answered. A phase that did not happen, as in a
# refused request, has length 0: its time equals the next one.
Cuts = tuple[float, float, float, float]

# Other methods are recorded as "other". A client may send any text as a method, and methods are
# grouping keys.
_METHODS = frozenset(
    ("CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE")
)
_OTHER = "other"


class HttpRequestSamples:
    """The requests that were chosen since the last tick."""

    __slots__ = ("_sampler", "_taken", "skip")

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._taken: list[tuple[str, int, int | None, int, Cuts]] = []
        # The number of requests until the next one is chosen.
        self.skip = sampler.skip

    def take(self, method: str, status: int, instance: int | None, cuts: Cuts) -> None:
        """Record the request that was just answered."""
        self._taken.append((method, status, instance, self._sampler.one_by_one(), cuts))
        self.skip = self._sampler.skip

    def tick(self, node: str, service: str, door: str, now: float, now_us: int) -> list[Row]:
        """End an interval, and return the rows of the requests chosen in it."""
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
