"""Measurements, run by `make bench`: each reports figures; none passes or fails by its speed.

A benchmark calls `figure(what, value, unit, wanted)`. The table at the end shows all figures beside
what is wanted of them on a quiet machine of two cores, and `results/benchmarks.json` keeps them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from figures import Figure
from node_fixtures import (
    backing,
    connect,
    embedded_url,
    external_url,
    mq,
    node,
    pytest_asyncio_loop_factories,
    rabbitmq,
    rabbitmq_broker,
    start_node,
    store,
)
from time_limit import (
    pytest_runtest_call,
    pytest_runtest_setup,
    pytest_runtest_teardown,
    pytest_timeout_set_timer,
)

__all__ = [
    "backing",
    "connect",
    "embedded_url",
    "external_url",
    "mq",
    "node",
    "pytest_asyncio_loop_factories",
    "pytest_runtest_call",
    "pytest_runtest_setup",
    "pytest_runtest_teardown",
    "pytest_timeout_set_timer",
    "rabbitmq",
    "rabbitmq_broker",
    "start_node",
    "store",
]

RESULTS = Path("results") / "benchmarks.json"
_FIGURES: list[dict[str, object]] = []


@pytest.fixture
def figure() -> Figure:
    def keep(what: str, value: float, unit: str, wanted: str) -> None:
        _FIGURES.append({"what": what, "value": value, "unit": unit, "wanted": wanted})

    return keep


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _FIGURES:
        return
    terminalreporter.section("figures")
    for each in _FIGURES:
        measured = f"{each['value']:.4g} {each['unit']}"
        terminalreporter.write_line(f"{each['what']:<60} {measured:>14}   wanted: {each['wanted']}")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(_FIGURES, indent=1))
