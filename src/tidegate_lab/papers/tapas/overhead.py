"""Figures 15, 16, 19 and 20: the cost of several doors with one to four instances.

The shop has no service time and the clients never pause, so that the processor is the limit and
each microsecond of a door is visible. Clients, door and instances share two cores. More instances
are therefore not faster, and doors are compared at the same number of instances.

Plain HAProxy and HAProxy under Tidegate's control are also compared in pairs. There the operations
of the shop have a service time, as in the report; one case has none.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

import msgspec
import psutil
from scipy import stats

from tidegate.core.services import Engine
from tidegate.report.charts import ReportTable
from tidegate.simulation.figures import Line, Panel, draw_bars, draw_grid
from tidegate_lab.bench.compare import Processors
from tidegate_lab.bench.compare_report import Bar
from tidegate_lab.papers.tapas.clients import (
    SESSION,
    SESSION_OF_ELEVEN,
    ClientPopulation,
    agreement_text,
    drawn_s,
    run_population_process,
)
from tidegate_lab.papers.tapas.gateway_process import GatewayOrder, gateway_process
from tidegate_lab.papers.tapas.haproxy_door_process import haproxy_door_process
from tidegate_lab.papers.tapas.shops import (
    CART,
    WELL_PATH,
    HostedPlan,
    OverheadPlan,
    PairCase,
    PairLength,
    ShopInstance,
    ShopSetting,
    WholePlan,
    hosted_shop,
    shops_running,
)
from tidegate_lab.peers.http_servers import NOTES as PYTHON_PROXY_NOTES
from tidegate_lab.peers.http_servers import haproxy_server, nginx_server, proxy_py_server
from tidegate_lab.peers.servers import ServerFailed
from tidegate_lab.report import Drawing, ExperimentSection, Progress

# One measurement of one door: response time, throughput, and processor time.


# From this number of clients on, sessions have eleven operations as for the second cluster.
_MANY_CLIENTS = 50


class DoorMeasurement(msgspec.Struct, frozen=True):
    """The response times and throughput of clients, and the processor time of the door."""

    response_s: float
    response_s_p95: float
    throughput_per_s: float
    # Answered requests after the warm-up, and failed requests of the whole run.
    requests: int
    failed: int
    # Processor seconds of the door per answered request; 0 without a door.
    processor_s_per_request: float


def measure_door(
    way: AbstractContextManager[DoorPath], clients: int, seconds: float, warm_s: float
) -> DoorMeasurement:
    """Measure a door that is started for this measurement."""
    with way as entrance:
        return _measured(entrance, clients, seconds, warm_s)


def _measured(entrance: DoorPath, clients: int, seconds: float, warm_s: float) -> DoorMeasurement:
    used_s = entrance.processor_s()
    visit = run_population_process(
        ClientPopulation(
            ports=entrance.ports,
            clients=clients,
            sessions=None,
            seconds=warm_s + seconds,
            session=SESSION_OF_ELEVEN if clients >= _MANY_CLIENTS else SESSION,
        )
    )
    used_s = entrance.processor_s() - used_s
    begin_s = visit.began_at + warm_s
    counted = visit.requests.between(begin_s, begin_s + seconds)
    took_s = sorted(counted.answered_s)
    return DoorMeasurement(
        response_s=counted.mean_s,
        response_s_p95=took_s[int(0.95 * len(took_s))] if took_s else math.inf,
        throughput_per_s=len(took_s) / seconds,
        requests=len(took_s),
        failed=visit.requests.failed,
        processor_s_per_request=used_s / max(len(visit.requests.answered_s), 1),
    )


def warmed_up(shop_ports: Sequence[int], seconds: float) -> None:
    """Send requests to new instances, because their first requests are slower."""
    run_population_process(
        ClientPopulation(ports=shop_ports, clients=4, sessions=None, seconds=seconds)
    )


_MS = 1000.0
_US = 1_000_000.0


# Measurements by clients, instances and kind of door.
Grid = dict[int, dict[int, dict[str, DoorMeasurement]]]


def overhead_section(plan: OverheadPlan, folder: Path, progress: Progress) -> ExperimentSection:
    """Measure all doors, and compare two of them in pairs."""
    processors = Processors()
    grid: Grid = {clients: {} for clients in plan.clients}
    pairs: list[PairedRuns] = []
    with shops_running(plan.shop, max(plan.instances)) as shops:
        warmed_up([shop.port for shop in shops], plan.warm_s)
        for clients, instances in itertools.product(plan.clients, plan.instances):
            grid[clients][instances] = _each_way(
                plan, shops[:instances], clients, f"{clients} clients, {instances}", progress
            )
    for case in plan.paired:
        shop = msgspec.structs.replace(plan.shop, service_s=case.service_s)
        with shops_running(shop, max(case.instances)) as shops:
            warmed_up([shop.port for shop in shops], plan.warm_s)
            pairs.append(paired(case, plan.length, _doors_before(shops), progress))
    others = processors.share_of_others()
    _draw(grid, folder)
    return _section(plan, grid, pairs, others)


def _each_way(
    plan: OverheadPlan, shops: Sequence[ShopInstance], clients: int, title: str, progress: Progress
) -> dict[str, DoorMeasurement]:
    ports = [shop.port for shop in shops]
    found = {}
    for name, way in DOOR_KINDS.items():
        found[name] = measure_door(way(ports), clients, plan.seconds, plan.warm_s)
        progress(
            f"{title} instance(s), {name}: {found[name].response_s * _MS:.2f} ms, "
            f"{found[name].throughput_per_s:.0f}/s"
        )
    return found


def _doors_before(shops: Sequence[ShopInstance]) -> PairSides:
    """Return the two sides of a pair: doors in front of the same instances."""

    def before(name: str) -> Side:
        return lambda instances: DOOR_KINDS[name]([shop.port for shop in shops[:instances]])

    return PairSides(plain=before(HAPROXY), ours=before(HAPROXY_OURS))


def _section(
    plan: OverheadPlan, grid: Grid, pairs: list[PairedRuns], others: float
) -> ExperimentSection:
    gateway, proxy = _cost_s(grid, GATEWAY), _cost_s(grid, PYTHON_PROXY)
    failed = sum(
        one.failed for row in grid.values() for ways in row.values() for one in ways.values()
    )
    return ExperimentSection(
        name="overhead",
        title="What a door costs",
        source="Figures 15, 16, 19 and 20: 15 clients in sessions of ten operations, and 50 in "
        "sessions of eleven, against a standard JBoss cluster and mod_jk",
        paper="Response time some 3 % longer, throughput less than 1 % lower (15 clients); with 50 "
        "clients response time 2 to 8 % longer on one to three nodes and 10 % shorter on four, "
        "throughput up to 18 % higher on two to four.",
        ours=(
            f"HAProxy under our control beside plain HAProxy, {plan.length.pairs} pairs: "
            f"{format_pairs(pairs)}. The gateway takes {gateway * _US:.0f} µs of a core for a "
            f"request "
            f"({_per_core(gateway):,.0f} a second on a core), proxy.py {proxy * _US:.0f} µs "
            f"({_per_core(proxy):,.0f})."
        ),
        drawings=[
            Drawing("overhead.png", "Mean response time and throughput, by way and instances."),
            Drawing("overhead-cost.png", "Processor time of the door for one request."),
        ],
        tables=[*(_table(clients, row) for clients, row in grid.items()), pair_table(pairs)],
        bars=[*pair_bars(pairs), _gateway_bar(gateway, proxy), failed_bar(pairs, failed)],
        notes=[
            "At most, at least: one-sided bounds at 95 %, from pairs in turn, over all numbers of "
            "instances of a case. Those of one number alone are no bars: they are few.",
            "Responses and throughput are of requests that were answered; those that failed are "
            "counted, of either door.",
            "Clients, doors and instances share two cores and are never idle, so throughput does "
            "not grow with instances here; ways are compared at the same number of them.",
            "Plain HAProxy is what an operator would write: cookies for sessions, checks, bounds, "
            "timeouts and reuse of connections (`http-reuse always`) as ours, a socket for "
            f"statistics, no log. {HAPROXY_DEFAULT!r} is the same with HAProxy's own default, "
            "`http-reuse safe`: each session opens a connection to its instance. "
            "Ours refuses what two servers could read differently, sets and drops forwarding "
            "fields, logs requests to us, is read each second and gets a new weight each second.",
            *PYTHON_PROXY_NOTES,
            f"Others used {others:.0%} of the processors meanwhile.",
        ],
        data={
            "plan": msgspec.to_builtins(plan),
            "passages": _plain(grid),
            "pairs": msgspec.to_builtins(pairs),
            "share_of_others": others,
        },
    )


def _plain(grid: Grid) -> dict[str, Any]:
    return {
        str(clients): {str(instances): msgspec.to_builtins(ways) for instances, ways in row.items()}
        for clients, row in grid.items()
    }


def _cost_s(grid: Grid, name: str) -> float:
    """Return the mean processor time of a door per request over all its measurements."""
    found = [ways[name] for row in grid.values() for ways in row.values()]
    requests = sum(one.requests for one in found)
    used_s = sum(one.processor_s_per_request * one.requests for one in found)
    return used_s / max(requests, 1)


def _per_core(cost_s: float) -> float:
    return 1.0 / cost_s if cost_s else 0.0


def _gateway_bar(gateway_s: float, proxy_s: float) -> Bar:
    return Bar(
        "processor time for a request: gateway over proxy.py",
        gateway_s / proxy_s if proxy_s else None,
        1.0,
        "×",
        at_most=True,
    )


def _table(clients: int, row: dict[int, dict[str, DoorMeasurement]]) -> ReportTable:
    return ReportTable(
        f"{clients} clients",
        (
            *("instances", "way", "response, mean", "p95", "throughput"),
            *("processor for a request", "failed"),
        ),
        [
            (
                str(instances),
                name,
                f"{one.response_s * _MS:.2f} ms",
                f"{one.response_s_p95 * _MS:.2f} ms",
                f"{one.throughput_per_s:,.0f}/s",
                f"{one.processor_s_per_request * _US:.0f} µs"
                if one.processor_s_per_request
                else "",
                str(one.failed),
            )
            for instances, ways in row.items()
            for name, one in ways.items()
        ],
    )


def _draw(grid: Grid, folder: Path) -> None:
    panels = []
    for clients, row in grid.items():
        for title, label, is_response in (
            ("response", "ms", True),
            ("throughput", "requests/s", False),
        ):
            lines = [
                Line(
                    name,
                    list(row),
                    [
                        drawn_s(ways[name].response_s) * _MS
                        if is_response
                        else ways[name].throughput_per_s
                        for ways in row.values()
                    ],
                )
                for name in DOOR_KINDS
            ]
            names = [str(instances) for instances in row]
            panels.append(
                Panel(f"{clients} clients: {title}", "instances", label, lines, x_names=names)
            )
    draw_grid(panels, folder / "overhead.png", height_in=3.0, one_legend=True)
    doors = [name for name in DOOR_KINDS if _cost_s(grid, name) > 0.0]
    draw_bars(
        {
            "Processor time of the door for a request, µs": {
                name: _cost_s(grid, name) * _US for name in doors
            }
        },
        folder / "overhead-cost.png",
    )


# Confidence bounds of a ratio from pairs of measurements.
#
#     r_i          the ratio of pair i, ours / theirs
#     bound        exp(mean(log r) ± t(0.95, n − 1) · s / √n), s the standard deviation of log r
#
# The two measurements of a pair follow each other, and each side is first in half of the pairs.
# Other load on the machine then affects both sides. The bounds are one-sided: by chance, the true
# ratio is beyond a bound in one of twenty cases.


CONFIDENCE = 0.95


def mean_ratio(ratios: Sequence[float]) -> float:
    """Return the geometric mean of the ratios, for which 2 and 1/2 give 1."""
    return math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))


def ratio_at_most(ratios: Sequence[float]) -> float:
    """Return the upper bound of the mean ratio; infinite for fewer than two pairs."""
    return mean_ratio(ratios) * math.exp(_reach(ratios))


def ratio_at_least(ratios: Sequence[float]) -> float:
    """Return the lower bound of the mean ratio; 0 for fewer than two pairs."""
    return mean_ratio(ratios) * math.exp(-_reach(ratios))


def _reach(ratios: Sequence[float]) -> float:
    count = len(ratios)
    if count < 2:
        return math.inf
    spread = statistics.stdev(math.log(ratio) for ratio in ratios) / math.sqrt(count)
    return float(stats.t.ppf(CONFIDENCE, count - 1)) * spread


# The kinds of doors between clients and instances: none, Tidegate's, and those of peers.
#
# Every door is a process of its own with its default number of threads. It is started for each
# measurement, so that no other door runs meanwhile. As in the report, sessions stay with their
# instance if the door supports it. Without a door the client keeps its instance; doors use a cookie
# of their own, and nginx the hash of the shop's cookie for the cart.


DIRECT = "direct"
GATEWAY = "gateway"
HAPROXY = "HAProxy"
HAPROXY_DEFAULT = "HAProxy, its reuse"
HAPROXY_OURS = "HAProxy, ours"
NGINX = "nginx"
PYTHON_PROXY = "proxy.py"


class DoorPath(msgspec.Struct, frozen=True):
    """The ports to which clients connect, and the processes of the door."""

    ports: Sequence[int]
    pids: Sequence[int] = ()

    def processor_s(self) -> float:
        """Return processor seconds of the door's processes and their children so far.

        `ServerFailed` means that a process of the door has died.
        """
        used_s = 0.0
        for pid in self.pids:
            try:
                process = psutil.Process(pid)
            except psutil.NoSuchProcess:
                raise ServerFailed(f"the door (process {pid}) has died meanwhile") from None
            for one in [process, *process.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    times = one.cpu_times()
                    used_s += times.user + times.system
        return used_s


DoorKind = Callable[[Sequence[int]], contextlib.AbstractContextManager[DoorPath]]


@contextlib.contextmanager
def _direct(server_ports: Sequence[int]) -> Iterator[DoorPath]:
    yield DoorPath(server_ports)


@contextlib.contextmanager
def _gateway(server_ports: Sequence[int]) -> Iterator[DoorPath]:
    with gateway_process(GatewayOrder(server_ports, sticky=True)) as gateway:
        yield DoorPath([gateway.port], [gateway.pid])


@contextlib.contextmanager
def _haproxy(server_ports: Sequence[int]) -> Iterator[DoorPath]:
    with haproxy_server(server_ports, sticky=True, ready_path=WELL_PATH) as server:
        yield DoorPath([server.port], [server.process.pid])


@contextlib.contextmanager
def _haproxy_default(server_ports: Sequence[int]) -> Iterator[DoorPath]:
    # HAProxy's default: each session opens a connection to its instance.
    with haproxy_server(server_ports, sticky=True, reuse="safe", ready_path=WELL_PATH) as server:
        yield DoorPath([server.port], [server.process.pid])


@contextlib.contextmanager
def _haproxy_ours(server_ports: Sequence[int]) -> Iterator[DoorPath]:
    with haproxy_door_process(server_ports) as door:
        yield DoorPath([door.port], [door.pid])


@contextlib.contextmanager
def _nginx(server_ports: Sequence[int]) -> Iterator[DoorPath]:
    with nginx_server(server_ports, sticky_cookie=CART, ready_path=WELL_PATH) as server:
        yield DoorPath([server.port], [server.process.pid])


@contextlib.contextmanager
def _python_proxy(server_ports: Sequence[int]) -> Iterator[DoorPath]:
    with proxy_py_server(server_ports, ready_path=WELL_PATH) as server:
        yield DoorPath([server.port], [server.process.pid])


DOOR_KINDS: dict[str, DoorKind] = {
    DIRECT: _direct,
    GATEWAY: _gateway,
    HAPROXY: _haproxy,
    HAPROXY_DEFAULT: _haproxy_default,
    HAPROXY_OURS: _haproxy_ours,
    NGINX: _nginx,
    PYTHON_PROXY: _python_proxy,
}


# Comparisons in pairs: measurements, their bounds, and rows of tables.
#
# The side `plain` is HAProxy with a static configuration. The side `ours` is HAProxy under
# Tidegate's control: the door alone (`overhead`), or all of `tidegate host` (`whole`).
#
# Each side is started for its turn and stopped after it, so that no part of it runs while the other
# side is measured. The pairs of a case alternate between its numbers of instances. The two sides of
# a pair have the same number. The bound of a case is over all pairs, so that differences between
# the numbers of instances widen it.


RESPONSE_BAR = 1.03
THROUGHPUT_BAR = 0.99

# Opens a door in front of the given number of instances.
Side = Callable[[int], AbstractContextManager[DoorPath]]


@dataclass(frozen=True)
class PairSides:
    """Functions that open the two sides."""

    plain: Side
    ours: Side


class PairedRuns(msgspec.Struct, frozen=True):
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

    def before(self, instances: int) -> PairedRuns:
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


def pair_order(case: PairCase) -> Iterator[tuple[int, bool]]:
    """Yield the number of instances of each pair, and whether `ours` is measured first.

    Each side is first in half of the pairs, also for each number of instances.
    """
    for turn in count():
        for place, instances in enumerate(case.instances):
            yield instances, (turn + place) % 2 == 1


def paired(case: PairCase, length: PairLength, sides: PairSides, progress: Progress) -> PairedRuns:
    """Measure the pairs of a case; `ServerFailed` means that no request was answered."""
    found = PairedRuns(case, [], [], [])
    ours_failed = plain_failed = 0
    for number, (instances, ours_first) in enumerate(islice(pair_order(case), length.pairs)):
        pair = {
            is_ours: measure_door(
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


def format_pairs(pairs: Sequence[PairedRuns]) -> str:
    """Return the mean ratios and bounds of each case as text."""
    return "; ".join(
        f"{one.title}: response × {mean_ratio(one.response):.3f} "
        f"(at most {ratio_at_most(one.response):.3f}), throughput × "
        f"{mean_ratio(one.throughput):.3f} (at least {ratio_at_least(one.throughput):.3f})"
        for one in pairs
    )


def pair_bars(pairs: Sequence[PairedRuns]) -> list[Bar]:
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


def failed_bar(pairs: Sequence[PairedRuns], others: int = 0) -> Bar:
    """Return the bar on failed requests, because a door that fails requests does less work."""
    total = others + sum(one.failed for one in pairs)
    return Bar("requests failed", total, 0, "", at_most=True, beyond_the_issue=True)


def pair_table(pairs: Sequence[PairedRuns]) -> ReportTable:
    """Return a table with a row for all pairs of a case and for each number of instances."""
    return ReportTable(
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


def _rows(pairs: PairedRuns) -> list[PairedRuns]:
    """Return all pairs together, then the pairs of each number of instances."""
    counts = pairs.case.instances if len(pairs.case.instances) > 1 else ()
    return [pairs, *(pairs.before(count) for count in counts if count in pairs.instances)]


def _worded(processor_s: Sequence[float]) -> str:
    """Return the mean as text; empty if it was not measured."""
    mean_s = statistics.fmean(processor_s)
    return f"{mean_s * _US:.0f} µs" if mean_s else ""


# Figures 15 and 16 with all services: the cost of `tidegate host` compared with plain HAProxy.
#
# The report compares a cluster with an agreement and a cluster without. Here, one side is `tidegate
# host --engine haproxy` as a user starts it. It consists of HAProxy with its door, PostgreSQL, a
# machine with its instances, and a node that leads, judges, probes and writes telemetry. The other
# side is plain HAProxy in front of the same number of instances.
#
# All processes share two cores with the clients; the report's services had machines of their own.


def whole_section(plan: WholePlan, folder: Path, progress: Progress) -> ExperimentSection:
    """Measure all cases in pairs."""
    processors = Processors()
    pairs = []
    for case in plan.paired:
        shop = msgspec.structs.replace(plan.shop, service_s=case.service_s)
        pairs.append(paired(case, plan.length, _sides(shop, plan.length.warm_s), progress))
    others = processors.share_of_others()
    return ExperimentSection(
        name="whole",
        title="What all of `tidegate host` costs",
        source="Figures 15 and 16: 15 clients, a cluster with configuration, monitoring and "
        "balancing services beside a standard one",
        paper="Response time some 3 % longer, throughput less than 1 % lower (15 clients).",
        ours=f"`tidegate host --engine haproxy` beside plain HAProxy, {plan.length.pairs} pairs: "
        f"{format_pairs(pairs)}.",
        drawings=[],
        tables=[pair_table(pairs)],
        bars=[*pair_bars(pairs), failed_bar(pairs)],
        notes=[
            "Each side is started for each of its turns, instances included, and nothing of ours "
            "runs while plain HAProxy is measured.",
            "PostgreSQL, the node, the machine and the door share two cores with clients and "
            "instances.",
            f"Others used {others:.0%} of the processors meanwhile.",
        ],
        data={
            "plan": msgspec.to_builtins(plan),
            "pairs": msgspec.to_builtins(pairs),
            "share_of_others": others,
        },
    )


def _sides(shop: ShopSetting, warm_s: float) -> PairSides:
    @contextlib.contextmanager
    def plain(instances: int) -> Iterator[DoorPath]:
        with shops_running(shop, instances) as shops:
            ports = [one.port for one in shops]
            warmed_up(ports, warm_s)
            with DOOR_KINDS[HAPROXY](ports) as entrance:
                # Without process ids: the processor time of this door alone would not be
                # comparable with that of the other side.
                yield DoorPath(entrance.ports)

    @contextlib.contextmanager
    def ours(instances: int) -> Iterator[DoorPath]:
        plan = HostedPlan(
            shop,
            agreement_text(instances, instances),
            engine=Engine.HAPROXY,
            balancing="least-outstanding",
            sticky=True,
        )
        with hosted_shop(plan) as door:
            door.wait_serving(instances)
            warmed_up([door.port], warm_s)
            yield DoorPath([door.port])

    return PairSides(plain, ours)
