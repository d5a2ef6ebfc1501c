"""Durations, sizes and rates as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.errors import InvalidValue
from tidegate.core.text import (
    format_duration,
    format_duration_long,
    format_size,
    parse_duration_s,
    parse_rate_per_s,
    parse_size_bytes,
)


@pytest.mark.parametrize(
    ("text", "duration_s"),
    [
        ("30s", 30.0),
        ("250ms", 0.25),
        ("5m", 300.0),
        ("1h", 3600.0),
        ("2d", 172800.0),
        ("1.5s", 1.5),
        (" 3 s ", 3.0),
        ("0s", 0.0),
        ("20us", 20e-6),
    ],
)
def test_a_duration_is_read(text: str, duration_s: float) -> None:
    assert parse_duration_s(text) == pytest.approx(duration_s)


@pytest.mark.parametrize(
    "text", ["", "30", "s", "-1s", "1 fortnight", "5M", "1e3s", "1s2", "nan s", "9" * 400 + "s"]
)
def test_invalid_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidValue, match="such as 250ms") as refused:
        parse_duration_s(text)
    # Of what is endless, the beginning.
    assert repr(text[:200]) in str(refused.value)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("512MiB", 512 * 1024**2),
        ("16MB", 16_000_000),
        ("1k", 1000),
        ("1Ki", 1024),
        ("8KiB", 8192),
        ("8kib", 8192),
        ("1.5GiB", 3 * 512 * 1024**2),
        ("100", 100),
        ("100B", 100),
        (100, 100),
        ("2TiB", 2 * 1024**4),
    ],
)
def test_a_size_is_read(text: str | int, size_bytes: int) -> None:
    assert parse_size_bytes(text) == size_bytes


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1.5B", "1 potato", "1MiBB", "0x10"])
def test_invalid_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue):
        parse_size_bytes(text)


@given(st.integers(min_value=0, max_value=10**30))
def test_whole_bytes_stay_exact_however_large(size_bytes: int) -> None:
    assert parse_size_bytes(f"{size_bytes}B") == size_bytes


@given(st.floats(min_value=1e-6, max_value=1e6))
def test_a_shown_duration_reads_back_as_nearly_the_same(duration_s: float) -> None:
    assert parse_duration_s(format_duration(duration_s)) == pytest.approx(duration_s, rel=1e-3)


def test_sizes_are_shown_in_their_largest_unit() -> None:
    assert format_size(512 * 1024**2) == "512MiB"
    assert format_size(1536) == "1.5KiB"
    assert format_size(7) == "7B"
    assert format_duration(0) == "0s"
    assert format_duration(5400) == "1.5h"


@pytest.mark.parametrize(
    ("duration_s", "said"),
    [
        (-0.2, "0 s"),
        (0.9, "0 s"),
        (17.4, "17 s"),
        (77.0, "1 min 17 s"),
        (120.0, "2 min"),
        (3_599.9, "59 min 59 s"),
        (3_605.0, "1 h"),
        (7_500.0, "2 h 5 min"),
        (86_400.0 * 3 + 4 * 3_600.0, "3 d 4 h"),
        (86_400.0 * 400 + 59.0, "400 d"),
    ],
)
def test_an_age_is_said_as_people_do(duration_s: float, said: str) -> None:
    assert format_duration_long(duration_s) == said


@pytest.mark.parametrize(
    ("text", "per_s"),
    [("400/s", 400.0), ("0.5/s", 0.5), ("90/m", 1.5), ("36 / h", 0.01)],
)
def test_a_rate_is_messages_in_a_time(text: str, per_s: float) -> None:
    assert parse_rate_per_s(text) == pytest.approx(per_s)


@pytest.mark.parametrize(
    "text", ["", "400", "fast", "-1/s", "4/", "4/x", "/s", "4/s/s", "nan", "1e3/s"]
)
def test_invalid_rate_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match="not a rate such as"):
        parse_rate_per_s(text)
