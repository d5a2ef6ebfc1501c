"""Comparisons in pairs: measurements, their bounds, and rows of tables.

The side `plain` is HAProxy with a static configuration. The side `ours` is HAProxy under Tidegate's
control: the door alone (`overhead`), or all of `tidegate host` (`whole`).

Each side is started for its turn and stopped after it, so that no part of it runs while the other
side is measured. The pairs of a case alternate between its numbers of instances. The two sides of a
pair have the same number. The bound of a case is over all pairs, so that differences between the
numbers of instances widen it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import count, islice

import msgspec

from tidegate.lab.bench.bars import Bar
from tidegate.lab.peers.server import ServerFailed
from tidegate.lab.report.experiments import Progress
from tidegate.lab.tapas.pairs import mean_ratio, ratio_at_least, ratio_at_most
from tidegate.lab.tapas.passage import passage
from tidegate.lab.tapas.plan import PairCase, PairLength
from tidegate.lab.tapas.ways import Entrance
from tidegate.report.chart import Table

RESPONSE_BAR = 1.03
THROUGHPUT_BAR = 0.99
_US = 1_000_000.0

# Opens a door in front of the given number of instances.
Side = Callable[[int], AbstractContextManager[Entrance]]


@dataclass(frozen=True)
class Sides:
    """Functions that open the two sides."""

    plain: Side
    ours: Side


class Pairs(msgspec.Struct, frozen=True):
    """The results of the pairs of one case."""

    case: PairCase
    # For each pair: the number of instances, and the ratios `ours` over `plain`.
    instances: list[int]
    response: list[float]
    throughput: list[float]
    ours_failed: int = 0
    plain_failed: int = 0
    # Processor seconds of all processes of the door per request.
    plain_processor_s: list[float] = []
    ours_processor_s: list[float] = []

    @property
    def title(self) -> str:
        return self.case.title

    @property
    def failed(self) -> int:
        """The failed requests of both sides, which make a door look faster."""
        return self.ours_failed + self.plain_failed

    def before(self, instances: int) -> Pairs:
        """Return the pairs with this number of instances."""
        chosen = [at for at, count in enumerate(self.instances) if count == instances]
        return msgspec.structs.replace(
            self,
            case=msgspec.structs.replace(self.case, instances=(instances,)),
            instances=[instances] * len(chosen),
            response=[self.response[at] for at in chosen],
            throughput=[self.throughput[at] for at in chosen],
            plain_processor_s=[self.plain_processor_s[at] for at in chosen],
            ours_processor_s=[self.ours_processor_s[at] for at in chosen],
        )


def turns_of(case: PairCase) -> Iterator[tuple[int, bool]]:
    """Yield the number of instances of each pair, and whether `ours` is measured first.

    Each side is first in half of the pairs, also for each number of instances.
    """
    for turn in count():
        for place, instances in enumerate(case.instances):
            yield instances, (turn + place) % 2 == 1


def paired(case: PairCase, length: PairLength, sides: Sides, progress: Progress) -> Pairs:
    """Measure the pairs of a case; `ServerFailed` means that no request was answered."""
    found = Pairs(case, [], [], [])
    ours_failed = plain_failed = 0
    for number, (instances, ours_first) in enumerate(islice(turns_of(case), length.pairs)):
        pair = {
            is_ours: passage(
                (sides.ours if is_ours else sides.plain)(instances),
                *(case.clients, length.seconds, length.warm_s),
            )
            for is_ours in (ours_first, not ours_first)
        }
        ours, plain = pair[True], pair[False]
        ours_failed += ours.failed
        plain_failed += plain.failed
        if not (ours.requests and plain.requests):
            raise ServerFailed(f"{found.title}: nothing got through in {length.seconds:g} s")
        found.instances.append(instances)
        found.response.append(ours.response_s / plain.response_s)
        found.throughput.append(ours.throughput_per_s / plain.throughput_per_s)
        found.plain_processor_s.append(plain.processor_s_per_request)
        found.ours_processor_s.append(ours.processor_s_per_request)
        progress(
            f"{found.title}, pair {number + 1} of {length.pairs} ({instances}): response × "
            f"{found.response[-1]:.3f}, throughput × {found.throughput[-1]:.3f}"
        )
    return msgspec.structs.replace(found, ours_failed=ours_failed, plain_failed=plain_failed)


def said_of(pairs: Sequence[Pairs]) -> str:
    """Return the mean ratios and bounds of each case as text."""
    return "; ".join(
        f"{one.title}: response × {mean_ratio(one.response):.3f} "
        f"(at most {ratio_at_most(one.response):.3f}), throughput × "
        f"{mean_ratio(one.throughput):.3f} (at least {ratio_at_least(one.throughput):.3f})"
        for one in pairs
    )


def pair_bars(pairs: Sequence[Pairs]) -> list[Bar]:
    """Return the issue's bars: at most 3 % longer responses and 1 % less throughput."""
    bars = []
    for one in pairs:
        bars.append(
            Bar(
                f"response, {one.title}: ours over plain HAProxy, at most",
                ratio_at_most(one.response),
                RESPONSE_BAR,
                "×",
                at_most=True,
                beyond_the_issue=not one.case.is_barred,
            )
        )
        bars.append(
            Bar(
                f"throughput, {one.title}: ours over plain HAProxy, at least",
                ratio_at_least(one.throughput),
                THROUGHPUT_BAR,
                "×",
                beyond_the_issue=not one.case.is_barred,
            )
        )
    return bars


def failed_bar(pairs: Sequence[Pairs], others: int = 0) -> Bar:
    """Return the bar on failed requests, because a door that fails requests does less work."""
    total = others + sum(one.failed for one in pairs)
    return Bar("requests failed", total, 0, "", at_most=True, beyond_the_issue=True)


def pair_table(pairs: Sequence[Pairs]) -> Table:
    """Return a table with a row for all pairs of a case and for each number of instances."""
    return Table(
        "HAProxy under our control over plain HAProxy, by pairs",
        (
            *("", "pairs", "response", "at most", "throughput", "at least"),
            *("processor for a request, plain", "ours"),
        ),
        [
            (
                row.title,
                str(len(row.response)),
                f"× {mean_ratio(row.response):.3f}",
                f"× {ratio_at_most(row.response):.3f}",
                f"× {mean_ratio(row.throughput):.3f}",
                f"× {ratio_at_least(row.throughput):.3f}",
                _worded(row.plain_processor_s),
                _worded(row.ours_processor_s),
            )
            for one in pairs
            for row in _rows(one)
        ],
    )


def _rows(pairs: Pairs) -> list[Pairs]:
    """Return all pairs together, then the pairs of each number of instances."""
    counts = pairs.case.instances if len(pairs.case.instances) > 1 else ()
    return [pairs, *(pairs.before(count) for count in counts if count in pairs.instances)]


def _worded(processor_s: Sequence[float]) -> str:
    """Return the mean as text; empty if it was not measured."""
    mean_s = statistics.fmean(processor_s)
    return f"{mean_s * _US:.0f} µs" if mean_s else ""
