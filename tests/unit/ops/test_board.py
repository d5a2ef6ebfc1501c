"""What lies under ops/: it must fit the nodes that it is for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest
from http_get import families, get
from places import ROOT

from tidegate.broker.http import NodePages
from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.storage.memory import MemoryStore
from tidegate.telemetry.prometheus import VERDICT

METRIC = re.compile(r"\btidegate_\w+")
LABELS = {"node", "queue"}


@pytest.fixture(scope="module")
def board() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((ROOT / "ops/grafana-tidegate.json").read_text())
    return loaded


def expressions(board: dict[str, Any]) -> Iterator[str]:
    for panel in board["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]
    yield from (one["expr"] for one in board["annotations"]["list"])


async def exposed() -> set[str]:
    """The names of all series of a running node with a queue."""
    node = Node(MemoryStore())
    await node.start()
    door = NodePages(node.stats, node.membership)
    await door.start()
    try:
        async with Client(node.address) as mq:
            await mq.create_queue("orders")
            await mq.put("orders", b"x")
        page = await get(node.metrics_address, "/metrics")
    finally:
        await door.stop()
        await node.stop()
    return {sample.name for family in families(page.body).values() for sample in family.samples}


async def test_every_metric_on_the_board_is_one_that_a_node_exposes(board: dict[str, Any]) -> None:
    named = {name for text in expressions(board) for name in METRIC.findall(text)}

    assert named - await exposed() == set()
    assert len(named) > 20


async def test_alarms_in_the_docs_name_metrics_that_exist() -> None:
    text = (ROOT / "docs/observability.md").read_text()
    alarms = "".join(re.findall(r"^```yaml.*?^```", text, re.DOTALL | re.MULTILINE))

    named = set(METRIC.findall(alarms))

    assert len(named) == 4
    assert named - await exposed() == {VERDICT.name}, "that one is a door's"


def test_the_board_is_one_that_grafana_imports(board: dict[str, Any]) -> None:
    assert board["id"] is None, "Grafana gives the number"
    assert (board["uid"], board["title"]) == ("tidegate", "Tidegate")
    assert board["schemaVersion"] >= 36, "data sources are objects"
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(set(numbers)) == len(numbers)
    for panel in board["panels"]:
        if panel["type"] == "row":
            continue
        assert panel["type"] == "timeseries"
        assert panel["title"]
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters) >= 1
        assert all(target["legendFormat"] for target in panel["targets"])


def test_board_uses_the_data_source_variable_everywhere(board: dict[str, Any]) -> None:
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    asked = [
        *(target for panel in board["panels"] for target in panel.get("targets", ())),
        *(panel for panel in board["panels"] if panel["type"] != "row"),
        *(variables[name] for name in ("node", "queue")),
        *board["annotations"]["list"],
    ]
    for one in asked:
        assert one["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_panels_do_not_overlap(board: dict[str, Any]) -> None:
    places = [panel["gridPos"] for panel in board["panels"]]
    for place in places:
        assert place["x"] + place["w"] <= 24
    for a, b in combinations(places, 2):
        apart_in_width = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        apart_in_height = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert apart_in_width or apart_in_height


def test_queries_are_well_formed(board: dict[str, Any]) -> None:
    for text in expressions(board):
        for opening, closing in ("()", "{}", "[]"):
            assert text.count(opening) == text.count(closing), text
        for name in re.findall(r"rate\((tidegate_\w+)", text):
            assert name.endswith(("_total", "_bucket")), f"rate of a gauge: {name}"
        for inner in re.findall(r"histogram_quantile\([\d.]+, sum by \(([^)]*)\)", text):
            assert "le" in inner.split(", ")
        for label in re.findall(r"(\w+)=~", text):
            assert label in LABELS
