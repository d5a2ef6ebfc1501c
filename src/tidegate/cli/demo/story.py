"""What happens in the demo, in which order, and what is promised.

`orders` is elastic and has an agreement: replicas of 40 messages a second each, on machines that
come and go. `archive` always has more to do than it is given, and its prefetch is steered to a rate
that changes with the hour: so the prefetch is excited, and what it is worth can be learned.

Chapters wait for what follows (a replica that serves, a share that shifts) rather than for a time;
times say how long one lasts at least and at most. The load is modest: a machine here is a tree of
processes, and two cores have to carry them all.
"""

from __future__ import annotations

from dataclasses import dataclass

ORDERS = "orders"
ARCHIVE = "archive"
REPLICAS_MAX = 4
# Of a replica of orders with its worker: four at a time, a tenth of a second each.
ORDERS_AT_ONCE = 4
ORDER_S = 0.1
CAPACITY_PER_S = ORDERS_AT_ONCE / ORDER_S
# How much longer a slow worker takes.
SLOWER = 3.0
ARCHIVED_AT_ONCE = 16
ARCHIVE_S = 0.1
# Where its prefetch begins, by hand; its node steers it from there.
ARCHIVE_PREFETCH = 4
SETTLE_S = 16.0
# The archive's slow worker, and how much longer that one takes.
ARCHIVE_SLOWER = 2.0
# Of what the archive is to do: how much more is put, so that there is always something to do.
ARCHIVE_AHEAD = 1.1
ARCHIVE_STOCK = 200
# Every so manieth order belongs to a customer whose orders stay in order, and so many there are.
GROUPED_EVERY = 16
GROUPS = 8

AGREEMENT = f"""\
name = "{ORDERS}"
queue = "{ORDERS}"
window = "5s"
objective = 0.9
period = "1h"
replicas = {{ min = 1, max = {REPLICAS_MAX} }}
capacity = {CAPACITY_PER_S:g}
sla_delta = 2

[metrics.wait_p99]
breach = "10s"
"""
ARCHIVE_AGREEMENT = f"""\
name = "{ARCHIVE}"
queue = "{ARCHIVE}"
window = "5s"
objective = 0.9
period = "1h"

[metrics.throughput]
breach = 15
"""
SETTINGS = f"""\
[node]
lease = "1s"
port = 0

[metrics]
port = 0

[fleet]
provider = "process"
slots = 2
warm = 1
lost = "1s"
list_interval = "500ms"
drain = "5s"

[telemetry]
interval = "500ms"
flush = "1s"
lifecycles_per_s = 200

[queues.{ORDERS}]
policy = "agreement"
agreement = "{ORDERS}.toml"
worker = "tidegate.cli.demo.workshop:orders"
polling_interval = "500ms"
inhibition = "3s"
cooldown_period = "6s"
prefetch = "keep-up"

[queues.{ARCHIVE}]
prefetch = {ARCHIVE_PREFETCH}
"""


@dataclass(frozen=True)
class Chapter:
    """One part of the story."""

    title: str
    # Messages a second: into orders at its end (it gets there evenly), and to a worker of archive.
    orders_per_s: float
    archive_per_s: float
    # How long it lasts at least, and how long what is to follow may take.
    seconds: float
    seconds_max: float
    told: str


@dataclass(frozen=True)
class Story:
    """All of it."""

    calm: Chapter
    ramp: Chapter
    burst: Chapter
    kill: Chapter
    slow: Chapter
    evening: Chapter

    @property
    def chapters(self) -> list[Chapter]:
        return [self.calm, self.ramp, self.burst, self.kill, self.slow, self.evening]


def story(pace: float = 1.0) -> Story:
    """The story; a pace of 0.5 tells it in about half the time."""

    def chapter(
        title: str, orders: float, archive: float, seconds: float, most: float, told: str
    ) -> Chapter:
        return Chapter(title, orders, archive, pace * seconds, most, told)

    # Hardly a steeper hill for whoever is in a hurry: what starts takes as long as it takes.
    hill_s = max(18.0 * pace, 13.0)
    return Story(
        calm=chapter(
            "a calm start",
            *(15.0, 40.0, 9.0, 60.0),
            f"one replica of {ORDERS} is enough for 15 messages a second; {ARCHIVE} works at 40/s",
        ),
        ramp=Chapter(
            "a ramp",
            *(100.0, 120.0, hill_s, 60.0),
            "more and more orders: up to 100/s, and a replica does 40/s",
        ),
        burst=chapter(
            "a burst",
            *(135.0, 25.0, 8.0, 30.0),
            f"135 orders a second at once; {ARCHIVE} is told to step back, to 25/s",
        ),
        kill=chapter(
            "a machine is killed",
            *(90.0, 100.0, 10.0, 40.0),
            "a machine dies with all that runs on it: kill -9, in the middle of work",
        ),
        slow=chapter(
            "a slow worker",
            *(90.0, 35.0, 14.0, 30.0),
            f"a worker of {ORDERS} takes {SLOWER:g} times as long; {ARCHIVE} gets a worker that "
            f"takes {ARCHIVE_SLOWER:g} times as long as the other",
        ),
        evening=chapter(
            "calm again",
            *(12.0, 70.0, 14.0, 60.0),
            "few orders are left: replicas go, and what is in them does not",
        ),
    )
