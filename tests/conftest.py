"""Fixtures: three stores under one suite, nodes and clients that clean up after themselves.

The folders are the stages: `tests/unit` starts no process and opens no database,
`tests/integration` runs nodes on PostgreSQL, RabbitMQ, HAProxy and Spark, `tests/system` starts and
kills our own processes and drives a browser. `tests/experiments` is for `make test-all` alone.
"""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from node_fixtures import (
    backing,
    connect,
    embedded_url,
    external_url,
    mortal_broker,
    mq,
    node,
    one_mortal_broker,
    other_server,
    pytest_asyncio_loop_factories,
    rabbitmq,
    rabbitmq_broker,
    start_node,
    store,
)
from thoroughness import USUAL
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
    "mortal_broker",
    "mq",
    "node",
    "one_mortal_broker",
    "other_server",
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

# `pytest --hypothesis-profile thorough` tries more examples, and other ones each time. The usual
# profile tries the same examples in every run, so that a failure comes from the change under test.
JUDGING: dict[str, Any] = {
    "deadline": None,
    "derandomize": True,
    "suppress_health_check": [HealthCheck.too_slow],
}
settings.register_profile("quick", max_examples=USUAL, **JUDGING)
settings.register_profile("thorough", max_examples=2000, deadline=None)
settings.load_profile("quick")

# The tests start Python a thousand times: with this set, each start would compile every module.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell makes its background processes ignore Ctrl-C, and our child processes would inherit it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Servers that take seconds to start: one for each worker that has tests for them.
_SHARED_SERVERS = ("spark", "rabbitmq_broker", "mortal_broker", "engines")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all",
        action="store_true",
        help="every store and the long kills, too: what `make test-all` adds",
    )
    parser.addoption(
        "--rewrite-golden",
        action="store_true",
        help="write the golden files of tests/unit/golden instead of comparing with them",
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Iterator[None]:
    # A wrapper runs before the other plugins: xdist must find the groups when its turn comes.
    if not config.getoption("all"):
        left_out = [item for item in items if _only_with_all(item)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(_group_of(item)))
    # What takes longest begins first: at the end the other workers could not help with it.
    lengths: dict[Path, float] = {}
    for item in items:
        lengths[item.path] = max(lengths.get(item.path, 0.0), _length(item))
    items.sort(key=lambda item: -lengths[item.path])
    yield


def _only_with_all(item: pytest.Item) -> bool:
    """Whether a test repeats on Debian's PostgreSQL what another shows on the embedded one.

    Both run the same SQL. `tests/integration/storage` shows that they agree about it.
    """
    if item.get_closest_marker("only_with_all") is not None:
        return True
    store = item.callspec.params.get("backing") if hasattr(item, "callspec") else None
    return store == "external" and "storage" not in item.path.parts


def _group_of(item: pytest.Item) -> str:
    """Tests of one group run in one worker: those of a file, and those that share a server."""
    fixtures = getattr(item, "fixturenames", ())
    for server in _SHARED_SERVERS:
        if server in fixtures:
            return server
    return item.path.stem


def _length(item: pytest.Item) -> float:
    """Return a rough order of how long a group takes: only its size against others counts."""
    if any(mark.args[0] in _SHARED_SERVERS for mark in item.iter_markers("xdist_group")):
        return math.inf
    limit = item.get_closest_marker("timeout")
    return float(limit.args[0]) if limit is not None else 0.0
