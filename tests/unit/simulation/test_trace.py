"""Traces: what a file may hold, and what is said about one that holds something else."""

from pathlib import Path

import pytest

from tidegate.core.errors import InvalidValue
from tidegate.simulation.traces import (
    KINDS,
    Trace,
    TraceReader,
    parse_trace,
    ramp,
    random_trace,
    read_trace,
)


def test_a_measured_load_is_read_row_by_row() -> None:
    trace = parse_trace("t_s,rate\n0,100\n60,200\n\n120,50\n", "mine")
    assert trace == Trace("mine", [0, 60, 120], [100, 200, 50])
    assert trace.duration_s == 180.0
    assert trace.messages == 60 * 350


def test_service_times_come_along() -> None:
    trace = parse_trace("t_s, rate, service_ms\n0,100,10\n1,100,20\n", "mine")
    assert trace.service_ms == [10, 20]
    reader = TraceReader(trace)
    reader.messages(0.0, 0.5)
    assert reader.service_ms == 10
    reader.messages(0.5, 1.5)
    assert reader.service_ms == 20


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        ("time,rate\n0,1\n1,1\n", "line 1: the header is 'time,rate'"),
        ("t_s,rate\n0,1\n", "has 1 rows"),
        ("t_s,rate\n5,1\n6,1\n", "line 2: t_s is 5; a trace begins at 0"),
        ("t_s,rate\n0,1\n2,1\n2,1\n", "line 4: t_s is 2 after 2; times have to increase"),
        ("t_s,rate\n0,1\n1,-3\n", "line 3: rate is -3: negative"),
        ("t_s,rate\n0,1\n1,nan\n", "line 3: rate is nan; it has to be finite"),
        ("t_s,rate\n0,1\n1,inf\n", "line 3: rate is inf; it has to be finite"),
        ("t_s,rate\n0,1\n1,many\n", "line 3: rate is 'many', not a number"),
        ("t_s,rate\n0,1\n1\n", "line 3: 1 values, but the header has 2"),
        ("t_s,rate\n0,1\n1,1e9\n", "line 3: rate is 1e+09: too large"),
        ("t_s,rate\n0,1\n1700000000,1\n", "Is it in milliseconds, or since 1970?"),
        ("t_s,rate,service_ms\n0,1,5\n1,1,0\n", "line 3: service_ms is 0: too small"),
    ],
)
def test_a_wrong_line_is_named(written: str, says: str) -> None:
    with pytest.raises(InvalidValue, match="trace") as refused:
        parse_trace(written, "mine")
    assert says in str(refused.value)


def test_a_file_that_is_no_text_and_one_that_is_not_there(tmp_path: Path) -> None:
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00t")
    with pytest.raises(InvalidValue, match="no text in UTF-8"):
        read_trace(binary)
    with pytest.raises(InvalidValue, match="cannot be read"):
        read_trace(tmp_path / "none.csv")
    marked = tmp_path / "excel.csv"
    marked.write_bytes("\ufefft_s,rate\r\n0,1\r\n1,2\r\n".encode())
    assert read_trace(marked).rates_per_s == [1, 2]


def test_walking_along_a_trace_loses_nothing() -> None:
    trace = parse_trace("t_s,rate\n0,10\n0.3,20\n2.7,5\n", "mine")
    reader = TraceReader(trace)
    came, at = 0.0, 0.0
    while at < trace.duration_s:
        came += reader.messages(at, min(at + 0.7, trace.duration_s))
        at += 0.7
    assert came == pytest.approx(trace.messages)


def test_a_ramp_grows_as_it_is_told() -> None:
    trace = ramp(0.5, 750.0, hold_s=100.0)
    assert trace.duration_s == 1600.0
    assert trace.rates_per_s[1000] == pytest.approx(500.25)
    assert trace.peak_per_s == 750.0


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_seed_is_a_trace(kind: str) -> None:
    trace = random_trace(kind, 7, 900.0)
    assert trace == random_trace(kind, 7, 900.0)
    assert trace != random_trace(kind, 8, 900.0)
    assert trace.duration_s == 900.0
    assert all(rate >= 0 for rate in trace.rates_per_s)
