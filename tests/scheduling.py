"""Who runs what when several processes share the tests, and in which order.

Strategy: a file is run by one process, which keeps what the file has started. Files that share what
is dear to start (a Spark, a RabbitMQ) go to one process together: three would start three, and no
Spark would ever be warm. What takes longest comes first, since at the end nobody could help with it
(xdist's own order is by the number of tests, so that files of few, the longest, would come last).
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import PurePath

import pytest
from xdist.scheduler import LoadFileScheduling

# By folder, or by file.
TOGETHER = {
    "tests/pipeline/": "a Spark",
    "tests/engines/": "a RabbitMQ",
    "tests/adapters/rabbitmq/": "a RabbitMQ",
    "tests/docs/test_how_to_rabbitmq.py": "a RabbitMQ",
}
# Those start Sparks of their own, to end them.
SPARKS_OF_THEIR_OWN = {
    "test_session.py",
    "test_session_ends.py",
    "test_watch_kills.py",
}
# What no mark tells of: files that take long though their tests are few, as CI has measured them.
LONG_S = {
    "tests/lab/test_replicated_queues.py": 112.0,
    "tests/cli/test_steer_command.py": 50.0,
    "tests/docs/test_how_tos.py": 35.0,
    "tests/lab/test_elastic_ramp.py": 31.0,
    "tests/lab/test_tapas.py": 30.0,
    "tests/docs/test_site.py": 15.0,
    "tests/access/test_canaries.py": 13.0,
    "tests/lab/test_backlog.py": 12.0,
    "tests/console/test_description.py": 11.0,
}
# pyproject.toml's; who asks for more needs it.
TIMEOUT_S = 120


def scope_of(nodeid: str) -> str:
    """What is run by one process."""
    file = nodeid.partition("::")[0]
    if PurePath(file).name in SPARKS_OF_THEIR_OWN:
        return file
    return next((what for folder, what in TOGETHER.items() if file.startswith(folder)), file)


class OurScheduling(LoadFileScheduling):  # type: ignore[misc]
    """By file, and the files that share a server together."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def sort_longest_first(items: list[pytest.Item]) -> None:
    seconds: defaultdict[str, float] = defaultdict(float)
    for item in items:
        seconds[scope_of(item.nodeid)] += _seconds_about(item)
    for scope in seconds:
        seconds[scope] = max(seconds[scope], LONG_S.get(scope, 0.0))
    items.sort(key=lambda item: (-seconds[scope_of(item.nodeid)], scope_of(item.nodeid)))


def _seconds_about(item: pytest.Item) -> float:
    limit = item.get_closest_marker("timeout")
    if limit is not None and limit.args[0] > TIMEOUT_S:
        return float(limit.args[0]) / 5.0
    if item.get_closest_marker("spark") or "spark" in getattr(item, "fixturenames", ()):
        return 10.0
    # What is slow by its store only is not slow.
    if hasattr(item, "callspec") and "backing" in item.callspec.params:
        return 0.3
    if item.get_closest_marker("slow") is not None:
        return 5.0
    return 0.5 if item.get_closest_marker("peers") is not None else 0.1
