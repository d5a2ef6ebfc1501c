"""Metrics that Prometheus scrapes, and the rows that are recorded in the lake."""

from __future__ import annotations

from collections.abc import Iterable

from golden_files import Golden
from golden_shapes import example

from tidegate.core.services import DoorSample
from tidegate.telemetry.prometheus import VERDICTS, AgreementStats, DoorMetrics, NodeMetrics
from tidegate.telemetry.schemas import KINDS
from tidegate.telemetry.stats import NodeStats


def test_metrics_of_a_node_are_as_they_were(golden: Golden) -> None:
    text = b"".join(NodeMetrics().pieces(example(NodeStats)))

    golden("telemetry/metrics_of_a_node.txt", _without_help(text))


def test_metrics_of_a_door_are_as_they_were(golden: Golden) -> None:
    exposition = DoorMetrics()
    standing = {"agreement": "shop", "budget_left": 0.75, "burn_rate": 2.5}
    verdicts = [AgreementStats(verdict=verdict, **standing) for verdict in VERDICTS]
    exposition.update(example(DoorSample), verdicts[:1])

    golden("telemetry/metrics_of_a_door.txt", _without_help(exposition.text()))


def test_rows_of_the_lake_are_as_they_were(golden: Golden) -> None:
    lines = []
    for kind in KINDS.values():
        lines.append(f"{kind.name} version {kind.version}")
        lines += [f"    {one.name}: {one.type}{_null(one.nullable)}" for one in kind.columns]

    golden("telemetry/lake.txt", lines)


def _null(is_nullable: bool) -> str:
    return "" if is_nullable else " not null"


def _without_help(text: bytes) -> Iterable[str]:
    return [line for line in text.decode().splitlines() if not line.startswith("# HELP")]
