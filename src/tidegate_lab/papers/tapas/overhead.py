"""Figures 15, 16, 19 and 20: the cost of several doors with one to four instances.

The shop has no service time and the clients never pause, so that the processor is the limit and
each microsecond of a door is visible. Clients, door and instances share two cores. More instances
are therefore not faster, and doors are compared at the same number of instances.

Plain HAProxy and HAProxy under Tidegate's control are also compared in pairs. There the operations
of the shop have a service time, as in the report; one case has none.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tidegate.lab.bench.bars import Bar
from tidegate.lab.bench.processors import Processors
from tidegate.lab.peers.proxy_py_server import NOTES as PYTHON_PROXY_NOTES
from tidegate.lab.report.experiments import Progress
from tidegate.lab.report.figures import Line, Panel, draw_bars, draw_grid
from tidegate.lab.report.section import Drawing, Section
from tidegate.lab.tapas.clients import drawn_s
from tidegate.lab.tapas.paired import (
    Pairs,
    Side,
    Sides,
    failed_bar,
    pair_bars,
    pair_table,
    paired,
    said_of,
)
from tidegate.lab.tapas.passage import Passage, passage, warmed_up
from tidegate.lab.tapas.plan import OverheadPlan
from tidegate.lab.tapas.shops import Shop, shops_running
from tidegate.lab.tapas.ways import (
    GATEWAY,
    HAPROXY,
    HAPROXY_DEFAULT,
    HAPROXY_OURS,
    PYTHON_PROXY,
    WAYS,
)
from tidegate.report.chart import Table

_MS = 1000.0
_US = 1_000_000.0


# Measurements by clients, instances and kind of door.
Grid = dict[int, dict[int, dict[str, Passage]]]


def overhead_section(plan: OverheadPlan, folder: Path, progress: Progress) -> Section:
    """Measure all doors, and compare two of them in pairs."""
    processors = Processors()
    grid: Grid = {clients: {} for clients in plan.clients}
    pairs: list[Pairs] = []
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
    plan: OverheadPlan, shops: Sequence[Shop], clients: int, title: str, progress: Progress
) -> dict[str, Passage]:
    ports = [shop.port for shop in shops]
    found = {}
    for name, way in WAYS.items():
        found[name] = passage(way(ports), clients, plan.seconds, plan.warm_s)
        progress(
            f"{title} instance(s), {name}: {found[name].response_s * _MS:.2f} ms, "
            f"{found[name].throughput_per_s:.0f}/s"
        )
    return found


def _doors_before(shops: Sequence[Shop]) -> Sides:
    """Return the two sides of a pair: doors in front of the same instances."""

    def before(name: str) -> Side:
        return lambda instances: WAYS[name]([shop.port for shop in shops[:instances]])

    return Sides(plain=before(HAPROXY), ours=before(HAPROXY_OURS))


def _section(plan: OverheadPlan, grid: Grid, pairs: list[Pairs], others: float) -> Section:
    gateway, proxy = _cost_s(grid, GATEWAY), _cost_s(grid, PYTHON_PROXY)
    failed = sum(
        one.failed for row in grid.values() for ways in row.values() for one in ways.values()
    )
    return Section(
        name="overhead",
        title="What a door costs",
        source="Figures 15, 16, 19 and 20: 15 clients in sessions of ten operations, and 50 in "
        "sessions of eleven, against a standard JBoss cluster and mod_jk",
        paper="Response time some 3 % longer, throughput less than 1 % lower (15 clients); with 50 "
        "clients response time 2 to 8 % longer on one to three nodes and 10 % shorter on four, "
        "throughput up to 18 % higher on two to four.",
        ours=(
            f"HAProxy under our control beside plain HAProxy, {plan.length.pairs} pairs: "
            f"{said_of(pairs)}. The gateway takes {gateway * _US:.0f} µs of a core for a request "
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


def _table(clients: int, row: dict[int, dict[str, Passage]]) -> Table:
    return Table(
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
                for name in WAYS
            ]
            names = [str(instances) for instances in row]
            panels.append(
                Panel(f"{clients} clients: {title}", "instances", label, lines, x_names=names)
            )
    draw_grid(panels, folder / "overhead.png", height_in=3.0, one_legend=True)
    doors = [name for name in WAYS if _cost_s(grid, name) > 0.0]
    draw_bars(
        {
            "Processor time of the door for a request, µs": {
                name: _cost_s(grid, name) * _US for name in doors
            }
        },
        folder / "overhead-cost.png",
    )
