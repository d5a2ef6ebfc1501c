"""Every peer starts, carries checked messages both ways, and leaves nothing behind."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tidegate.lab.bench.compare import CompareOptions
from tidegate.lab.bench.compare_report import build_report
from tidegate.lab.bench.measurement import (
    Latency,
    MeasurementFailed,
    measure_latency,
    measure_throughput,
)
from tidegate.lab.bench.payload import PayloadChecker, PayloadWrong, make_payload
from tidegate.lab.peers.amqp import ConfirmReader
from tidegate.lab.peers.contenders import CONTENDERS, SERVERS, Contender
from tidegate.lab.peers.server import Server, ServerMissing, temporary_folder

PEER_CONTENDERS = [one for one in CONTENDERS.values() if not one.is_ours]
PEER_SERVERS = [name for name in SERVERS if name != "tidegate"]


class Servers:
    """Peers that have been asked for, each started once for all tests of this file."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._running: dict[str, Server] = {}

    def get(self, name: str) -> Server:
        if name not in self._running:
            self._running[name] = enter_or_skip(name, self._stack)
        return self._running[name]


def enter_or_skip(name: str, stack: ExitStack) -> Server:
    try:
        return stack.enter_context(SERVERS[name]())
    except ServerMissing as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(str(missing))
        pytest.skip(str(missing))


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
            raise MeasurementFailed("on purpose")

    with pytest.raises(MeasurementFailed):
        fail_while_it_runs()

    assert started
    assert not [one for one in started if one.is_running()]


def test_a_contender_that_cannot_run_fails_with_what_it_said(servers: Servers) -> None:
    server = servers.get("redis")
    broken = Contender(name="broken", server="redis", module="tidegate.lab.peers.nobody")

    with pytest.raises(MeasurementFailed, match="No module named"):
        measure_throughput(broken, server.port, messages=10)


def test_a_temporary_folder_goes_even_when_its_block_fails() -> None:
    kept: list[Path] = []

    def fail_inside() -> None:
        with temporary_folder("test") as folder:
            kept.append(folder)
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError):
        fail_inside()

    assert not kept[0].exists()


def test_a_payload_is_checked_for_damage_repetition_and_origin() -> None:
    checker = PayloadChecker(messages=2)
    first = make_payload(0, 123)

    assert len(first) == 256
    assert checker.check(first) == 123
    with pytest.raises(PayloadWrong, match="twice"):
        checker.check(first)
    with pytest.raises(PayloadWrong, match="never sent"):
        checker.check(make_payload(2, 0))
    for position in (0, 15, 100, 255):
        damaged = bytearray(make_payload(1, 0))
        damaged[position] ^= 1
        with pytest.raises(PayloadWrong, match="damaged"):
            checker.check(bytes(damaged))
    checker.check(make_payload(1, 0))
    assert checker.complete


def test_confirms_count_once_however_the_broker_groups_them() -> None:
    def confirm(tag: int, *, multiple: bool) -> bytes:
        return struct.pack(">BHIHHQBB", 1, 1, 13, 60, 80, tag, multiple, 0xCE)

    stream = (
        confirm(3, multiple=False)
        + confirm(1, multiple=False)
        + confirm(5, multiple=True)
        + confirm(6, multiple=False)
    )
    for chunk_bytes in (1, 7, 21, 1000):
        reader = ConfirmReader()
        tags = [
            tag
            for start in range(0, len(stream), chunk_bytes)
            for tag in reader.feed(stream[start : start + chunk_bytes])
        ]
        assert sorted(tags) == [1, 2, 3, 4, 5, 6]
        assert reader.confirmed == 6


def test_a_report_has_ratios_to_every_peer_and_leaves_unmeasured_bars_open() -> None:
    ours = Latency(confirm_p50=1.0, confirm_p99=2.0, handler_p50=1.0, handler_p99=2.0)
    classic = Latency(confirm_p50=1.5, confirm_p99=1.5, handler_p50=0.5, handler_p99=0.5)
    report = build_report(
        rounds={
            "tidegate": [90.0, 100.0, 200.0],
            "tidegate one at a time": [6.0],
            "rabbitmq raw classic": [10.0],
            "rabbitmq raw quorum": [20.0],
            "rabbitmq pika classic": [3.0],
        },
        latency_rounds={"tidegate": [ours], "rabbitmq raw classic": [classic]},
        messages={},
        skipped={},
        failed={},
        notes=[],
        environment={},
    )

    assert report.throughput["tidegate"] == 100.0
    assert report.ratio == {
        "rabbitmq raw classic": 10.0,
        "rabbitmq raw quorum": 5.0,
        "rabbitmq pika classic": 2.0,
    }
    verdicts = {bar["bar"]: bar["met"] for bar in report.as_json()["bars"]}
    assert verdicts["put per message, over RabbitMQ's raw limit"] is True
    assert verdicts["put per message, over NATS JetStream"] is None
    assert verdicts["put to confirm p50, not above rabbitmq raw classic"] is True
    assert verdicts["put to confirm p99, not above rabbitmq raw classic"] is False
    assert verdicts["put to handler p99, not above rabbitmq raw quorum"] is None


def test_an_unknown_system_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ValueError, match="nats jetstream"):
        CompareOptions(only=["kafka"]).contenders()
