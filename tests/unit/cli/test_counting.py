"""What the load counts, and how figures are shown, without processes."""

from __future__ import annotations

from tidegate.cli.output import Column, preview, terminal_table
from tidegate.core.text import milliseconds, seconds, sparkline
from tidegate_lab.loadgen.load import LoadProcessResult, LoadTask, Sequences, count_messages


def test_sequences_of_two_consumers_join_and_count_repeats() -> None:
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
        LoadTask(role="produce", url="", queue="q", number=5),
        # 4 failed: nobody knows whether it is stored, so nobody misses it.
        LoadProcessResult(put=5, confirmed=4, failed=[4], begun_ns=0, ended_ns=int(2e9)),
    )
    consumed = (
        LoadTask(role="consume", url="", queue="q"),
        LoadProcessResult(handled=4, seen=seen.encoded()),
    )

    found = count_messages([produced], [consumed])

    assert (found.put, found.confirmed, found.handled) == (5, 4, 4)
    assert (found.unhandled, found.repeated) == (1, 1)
    assert found.put_per_s == 2.0


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
