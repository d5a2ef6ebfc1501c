"""Figures 15 and 16 with all services: the cost of `tidegate host` compared with plain HAProxy.

The report compares a cluster with an agreement and a cluster without. Here, one side is `tidegate
host --engine haproxy` as a user starts it. It consists of HAProxy with its door, PostgreSQL, a
machine with its instances, and a node that leads, judges, probes and writes telemetry. The other
side is plain HAProxy in front of the same number of instances.

All processes share two cores with the clients; the report's services had machines of their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tidegate.core.hosting import Engine
from tidegate.lab.bench.processors import Processors
from tidegate.lab.report.experiments import Progress
from tidegate.lab.report.section import Section
from tidegate.lab.tapas.bookshop import ShopSetting
from tidegate.lab.tapas.hosted import HostedPlan, hosted
from tidegate.lab.tapas.paired import (
    Sides,
    failed_bar,
    pair_bars,
    pair_table,
    paired,
    said_of,
)
from tidegate.lab.tapas.passage import warmed_up
from tidegate.lab.tapas.plan import WholePlan
from tidegate.lab.tapas.promise import agreement_text
from tidegate.lab.tapas.shops import shops_running
from tidegate.lab.tapas.ways import HAPROXY, WAYS, Entrance


def whole_section(plan: WholePlan, folder: Path, progress: Progress) -> Section:
    """Measure all cases in pairs."""
    processors = Processors()
    pairs = []
    for case in plan.paired:
        shop = msgspec.structs.replace(plan.shop, service_s=case.service_s)
        pairs.append(paired(case, plan.length, _sides(shop, plan.length.warm_s), progress))
    others = processors.share_of_others()
    return Section(
        name="whole",
        title="What all of `tidegate host` costs",
        source="Figures 15 and 16: 15 clients, a cluster with configuration, monitoring and "
        "balancing services beside a standard one",
        paper="Response time some 3 % longer, throughput less than 1 % lower (15 clients).",
        ours=f"`tidegate host --engine haproxy` beside plain HAProxy, {plan.length.pairs} pairs: "
        f"{said_of(pairs)}.",
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


def _sides(shop: ShopSetting, warm_s: float) -> Sides:
    @contextlib.contextmanager
    def plain(instances: int) -> Iterator[Entrance]:
        with shops_running(shop, instances) as shops:
            ports = [one.port for one in shops]
            warmed_up(ports, warm_s)
            with WAYS[HAPROXY](ports) as entrance:
                # Without process ids: the processor time of this door alone would not be
                # comparable with that of the other side.
                yield Entrance(entrance.ports)

    @contextlib.contextmanager
    def ours(instances: int) -> Iterator[Entrance]:
        plan = HostedPlan(
            shop,
            agreement_text(instances, instances),
            engine=Engine.HAPROXY,
            balancing="least-outstanding",
            sticky=True,
        )
        with hosted(plan) as door:
            door.wait_serving(instances)
            warmed_up([door.port], warm_s)
            yield Entrance([door.port])

    return Sides(plain, ours)
