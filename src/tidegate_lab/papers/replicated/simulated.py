"""Two replicas at the paper's rates in virtual time, for `tidegate lab run … --simulate`.

The simulation combines a plant (model of replicas and clients) with the product's own control loop.
Producers put at the paper's rates, and each replica delivers the paper's capacity. The loop's
actions are executed in full (`steered`), in part (`exchange`: only waiting messages move) or not at
all (`held still`).

Rates are inputs. The results are ratios between runs that differ in who places the clients: the
experiment, for given placements (`seat`), or the product's law of election, client by client.
Figures 4 to 7 concern one real queue and its store; a simulation would add nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from tidegate.control.queues.autoscaler import Autoscaler
from tidegate.core.decisions import Exchange
from tidegate.core.topology import MemberRole, Range, Scaling, ScalingPolicy
from tidegate.report.charts import ReportTable
from tidegate.simulation.figures import Line, Panel, draw_panels, draw_rows
from tidegate.simulation.plant import PlantSettings, SimulatedPlant
from tidegate_lab.bench.compare_report import Bar
from tidegate_lab.papers.replicated.cluster import (
    StableRates,
    median_placement,
    rates_of,
    series_of,
)
from tidegate_lab.papers.replicated.crew import QueueTotalsRow
from tidegate_lab.papers.replicated.distribution import (
    PAPER_DEFAULT_PER_MS,
    PAPER_ELECTED_PER_MS,
    PAPER_GAIN,
    WITHIN,
    election_table,
    over_exchange_in_words,
)
from tidegate_lab.papers.replicated.growth import (
    CAPACITY_CLIENTS,
    CLIENTS,
    DYNAMIC,
    PAPER_CLIENT_EVERY_S,
    PAPER_DYNAMIC_PER_MS,
    PAPER_SECOND_QUEUE_S,
    PAPER_STATIC_PER_MS,
    PAPER_TIMES,
    STATIC,
)
from tidegate_lab.papers.replicated.scenarios import (
    CONSUMERS,
    EXCHANGE,
    MIGRATION,
    PRODUCERS,
    REPAIRED,
    REPAIRS,
    SCENARIOS,
    STILL,
)
from tidegate_lab.report import Drawing, ExperimentSection, Progress

QUEUE = "orders"
# Figures 8 and 9: two queues with four producers deliver 0.35 messages/ms.
DISTRIBUTED_PER_S = 350.0
# Figures 10 and 11: a single queue delivers at most 1.9 messages/ms.
SINGLE_PER_S = 1900.0
# The time to launch a server on a free machine; the paper does not state it.
START_S = 5.0
CONSUMER_ROOM = 1.05
POLLING_S = 1.0
RUN_S = 114.0
AFTERWARDS_S = 100.0


class SimulatedRun:
    """A plant with its control loop, and one sample per second."""

    def __init__(self, scaling: Scaling, settings: PlantSettings, producer_per_s: float) -> None:
        self.plant = SimulatedPlant(QUEUE, settings, slots=1, seed="replicated queues")
        self._settings = settings
        self._producer_per_s = producer_per_s
        self._autoscaler = Autoscaler(scaling)
        self.plant.has_clients = True
        self.plant.pending = scaling.replicas.min
        self._place(at_once=True)
        self.plant.tick(1e-3, 0.0, settings.capacity_per_s)
        self.rows: list[QueueTotalsRow] = [self._row()]

    def seat(self, number: int, producers: int, consumers: int) -> None:
        """Place clients at a replica, regardless of the law of election."""
        replica = self.plant.replicas[number]
        replica.producers, replica.consumers = producers, consumers

    def join(self, roles: Iterable[MemberRole]) -> None:
        """Add clients one by one, each at the replica that the law of election chooses."""
        for role in roles:
            self.plant.change_clients(role, 1)

    @property
    def placed(self) -> list[tuple[int, int]]:
        """The number of producers and consumers at each replica."""
        return [(one.producers, one.consumers) for one in self.plant.replicas.values()]

    def run(self, seconds: float, repair: str) -> None:
        """Simulate `seconds`, and execute the loop's actions as far as `repair` allows."""
        for _ in range(round(seconds / POLLING_S)):
            producers = sum(one.producers for one in self.plant.replicas.values())
            expected = producers * self._producer_per_s * POLLING_S
            self.plant.tick(POLLING_S, expected, self._settings.capacity_per_s)
            decision = self._autoscaler.decide(self.plant.sample())
            for action in decision.actions:
                if repair == MIGRATION or (repair == EXCHANGE and isinstance(action, Exchange)):
                    self.plant.execute(action)
            self._place(at_once=False)
            self.rows.append(self._row())

    def _place(self, *, at_once: bool) -> None:
        """Give each ordered replica a free machine."""
        while self.plant.pending:
            machine = self.plant.machines.boot(1, self.plant.now, at_once=True)
            self.plant.place(machine.machine_id, at_once=at_once)

    def _row(self) -> QueueTotalsRow:
        plant = self.plant
        replicas = plant.replicas.values()
        return QueueTotalsRow(
            at_s=plant.now,
            produced=plant.arrived,
            consumed=plant.consumed,
            waiting=plant.waiting,
            unacknowledged=plant.in_service,
            clients=sum(one.producers + one.consumers for one in replicas),
            producers_at={one.number: one.producers for one in replicas},
            consumers_at={one.number: one.consumers for one in replicas},
        )


def _two(producers: int, consumers: int, offered_per_s: float) -> SimulatedRun:
    return SimulatedRun(
        Scaling(replicas=Range(2, 2), policy=ScalingPolicy.CLIENTS, polling_interval_s=POLLING_S),
        PlantSettings(
            capacity_per_s=CONSUMER_ROOM * offered_per_s / 2,
            consumer_per_s=CONSUMER_ROOM * offered_per_s / consumers,
            poisson=False,
        ),
        offered_per_s / producers,
    )


def scenarios_section(folder: Path, progress: Progress) -> ExperimentSection:
    """Simulate the scenarios of §3.2, and return the section about them."""
    found: dict[tuple[str, str], StableRates] = {}
    for scenario in SCENARIOS:
        for repair in REPAIRS:
            run = _two(PRODUCERS, CONSUMERS, DISTRIBUTED_PER_S)
            run.seat(1, scenario.producers, scenario.consumers)
            run.seat(2, PRODUCERS - scenario.producers, CONSUMERS - scenario.consumers)
            run.run(RUN_S, repair)
            found[scenario.name, repair] = rates_of(run.rows)
    consumed = {key: rates.consumed_per_s for key, rates in found.items()}
    optimal = consumed["optimal", STILL]
    worse = max(consumed[one.name, STILL] for one in SCENARIOS[1:])
    names = [one.name for one in SCENARIOS]
    draw_panels(
        [
            Panel(
                "Throughput of two replicas, simulated",
                "",
                "messages consumed a second",
                [
                    Line(
                        repair,
                        list(map(float, range(len(names)))),
                        [consumed[name, repair] for name in names],
                    )
                    for repair in REPAIRS
                ],
                x_names=names,
                levels={"offered": DISTRIBUTED_PER_S},
            )
        ],
        folder / "scenarios.png",
        height_in=4.0,
    )
    one_replica = CONSUMER_ROOM * DISTRIBUTED_PER_S / 2
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
            f"{optimal:,.0f}/s; exchange brings it to {consumed['worst', EXCHANGE]:,.0f}/s, and "
            f"steered it delivers {consumed['worst', MIGRATION]:,.0f}/s."
        ),
        drawings=[Drawing("scenarios.png", f"{PRODUCERS} producers, {CONSUMERS} consumers.")],
        tables=[_table(found)],
        bars=[
            Bar("optimal, of the best of the others held still", optimal / worse, 1.0, "×"),
            Bar(
                "worst with exchange, of what one replica may deliver",
                consumed["worst", EXCHANGE] / one_replica,
                REPAIRED,
                "×",
            ),
            *(
                Bar(
                    f"{name} with migration, of the optimal",
                    consumed[name, MIGRATION] / optimal,
                    REPAIRED,
                    "×",
                )
                for name in names[1:]
            ),
        ],
        notes=[
            "Placements are given, as the paper gives them, and so are rates: "
            f"{DISTRIBUTED_PER_S / 1e3:.2f} messages/ms offered. What is found is what is left of "
            "that when nothing, messages alone, or clients too are moved.",
        ],
        data={"rates": {", ".join(key): msgspec.to_builtins(one) for key, one in found.items()}},
    )


def _table(found: dict[tuple[str, str], StableRates]) -> ReportTable:
    return ReportTable(
        "Means in virtual time, without the first and last 5 s",
        ["scenario", "", "produced/s", "consumed/s", "waiting at most"],
        [
            [
                *key,
                f"{rates.produced_per_s:,.0f}",
                f"{rates.consumed_per_s:,.0f}",
                f"{rates.waiting_max:,}",
            ]
            for key, rates in found.items()
        ],
    )


def distributed() -> dict[tuple[str, str], SimulatedRun]:
    """Return runs with four producers and eight consumers, in the median placement or elected."""
    producers, consumers = median_placement(4, 8)
    runs: dict[tuple[str, str], SimulatedRun] = {}
    for repair in (STILL, EXCHANGE):
        run = runs["as they came", repair] = _two(4, 8, DISTRIBUTED_PER_S)
        run.seat(1, producers, consumers)
        run.seat(2, 4 - producers, 8 - consumers)
    elected = runs["elected", MIGRATION] = _two(4, 8, DISTRIBUTED_PER_S)
    # In the order of the real experiment (distribution.py).
    elected.join([MemberRole.CONSUMER] * 8 + [MemberRole.PRODUCER] * 4)
    return runs


def distribution_section(folder: Path, progress: Progress) -> ExperimentSection:
    """Simulate figures 8 and 9 at the paper's rates, and return the section about them."""
    runs = distributed()
    elected_at = runs["elected", MIGRATION].placed
    for (_, repair), run in runs.items():
        run.run(RUN_S, repair)
    found = {key: rates_of(run.rows) for key, run in runs.items()}
    default, elected = found["as they came", STILL], found["elected", MIGRATION]
    exchanged = found["as they came", EXCHANGE]
    gain = elected.consumed_per_s / default.consumed_per_s
    over_exchange = elected.consumed_per_s / exchanged.consumed_per_s
    draw_panels(
        [
            _rates_panel(
                ", ".join(key) if key[1] == EXCHANGE else key[0],
                run.rows,
                {"the paper's default: below 0.30/ms": 1e3 * PAPER_DEFAULT_PER_MS}
                if key[0] == "as they came"
                else {"the paper's optimised: 0.35/ms": 1e3 * PAPER_ELECTED_PER_MS},
                y_label="messages a second" if key[1] == STILL else "",
            )
            for key, run in runs.items()
        ],
        folder / "fig8.png",
        same_scale=True,
    )
    return ExperimentSection(
        name="fig8",
        title="Clients spread as they came, and elected",
        source="Replicated queues §7.4, figures 8 and 9",
        paper="JORAM's default: below 0.30 messages/ms; optimised: both rates at 0.35.",
        ours=(
            f"{default.consumed_per_s / 1e3:.2f} messages/ms as they came and held still, "
            f"{elected.consumed_per_s / 1e3:.2f} elected: {gain:.2f} times as much. "
            + over_exchange_in_words(over_exchange)
        ),
        drawings=[
            Drawing("fig8.png", "4 producers with 10,000 messages each take 114 s at this rate.")
        ],
        tables=[_table(found), election_table(gain, over_exchange)],
        bars=[
            Bar(
                "elected: production and consumption differ by, of the larger",
                elected.imbalance,
                WITHIN,
                "",
                at_most=True,
            ),
            Bar("consumption of elected clients, of those as they came", gain, PAPER_GAIN, "×"),
        ],
        notes=[
            "As they came: the middle one of all random arrivals, whatever the role.",
            "Elected: the product's law of election placed the clients one by one, consumers "
            "first: "
            + " and ".join(f"{puts} producers, {takes} consumers" for puts, takes in elected_at)
            + ".",
            f"Put in, not found: {DISTRIBUTED_PER_S / 1e3:.2f} messages/ms from all producers, and "
            f"{CONSUMER_ROOM:g} times that as what both replicas, and all consumers, can take. "
            "That elected clients are served at the offered rate, and the ratios, are found.",
        ],
        data={
            "gain": gain,
            "over_exchange": over_exchange,
            "rates": {", ".join(key): msgspec.to_builtins(one) for key, one in found.items()},
        },
    )


def _rates_panel(
    title: str,
    rows: Sequence[QueueTotalsRow],
    levels: Mapping[str, float],
    moments: Mapping[str, float] | None = None,
    y_label: str = "messages a second",
) -> Panel:
    series = series_of(rows)
    return Panel(
        title,
        "seconds",
        y_label,
        [
            Line("produced", series.at_s, series.produced_per_s, colour="#1f6fb2"),
            Line("consumed", series.at_s, series.consumed_per_s, colour="#2f9e6e"),
        ],
        levels=levels,
        moments=moments or {},
    )


def growth_section(folder: Path, progress: Progress) -> ExperimentSection:
    """Simulate figures 10 and 11 at the paper's rates, and return the section about them."""
    runs = {label: _grown(label) for label in (STATIC, DYNAMIC)}
    ends = {label: _end(run.rows) for label, run in runs.items()}
    times = ends[DYNAMIC] / ends[STATIC]
    second = next(
        (row for row in runs[DYNAMIC].rows if row.producers_at.get(2) or row.consumers_at.get(2)),
        None,
    )
    draw_rows(
        [
            _rates_panel(
                f"{STATIC} provisioning",
                runs[STATIC].rows,
                {"the paper: 1.9/ms": 1e3 * PAPER_STATIC_PER_MS},
            ),
            _rates_panel(
                f"{DYNAMIC} provisioning",
                runs[DYNAMIC].rows,
                {"the paper: 3.7/ms": 1e3 * PAPER_DYNAMIC_PER_MS},
                {"the paper's second queue": PAPER_SECOND_QUEUE_S},
            ),
        ],
        folder / "fig10.png",
        same_scale=True,
    )
    return ExperimentSection(
        name="fig10",
        title="Static and dynamic provisioning as clients come",
        source="Replicated queues §7.5, figures 10 and 11",
        paper="Static 1.9 messages/ms; dynamic 3.7 after a second queue at about 120 s.",
        ours=(
            f"Static {ends[STATIC] / 1e3:.2f} messages/ms, dynamic {ends[DYNAMIC] / 1e3:.2f}: "
            f"{times:.2f} times as much. "
            + (
                "A second replica never had a client."
                if second is None
                else f"The second replica had its first client at {second.at_s:.0f} s."
            )
        ),
        drawings=[Drawing("fig10.png", "One client each 10 s, as in the paper.")],
        bars=[
            Bar("throughput, dynamic of static", times, PAPER_TIMES, "×"),
            Bar(
                "clients that had come when the second replica had one",
                None if second is None else float(second.clients),
                float(CAPACITY_CLIENTS + 2),
                "",
                at_most=True,
            ),
        ],
        notes=[
            f"Put in, not found: {SINGLE_PER_S / 1e3:.1f} messages/ms as what one replica "
            "delivers, so a static queue ends there and two replicas can bring at most twice as "
            "much. Found is that the law adds the second in time and that clients spread over "
            "both so that neither is short of any: the ratio.",
            "The paper's own numbers do not fit together here: at 1.9 messages/ms all 50,000 "
            "messages are gone after 26 s, before the third client comes. Clients do not stop.",
            f"C = {CAPACITY_CLIENTS}: one queue is full after the second step, as in figure 10. "
            "The paper's second queue came at about 120 s, two steps later than L_c ≥ 1 has it.",
        ],
        data={
            "times": times,
            "series": {
                label: msgspec.to_builtins(series_of(run.rows)) for label, run in runs.items()
            },
        },
    )


def _grown(label: str) -> SimulatedRun:
    run = SimulatedRun(
        Scaling(
            replicas=Range(1, 1 if label == STATIC else 2),
            policy=ScalingPolicy.CLIENTS,
            capacity_clients=float(CAPACITY_CLIENTS),
            polling_interval_s=POLLING_S,
        ),
        PlantSettings(
            capacity_per_s=SINGLE_PER_S,
            consumer_per_s=CONSUMER_ROOM * SINGLE_PER_S / 4,
            start_s=START_S,
            poisson=False,
        ),
        SINGLE_PER_S / 2,
    )
    for number in range(CLIENTS):
        run.join([MemberRole.PRODUCER if number % 3 == 0 else MemberRole.CONSUMER])
        run.run(PAPER_CLIENT_EVERY_S, MIGRATION)
    run.run(AFTERWARDS_S, MIGRATION)
    return run


def _end(rows: Sequence[QueueTotalsRow]) -> float:
    half = [row for row in rows if row.at_s >= rows[-1].at_s - AFTERWARDS_S / 2]
    return (half[-1].consumed - half[0].consumed) / (half[-1].at_s - half[0].at_s)


SIMULATED: dict[str, Callable[[Path, Progress], ExperimentSection]] = {
    "scenarios": scenarios_section,
    "fig8": distribution_section,
    "fig10": growth_section,
}
