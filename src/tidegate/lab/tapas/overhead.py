"""Figures 15, 16, 19 and 20: what a door costs, ours and others', with one to four instances.

Strategy: the shop without a stated service time, and clients that never pause, so that everything
goes as fast as the machine does and each microsecond of a door shows. Two cores are shared by
clients, door and instances: more instances do not make it faster here, and what is compared is
ways at the same number of them. Plain HAProxy and HAProxy under our control are measured in pairs,
in turn, before a shop whose operations take a little time, as the report's did; and once more where
nobody waits for anything but the processor. Pairs of a case go round its numbers of instances, and
its bound is of all of them: each pair compares like with like, and what numbers of instances differ
by widens the bound.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tidegate.lab.bench.bars import Bar
from tidegate.lab.bench.processors import Processors
from tidegate.lab.peers.proxy_py_server import NOTES as PYTHON_PROXY_NOTES
from tidegate.lab.peers.server import ServerFailed
from tidegate.lab.report.experiments import Progress
from tidegate.lab.report.figures import Line, Panel, draw_bars, draw_grid
from tidegate.lab.report.section import Drawing, Section
from tidegate.lab.tapas.clients import drawn_s
from tidegate.lab.tapas.pairs import mean_ratio, ratio_at_least, ratio_at_most
from tidegate.lab.tapas.passage import Passage, passage, warmed_up
from tidegate.lab.tapas.plan import OverheadPlan, PairCase
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

RESPONSE_BAR = 1.03
THROUGHPUT_BAR = 0.99
_MS = 1000.0
_US = 1_000_000.0


class Pairs(msgspec.Struct, frozen=True):
    """Plain HAProxy and ours in turn."""

    case: PairCase
    # Pair by pair: before how many instances, and ours over plain.
    instances: list[int]
    response: list[float]
    throughput: list[float]
    ours_failed: int = 0
    plain_failed: int = 0
    # Of all processes of the door, for a request.
    plain_processor_s: list[float] = []
    ours_processor_s: list[float] = []

    @property
    def title(self) -> str:
        return self.case.title

    @property
    def failed(self) -> int:
        """A door that fails requests has less to do, whosever it is."""
        return self.ours_failed + self.plain_failed

    def before(self, instances: int) -> Pairs:
        """Of them those before so many instances."""
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


# By clients, instances and way.
Grid = dict[int, dict[int, dict[str, Passage]]]


def overhead_section(plan: OverheadPlan, folder: Path, progress: Progress) -> Section:
    """Everything of figures 15, 16, 19 and 20."""
    processors = Processors()
    grid: Grid = {clients: {} for clients in plan.clients}
    pairs: list[Pairs] = []
    with shops_running(plan.shop, max(plan.instances)) as shops:
        warmed_up(plan, [shop.port for shop in shops])
        for clients, instances in itertools.product(plan.clients, plan.instances):
            grid[clients][instances] = _each_way(
                plan, shops[:instances], clients, f"{clients} clients, {instances}", progress
            )
    for case in plan.paired:
        shop = msgspec.structs.replace(plan.shop, service_s=case.service_s)
        with shops_running(shop, max(case.instances)) as shops:
            warmed_up(plan, [shop.port for shop in shops])
            pairs.append(_paired(plan, case, shops, progress))
    others = processors.share_of_others()
    _draw(grid, folder)
    return _section(plan, grid, pairs, others)


def _each_way(
    plan: OverheadPlan, shops: Sequence[Shop], clients: int, title: str, progress: Progress
) -> dict[str, Passage]:
    ports = [shop.port for shop in shops]
    found = {}
    for name, way in WAYS.items():
        found[name] = passage(way, ports, clients, plan.seconds, plan.warm_s)
        progress(
            f"{title} instance(s), {name}: {found[name].response_s * _MS:.2f} ms, "
            f"{found[name].throughput_per_s:.0f}/s"
        )
    return found


def turns_of(case: PairCase) -> Iterator[tuple[int, bool]]:
    """Before how many instances each pair is, and whether ours is the first of it.

    Each is first as often as the other, over all and before each number of instances.
    """
    for turn in itertools.count():
        for place, instances in enumerate(case.instances):
            yield instances, (turn + place) % 2 == 1


def _paired(plan: OverheadPlan, case: PairCase, shops: Sequence[Shop], progress: Progress) -> Pairs:
    found = Pairs(case, [], [], [])
    failed = dict.fromkeys((HAPROXY, HAPROXY_OURS), 0)
    for number, (instances, ours_first) in enumerate(itertools.islice(turns_of(case), plan.pairs)):
        ports = [shop.port for shop in shops[:instances]]
        order = (HAPROXY_OURS, HAPROXY) if ours_first else (HAPROXY, HAPROXY_OURS)
        pair = {
            name: passage(WAYS[name], ports, case.clients, plan.pair_seconds, plan.warm_s)
            for name in order
        }
        for name, one in pair.items():
            failed[name] += one.failed
        ours, plain = pair[HAPROXY_OURS], pair[HAPROXY]
        if not (ours.requests and plain.requests):
            raise ServerFailed(f"{found.title}: nothing got through in {plan.pair_seconds:g} s")
        found.instances.append(instances)
        found.response.append(ours.response_s / plain.response_s)
        found.throughput.append(ours.throughput_per_s / plain.throughput_per_s)
        found.plain_processor_s.append(plain.processor_s_per_request)
        found.ours_processor_s.append(ours.processor_s_per_request)
        progress(
            f"{found.title}, pair {number + 1} of {plan.pairs} ({instances}): response × "
            f"{found.response[-1]:.3f}, throughput × {found.throughput[-1]:.3f}, processor "
            f"{plain.processor_s_per_request * _US:.0f} and "
            f"{ours.processor_s_per_request * _US:.0f} µs"
        )
    return msgspec.structs.replace(
        found, ours_failed=failed[HAPROXY_OURS], plain_failed=failed[HAPROXY]
    )


def _section(plan: OverheadPlan, grid: Grid, pairs: list[Pairs], others: float) -> Section:
    gateway, proxy = _cost_s(grid, GATEWAY), _cost_s(grid, PYTHON_PROXY)
    said = "; ".join(
        f"{one.title}: response × {mean_ratio(one.response):.3f} "
        f"(at most {ratio_at_most(one.response):.3f}), throughput × "
        f"{mean_ratio(one.throughput):.3f} (at least {ratio_at_least(one.throughput):.3f})"
        for one in pairs
    )
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
            f"HAProxy under our control beside plain HAProxy, {plan.pairs} pairs: {said}. The "
            f"gateway takes {gateway * _US:.0f} µs of a core for a request "
            f"({_per_core(gateway):,.0f} a second on a core), proxy.py {proxy * _US:.0f} µs "
            f"({_per_core(proxy):,.0f})."
        ),
        drawings=[
            Drawing("overhead.png", "Mean response time and throughput, by way and instances."),
            Drawing("overhead-cost.png", "Processor time of the door for one request."),
        ],
        tables=[*(_table(clients, row) for clients, row in grid.items()), _pair_table(pairs)],
        bars=[*_pair_bars(pairs), _gateway_bar(gateway, proxy), _failed_bar(failed, pairs)],
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
    """The mean over all that was measured of it."""
    found = [ways[name] for row in grid.values() for ways in row.values()]
    requests = sum(one.requests for one in found)
    used_s = sum(one.processor_s_per_request * one.requests for one in found)
    return used_s / max(requests, 1)


def _per_core(cost_s: float) -> float:
    return 1.0 / cost_s if cost_s else 0.0


def _pair_bars(pairs: Sequence[Pairs]) -> list[Bar]:
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


def _gateway_bar(gateway_s: float, proxy_s: float) -> Bar:
    return Bar(
        "processor time for a request: gateway over proxy.py",
        gateway_s / proxy_s if proxy_s else None,
        1.0,
        "×",
        at_most=True,
    )


def _failed_bar(failed: int, pairs: Sequence[Pairs]) -> Bar:
    total = failed + sum(one.failed for one in pairs)
    return Bar("requests failed", total, 0, "", at_most=True, beyond_the_issue=True)


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


def _pair_table(pairs: Sequence[Pairs]) -> Table:
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
                f"{statistics.fmean(row.plain_processor_s) * _US:.0f} µs",
                f"{statistics.fmean(row.ours_processor_s) * _US:.0f} µs",
            )
            for one in pairs
            for row in _rows(one)
        ],
    )


def _rows(pairs: Pairs) -> list[Pairs]:
    """All of them, then by instances."""
    counts = pairs.case.instances if len(pairs.case.instances) > 1 else ()
    return [pairs, *(pairs.before(count) for count in counts if count in pairs.instances)]


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
