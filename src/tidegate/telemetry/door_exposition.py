"""The metrics of an HTTP service's door as Prometheus text.

Three tables define the metrics of the door, of each instance behind it, and of each agreement with
a known status. All values come from the door's newest sample, so a scrape costs no time on the path
of requests. Only ejections are counted here, because a sample says that an instance is ejected but
not how often.

    metrics.take(sample, statuses)     every second
    metrics.text()                     b"# HELP tidegate_http_requests_total …"

The buckets are those of nodes. A door reports no sums of durations. `_sum` therefore takes each
duration as the middle of its bucket.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from tidegate.core.hosting import DoorSample, InstanceSample
from tidegate.core.hosting import Durations as Bounds
from tidegate.telemetry.exposition import Shown, head, joined, label_text, lines_of, table_row
from tidegate.telemetry.histogram import LARGEST_S, upper_bound_s
from tidegate.telemetry.numbers import Durations

# The middle of a bucket, as a fraction of its upper bound.
_MIDDLE = (1.0 + upper_bound_s(0) / upper_bound_s(1)) / 2.0


class StandingNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """The status of one agreement."""

    agreement: str
    # One of "met", "warned", "breached" and "no_data".
    verdict: str
    budget_left: float
    burn_rate: float | None = None


class InstanceNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """The door's sample of an instance, and the number of its ejections."""

    seen: InstanceSample
    ejections: int = 0


VERDICTS = ("met", "warned", "breached", "no_data")

DOOR_METRICS: tuple[Shown[DoorSample], ...] = (
    Shown(
        "tidegate_http_requests_total",
        "counter",
        "Requests that the door let in.",
        lambda door: door.accepted,
    ),
    Shown(
        "tidegate_http_answered_total",
        "counter",
        "Whole answers of instances that went to clients.",
        lambda door: door.answered,
    ),
    Shown(
        "tidegate_http_refused_total",
        "counter",
        "Requests whose client got no whole answer of an instance: turned away, or cut off.",
        lambda door: door.refused,
    ),
    Shown(
        "tidegate_http_in_flight_requests",
        "gauge",
        "Requests that the door has in hand.",
        lambda door: door.in_flight,
    ),
    Shown(
        "tidegate_http_waiting_requests",
        "gauge",
        "Of those, how many wait in the door for an instance.",
        lambda door: door.waiting,
    ),
    Shown(
        "tidegate_http_response_seconds",
        "histogram",
        "From a request to the end of its answer, as clients see it.",
        lambda door: durations_of(door.response),
    ),
    Shown(
        "tidegate_http_instances",
        "gauge",
        "Instances that the door knows, spare and ejected ones too.",
        lambda door: len(door.instances),
    ),
    Shown(
        "tidegate_http_troubled",
        "gauge",
        "1 while there is something that the door cannot do.",
        lambda door: bool(door.trouble),
    ),
)

INSTANCE_METRICS: tuple[Shown[InstanceNumbers], ...] = (
    Shown(
        "tidegate_http_instance_outstanding_requests",
        "gauge",
        "Requests that the instance has not answered.",
        lambda one: one.seen.outstanding,
    ),
    Shown(
        "tidegate_http_instance_sent_total",
        "counter",
        "Requests sent to the instance.",
        lambda one: one.seen.sent,
    ),
    Shown(
        "tidegate_http_instance_answered_total",
        "counter",
        "Requests that it answered.",
        lambda one: one.seen.answered,
    ),
    Shown(
        "tidegate_http_instance_server_errors_total",
        "counter",
        "Of those, how many with 500 and above.",
        lambda one: one.seen.server_errors,
    ),
    Shown(
        "tidegate_http_instance_failed_total",
        "counter",
        "Requests without a whole answer of it.",
        lambda one: one.seen.failed,
    ),
    Shown(
        "tidegate_http_instance_service_seconds",
        "histogram",
        "From sending a request to it to the end of its answer.",
        lambda one: durations_of(one.seen.response),
    ),
    Shown(
        "tidegate_http_instance_ejected",
        "gauge",
        "1 while the instance is out of the balancing.",
        lambda one: one.seen.ejected is not None,
    ),
    Shown(
        "tidegate_http_instance_ejections_total",
        "counter",
        "How often it went out of it.",
        lambda one: one.ejections,
    ),
)

STANDING_METRICS: tuple[Shown[StandingNumbers], ...] = (
    Shown(
        "tidegate_agreement_budget_left",
        "gauge",
        "What is left of the error budget: 1 untouched, below 0 overdrawn.",
        lambda one: one.budget_left,
    ),
    Shown(
        "tidegate_agreement_burn_rate",
        "gauge",
        "How many times faster than allowed it was used in the last hour; 0 without data.",
        lambda one: one.burn_rate or 0.0,
    ),
)

RESPONSES: Shown[int] = Shown(
    "tidegate_http_responses_total",
    "counter",
    "Answers that clients got by the class of their status, those of the door itself too.",
    lambda count: count,
)
VERDICT: Shown[bool] = Shown(
    "tidegate_agreement_verdict",
    "gauge",
    "1 for the verdict on the newest window, 0 for the others.",
    lambda holds: holds,
)


class DoorExposition:
    """The newest sample of one door, its ejection counts and the status of its agreements."""

    def __init__(self) -> None:
        self._sample: DoorSample | None = None
        self._standings: tuple[StandingNumbers, ...] = ()
        self._ejections: dict[int, int] = {}

    def take(self, sample: DoorSample, standings: Iterable[StandingNumbers] = ()) -> None:
        """Store the newest sample of the door, and the status of its agreements if known."""
        was_out = (
            {one.instance_id: one.ejected is not None for one in self._sample.instances}
            if self._sample
            else {}
        )
        self._ejections = {
            one.instance_id: self._ejections.get(one.instance_id, 0)
            + (one.ejected is not None and not was_out.get(one.instance_id, False))
            for one in sample.instances
        }
        self._sample, self._standings = sample, tuple(standings)

    def text(self) -> bytes:
        """Return all metrics as text; empty before the first sample."""
        sample = self._sample
        return b"" if sample is None else joined(list(self._lines(sample)))

    def _lines(self, sample: DoorSample) -> Iterator[str]:
        of_door = {"service": sample.service, "door": sample.door}
        labels = label_text(of_door)
        for shown in DOOR_METRICS:
            yield from head(shown)
            yield from lines_of(shown.name, labels, shown.read(sample))
        yield from _by_label(RESPONSES, of_door, "class", sample.by_class)
        instances = [
            (
                label_text({**of_door, "instance": str(one.instance_id)}),
                InstanceNumbers(seen=one, ejections=self._ejections[one.instance_id]),
            )
            for one in sample.instances
        ]
        for of_instance in INSTANCE_METRICS:
            yield from head(of_instance)
            for labels, numbers in instances:
                yield from lines_of(of_instance.name, labels, of_instance.read(numbers))
        if self._standings:
            yield from _standing_lines(self._standings)


def _standing_lines(standings: Iterable[StandingNumbers]) -> Iterator[str]:
    for shown in STANDING_METRICS:
        yield from head(shown)
        for one in standings:
            labels = label_text({"agreement": one.agreement})
            yield from lines_of(shown.name, labels, shown.read(one))
    yield from head(VERDICT)
    for one in standings:
        for verdict in VERDICTS:
            labels = label_text({"agreement": one.agreement, "verdict": verdict})
            yield from lines_of(VERDICT.name, labels, VERDICT.read(verdict == one.verdict))


def _by_label(
    shown: Shown[int], labels: Mapping[str, str], name: str, counts: Mapping[str, int]
) -> Iterator[str]:
    if counts:
        yield from head(shown)
    for value, count in sorted(counts.items()):
        yield from lines_of(shown.name, label_text({**labels, name: value}), shown.read(count))


def durations_of(bounds: Bounds) -> Durations:
    """Return durations, given as pairs of upper bound and count, as a histogram."""
    return Durations(
        count=sum(count for _, count in bounds),
        buckets=list(bounds),
        sum_s=sum(_MIDDLE * min(bound_s, LARGEST_S) * count for bound_s, count in bounds),
    )


def table() -> str:
    """Return the metrics as a Markdown table for the docs."""
    of_door, of_instance = "`service`, `door`", "`service`, `door`, `instance`"
    rows = ["| metric | kind | labels | what it says |", "|---|---|---|---|"]
    rows += [table_row(shown, of_door) for shown in DOOR_METRICS]
    rows.append(table_row(RESPONSES, f"{of_door}, `class`"))
    rows += [table_row(shown, of_instance) for shown in INSTANCE_METRICS]
    rows += [table_row(shown, "`agreement`") for shown in STANDING_METRICS]
    rows.append(table_row(VERDICT, "`agreement`, `verdict`"))
    return "\n".join(rows)
