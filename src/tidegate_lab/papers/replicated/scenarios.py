"""§3.2: what two replicas deliver with good, bad and unfair distributions of clients.

    optimal            x = (1/2, 1/2)   y = (1/2, 1/2)
    worst              x = (1, 0)       y = (0, 1)
    locally unstable   x = (2/3, 1/3)   y = (1/3, 2/3)
    unfair             x = (2/3, 1/3)   y = (2/3, 1/3)

x are the shares of the producers at each replica, y those of the consumers. Each scenario runs
three times: without any control; with exchange of waiting messages only; and with the normal
control loop, which also migrates connected clients to the other replica.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from tidegate.core.topology import MemberRole
from tidegate.report.charts import ReportTable
from tidegate.simulation.figures import Line, Panel, draw_panels
from tidegate_lab.bench.compare import Processors
from tidegate_lab.bench.compare_report import Bar
from tidegate_lab.papers.replicated.cluster import (
    ClientSpeeds,
    Scale,
    StableRates,
    TestCluster,
    cluster,
    connect_client,
    disturbance,
    rates_of,
    two_replicas,
)
from tidegate_lab.papers.replicated.crew import ClientGroup, ClientSpec, client_group
from tidegate_lab.report import Drawing, ExperimentSection, Progress

PRODUCERS, CONSUMERS = 6, 12
# What producers offer, as a fraction of what both replicas can deliver.
OFFERED = 0.9
SETTLING_S = 2.0
REPAIRED = 0.9
STILL, EXCHANGE, MIGRATION = "held still", "exchange", "migration"
REPAIRS = (STILL, EXCHANGE, MIGRATION)
EXCHANGE_EVERY_S = 0.5


class ReplicaScenario(msgspec.Struct, frozen=True):
    """The number of producers and consumers at the first of two replicas."""

    name: str
    producers: int
    consumers: int


SCENARIOS = (
    ReplicaScenario("optimal", 3, 6),
    ReplicaScenario("worst", 6, 0),
    ReplicaScenario("locally unstable", 4, 4),
    ReplicaScenario("unfair", 4, 8),
)


class ScenarioResult(msgspec.Struct, frozen=True):
    """The measured rates of a scenario, and the distribution of clients at its end."""

    scenario: str
    repair: str
    rates: StableRates
    producers_at: dict[int, int]
    consumers_at: dict[int, int]


def scenario_clients(
    scenario: ReplicaScenario,
    cluster: TestCluster,
    queue: str,
    numbers: Sequence[int],
    speeds: ClientSpeeds,
) -> list[ClientSpec]:
    """Return the clients of a scenario, assigned to replicas."""
    first, second = numbers
    places = [
        *((MemberRole.CONSUMER, first),) * scenario.consumers,
        *((MemberRole.CONSUMER, second),) * (CONSUMERS - scenario.consumers),
        *((MemberRole.PRODUCER, first),) * scenario.producers,
        *((MemberRole.PRODUCER, second),) * (PRODUCERS - scenario.producers),
    ]
    return [
        connect_client(number, role, cluster, queue, speeds, replica=replica)
        for number, (role, replica) in enumerate(places)
    ]


def scenarios_section(scale: Scale, folder: Path, progress: Progress) -> ExperimentSection:
    """Run all scenarios on real nodes, and return the section about them."""
    outcomes: list[ScenarioResult] = []
    with cluster() as nodes:
        processors = Processors()
        for scenario in [one for one in SCENARIOS if one.name in scale.scenarios]:
            for repair in REPAIRS if scenario.name != "optimal" else (STILL,):
                outcome = _run(nodes, scenario, repair, scale)
                outcomes.append(outcome)
                progress(
                    f"{scenario.name}, {repair}: produced {outcome.rates.produced_per_s:,.0f}/s, "
                    f"consumed {outcome.rates.consumed_per_s:,.0f}/s"
                )
        others = processors.share_of_others()
    return _section(outcomes, scale, others, folder)


def _run(
    nodes: TestCluster, scenario: ReplicaScenario, repair: str, scale: Scale
) -> ScenarioResult:
    queue = f"{scenario.name}-{repair}".replace(" ", "-")
    scaling = two_replicas(scale.replica_rate_per_s)
    nodes.create(queue, scaling)
    if repair != MIGRATION:
        nodes.hold_still(queue, scaling)
    numbers = sorted(nodes.serving(queue))
    speeds = ClientSpeeds.offering(2 * OFFERED * scale.replica_rate_per_s, PRODUCERS, CONSUMERS)
    with client_group(nodes.control, queue) as crew:
        crew.come(scenario_clients(scenario, nodes, queue, numbers, speeds))
        crew.go()
        crew.begin()
        watch(crew, nodes, queue, SETTLING_S, exchange=repair == EXCHANGE)
        settled = len(crew.rows) - 1
        watch(crew, nodes, queue, scale.scenario_seconds, exchange=repair == EXCHANGE)
        rows = crew.rows[settled:]
        crew.leave()
        crew.settle()
    return ScenarioResult(
        scenario.name, repair, rates_of(rows), rows[-1].producers_at, rows[-1].consumers_at
    )


def watch(
    crew: ClientGroup, nodes: TestCluster, queue: str, seconds: float, *, exchange: bool
) -> None:
    """Sample the queue for `seconds`, and exchange waiting messages if `exchange` is true."""
    for _ in range(max(1, round(seconds / EXCHANGE_EVERY_S))):
        crew.watch(EXCHANGE_EVERY_S, EXCHANGE_EVERY_S)
        if exchange:
            nodes.exchange(queue, crew.replicas(), EXCHANGE_EVERY_S)


def _section(
    outcomes: list[ScenarioResult], scale: Scale, others: float, folder: Path
) -> ExperimentSection:
    consumed = {(one.scenario, one.repair): one.rates.consumed_per_s for one in outcomes}
    optimal = consumed["optimal", STILL]
    names = list(dict.fromkeys(one.scenario for one in outcomes))
    worse = max(consumed[name, STILL] for name in names[1:])
    draw_panels(
        [
            Panel(
                "Throughput of two replicas",
                "",
                "messages consumed a second",
                [
                    Line(
                        repair,
                        list(map(float, range(len(names)))),
                        # The optimal scenario runs without control only.
                        [consumed.get((name, repair), optimal) for name in names],
                    )
                    for repair in REPAIRS
                ],
                x_names=names,
                levels={"offered": 2 * OFFERED * scale.replica_rate_per_s},
            )
        ],
        folder / "scenarios.png",
        height_in=4.0,
    )
    return ExperimentSection(
        name="scenarios",
        title="Clients well and badly spread over two replicas",
        source="Replicated queues §3.2",
        paper=(
            "Best when clients are spread evenly; worst when one queue has all producers and the "
            "other all consumers; local instability and unfair load reduce it. No figures."
        ),
        ours=(
            f"Held still, the worst delivers {consumed['worst', STILL]:,.0f}/s of the optimal "
            f"{optimal:,.0f}/s; exchange brings it to {consumed['worst', EXCHANGE]:,.0f}/s, all "
            f"that the one replica with consumers may deliver; when clients go over, the least "
            f"of all is {min(consumed[name, MIGRATION] for name in names[1:]):,.0f}/s."
        ),
        drawings=[
            Drawing(
                "scenarios.png",
                f"{PRODUCERS} producers and {CONSUMERS} consumers with speeds; each replica may "
                f"deliver {scale.replica_rate_per_s:g} messages/s.",
            )
        ],
        tables=[
            ReportTable(
                f"Rates over {scale.scenario_seconds:g} s; where clients were in the end",
                ["scenario", "", "produced/s", "consumed/s", "producers", "consumers", "waiting"],
                [
                    [
                        one.scenario,
                        one.repair,
                        f"{one.rates.produced_per_s:,.0f}",
                        f"{one.rates.consumed_per_s:,.0f}",
                        _split(one.producers_at),
                        _split(one.consumers_at),
                        f"{one.rates.waiting_max:,}",
                    ]
                    for one in outcomes
                ],
            )
        ],
        bars=[
            Bar(
                "optimal, of the best of the others held still",
                optimal / max(worse, 1e-9),
                1.0,
                "×",
            ),
            Bar(
                "worst with exchange, of what one replica may deliver",
                consumed["worst", EXCHANGE] / scale.replica_rate_per_s,
                REPAIRED,
                "×",
            ),
            *(
                Bar(
                    f"{name} after migration, of the optimal",
                    consumed[name, MIGRATION] / optimal,
                    REPAIRED,
                    "×",
                )
                for name in names[1:]
            ),
        ],
        notes=[
            f"Replicas have a stated limit of {scale.replica_rate_per_s:g} messages/s each, since "
            "two cores do not show what two machines did.",
            *disturbance(others),
        ],
        data={"outcomes": msgspec.to_builtins(outcomes)},
    )


def _split(at: dict[int, int]) -> str:
    return " / ".join(str(count) for _, count in sorted(at.items())) or "–"
