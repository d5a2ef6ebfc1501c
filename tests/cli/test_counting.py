"""What the demo and the load count and show, without processes."""

from __future__ import annotations

import msgspec

from tidegate.cli.demo.recent import Recent
from tidegate.cli.figures import milliseconds, seconds, sparkline
from tidegate.cli.output import Column, terminal_table
from tidegate.cli.payload import preview
from tidegate.lab.bench.load import Duty, Outcome, Sequences, tally
from tidegate.telemetry.histogram import Histogram
from tidegate.telemetry.numbers import (
    ClusterNumbers,
    Durations,
    NodeNumbers,
    PhaseNumbers,
    QueueNumbers,
    durations,
)


def test_what_two_consumers_saw_is_joined_and_repeats_are_counted() -> None:
    first, second = Sequences(), Sequences()
    for sequence in range(10_000):
        (first if sequence % 2 else second).add(1, sequence)
    second.add(1, 7)

    joined = Sequences()
    joined.add_all(first.encoded())
    joined.add_all(second.encoded())

    assert joined.missing(1, 10_000, except_for=()) == 0
    assert joined.missing(1, 10_002, except_for=()) == 2
    assert joined.missing(1, 10_002, except_for=[10_001]) == 1
    assert joined.repeats == 1


def test_a_confirmed_message_that_nobody_handled_is_found() -> None:
    seen = Sequences()
    for sequence in (0, 1, 3, 3):
        seen.add(5, sequence)
    produced = (
        Duty(role="produce", url="", queue="q", number=5),
        # 4 failed: nobody knows whether it is stored, so nobody misses it.
        Outcome(put=5, confirmed=4, failed=[4], begun_ns=0, ended_ns=int(2e9)),
    )
    consumed = (Duty(role="consume", url="", queue="q"), Outcome(handled=4, seen=seen.encoded()))

    found = tally([produced], [consumed])

    assert (found.put, found.confirmed, found.handled) == (5, 4, 4)
    assert (found.unhandled, found.repeated) == (1, 1)
    assert found.put_per_s == 2.0


def test_a_moment_is_the_difference_of_two_readings() -> None:
    waits = Histogram()
    waits.add(10.0, times=1000)
    before = _cluster(put=1000, acked=1000, wait=durations(waits))
    waits.add(0.001, times=99)
    waits.add(0.100)
    after = _cluster(put=1100, acked=1050, wait=durations(waits))

    recent = Recent(["q"])
    recent.read(0.0, before)
    # As it travels.
    moment = recent.read(0.5, msgspec.json.decode(msgspec.json.encode(after), type=ClusterNumbers))

    (queue,) = moment.queues
    assert (queue.in_per_s, queue.out_per_s) == (200.0, 100.0)
    assert 0.9 < queue.wait_p50_ms < 1.1, "what happened before the last second does not count"
    assert recent.peak_in_per_s == 200.0


def _cluster(*, put: int, acked: int, wait: Durations) -> ClusterNumbers:
    nothing = Durations()
    queue = QueueNumbers(
        queue_id=1,
        name="q",
        durable=True,
        epoch=1,
        waiting=0,
        waiting_in_store=0,
        unacknowledged=0,
        oldest_age_s=0.0,
        resident_bytes=0,
        put=put,
        delivered=acked,
        acked=acked,
        returned=0,
        redelivered=0,
        refused=0,
        put_per_s=0.0,
        delivered_per_s=0.0,
        acked_per_s=0.0,
        readers_waiting=0,
        wait=wait,
        service=nothing,
        consumers=[],
    )
    node = NodeNumbers(
        member_id=1,
        name="n",
        address="tidegate://127.0.0.1:1",
        uptime_s=1.0,
        connections=1,
        memory_bound_bytes=1,
        memory_resident_bytes=0,
        process_memory_bytes=0,
        process_cpu_s=0.0,
        commits=0,
        commit=nothing,
        messages_per_commit=0.0,
        packets_in=0,
        packets_out=0,
        queues=[queue],
        phases=PhaseNumbers(nothing, nothing, nothing, nothing, nothing),
    )
    return ClusterNumbers([node])


def test_a_narrow_table_leaves_out_spare_columns_from_the_right() -> None:
    columns = [Column("name"), Column("first", spare=True), Column("second", spare=True)]
    rows = [["a name of some length", "1", "2"]]

    def names(width: int) -> list[object]:
        return [column.header for column in terminal_table(columns, rows, width=width).columns]

    assert names(80) == ["name", "first", "second"]
    assert names(32) == ["name", "first"]
    assert names(10) == ["name"]


def test_figures_read_well() -> None:
    assert [milliseconds(ms) for ms in (0.123, 12.34, 123.4, 1234.0)] == [
        "0.12 ms",
        "12.3 ms",
        "123 ms",
        "1.2 s",
    ]
    assert [seconds(s) for s in (0.04, 99.0, 119.0, 600.0, 86400.0 * 3)] == [
        "0.0 s",
        "99.0 s",
        "119 s",
        "10.0 min",
        "3.0 d",
    ]
    assert sparkline([0.0, 5.0, 10.0], 5) == "  ▁▅█"
    assert sparkline([0.0, 0.0], 2) == "▁▁"
    assert sparkline([], 2) == "  "


def test_a_preview_is_one_harmless_line() -> None:
    assert preview(b"a\nb\x1b[2J") == r"a\nb\x1b[2J"
    assert preview("ä".encode() * 100) == "ä" * 59 + "…"
    assert preview(b"\xff\x00") == "<2 bytes: ff 00>"
