"""Every peer starts, carries checked messages both ways, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from missing_peer import skip_or_fail

from tidegate_lab.loadgen.worker import WorkerProcessFailed, measure_latency, measure_throughput
from tidegate_lab.peers.contenders import CONTENDERS, SERVERS, Contender
from tidegate_lab.peers.servers import PeerServer, ServerMissing

PEER_CONTENDERS = [one for one in CONTENDERS.values() if not one.is_ours]
PEER_SERVERS = [name for name in SERVERS if name != "tidegate"]


class Servers:
    """Peers that have been asked for, each started once for all tests of this file."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._running: dict[str, PeerServer] = {}

    def get(self, name: str) -> PeerServer:
        if name not in self._running:
            self._running[name] = enter_or_skip(name, self._stack)
        return self._running[name]


def enter_or_skip(name: str, stack: ExitStack) -> PeerServer:
    try:
        return stack.enter_context(SERVERS[name]())
    except ServerMissing as missing:
        skip_or_fail(str(missing))


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(stack)


@pytest.mark.parametrize("contender", PEER_CONTENDERS, ids=lambda one: one.name)
def test_a_peer_carries_every_message_once_and_intact(
    servers: Servers, contender: Contender
) -> None:
    server = servers.get(contender.server)

    throughput = measure_throughput(contender, server.port, messages=1100)

    assert throughput.messages == 1100
    assert throughput.messages_per_s > 0


@pytest.mark.parametrize(
    "contender", [one for one in PEER_CONTENDERS if one.offers_rate], ids=lambda one: one.name
)
def test_a_peer_offered_a_rate_reports_all_four_latencies(
    servers: Servers, contender: Contender
) -> None:
    server = servers.get(contender.server)

    latency = measure_latency(contender, server.port, rate_per_s=1000, seconds=0.5)

    assert 0 < latency.confirm_p50 <= latency.confirm_p99
    assert 0 < latency.handler_p50 <= latency.handler_p99


@pytest.mark.parametrize("name", PEER_SERVERS)
def test_a_stopped_server_leaves_no_process_and_no_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ours = psutil.Process()
    before = {child.pid for child in ours.children(recursive=True)}
    with ExitStack() as stack:
        enter_or_skip(name, stack)
        started = [one for one in ours.children(recursive=True) if one.pid not in before]
        assert started
        assert list(tmp_path.iterdir())

    assert not [one for one in started if one.is_running() and one.status() != "zombie"]
    assert not list(tmp_path.iterdir())


def test_a_server_is_stopped_when_the_measurement_fails() -> None:
    before = set(psutil.Process().children(recursive=True))
    started: set[psutil.Process] = set()

    def fail_while_it_runs() -> None:
        with ExitStack() as stack:
            enter_or_skip("redis", stack)
            started.update(set(psutil.Process().children(recursive=True)) - before)
            raise WorkerProcessFailed("on purpose")

    with pytest.raises(WorkerProcessFailed):
        fail_while_it_runs()

    assert started
    assert not [one for one in started if one.is_running()]


def test_a_contender_that_cannot_run_fails_with_what_it_said(servers: Servers) -> None:
    server = servers.get("redis")
    broken = Contender(name="broken", server="redis", module="tidegate_lab.peers.nobody")

    with pytest.raises(WorkerProcessFailed, match="No module named"):
        measure_throughput(broken, server.port, messages=10)
