"""What a comparison with other systems is made of: payloads, confirms, folders and its report."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tidegate_lab.bench.compare import CompareOptions
from tidegate_lab.bench.compare_report import build_report
from tidegate_lab.loadgen.processes import PayloadChecker, PayloadWrong, make_payload
from tidegate_lab.loadgen.worker import Latency
from tidegate_lab.peers.amqp import ConfirmReader
from tidegate_lab.peers.servers import temporary_folder


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
