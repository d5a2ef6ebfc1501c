"""The scenario of the demo: its steps, loads, agreements and settings.

`orders` is a logical queue with an agreement. Each replica handles 40 messages per second, on
machines that start and stop. `archive` always has more messages than its workers handle. Its
prefetch is controlled to a rate that changes in each step, so that the recorded data suffices to
learn a model.

A step waits for an effect, such as a replica that serves, and has a minimum and a maximum time. The
load is small, because each machine is a process tree on this computer, and two cores must suffice.
"""

from __future__ import annotations

from dataclasses import dataclass

ORDERS = "orders"
ARCHIVE = "archive"
REPLICAS_MAX = 4
# A replica of `orders` with its worker handles four messages at a time, in a tenth of a second
# each.
ORDERS_AT_ONCE = 4
ORDER_S = 0.1
CAPACITY_PER_S = ORDERS_AT_ONCE / ORDER_S
# How much longer the slow worker takes.
SLOWER = 3.0
ARCHIVED_AT_ONCE = 16
ARCHIVE_S = 0.1
# The initial prefetch of `archive`, before the node controls it.
ARCHIVE_PREFETCH = 4
SETTLE_S = 16.0
# How much longer the slow worker of `archive` takes.
ARCHIVE_SLOWER = 2.0
# The producers put more than the workers are to handle, by this factor, so that work never runs
# out.
ARCHIVE_AHEAD = 1.1
ARCHIVE_STOCK = 200
# Every sixteenth order belongs to one of eight message groups, whose order is checked.
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
worker = "tidegate.demo.workshop:orders"
polling_interval = "500ms"
inhibition = "3s"
cooldown_period = "6s"
prefetch = "keep-up"

[queues.{ARCHIVE}]
prefetch = {ARCHIVE_PREFETCH}
"""


@dataclass(frozen=True)
class ScenarioStep:
    """One step of the scenario."""

    title: str
    # Messages per second: into `orders` at the end of the step, and for each worker of `archive`.
    orders_per_s: float
    archive_per_s: float
    # The minimum duration, and the time limit for the effect.
    seconds: float
    seconds_max: float
    told: str


@dataclass(frozen=True)
class DemoScenario:
    """The steps of the scenario."""

    calm: ScenarioStep
    ramp: ScenarioStep
    burst: ScenarioStep
    kill: ScenarioStep
    slow: ScenarioStep
    evening: ScenarioStep

    @property
    def chapters(self) -> list[ScenarioStep]:
        return [self.calm, self.ramp, self.burst, self.kill, self.slow, self.evening]


def demo_scenario(pace: float = 1.0) -> DemoScenario:
    """Return the scenario; a pace of 0.5 takes about half the time."""

    def chapter(
        title: str, orders: float, archive: float, seconds: float, most: float, told: str
    ) -> ScenarioStep:
        return ScenarioStep(title, orders, archive, pace * seconds, most, told)

    # The ramp stays almost as long at a faster pace, because processes start no faster.
    hill_s = max(18.0 * pace, 13.0)
    return DemoScenario(
        calm=chapter(
            "a calm start",
            *(15.0, 40.0, 9.0, 60.0),
            f"one replica of {ORDERS} is enough for 15 messages a second; {ARCHIVE} works at 40/s",
        ),
        ramp=ScenarioStep(
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
