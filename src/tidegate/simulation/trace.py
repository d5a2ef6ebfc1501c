"""A trace: arrival rates over time, read from a CSV file.

    t_s,rate,service_ms
    0,120,10
    60,180,10

A row gives the rate from its time until the next row. The last row lasts as long as the row before
it. Buckets of a measurement can thus be replayed unchanged, and the number of arrivals is exactly
the sum of rate × length. A file with any other row is refused with the number of the line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tidegate.core.errors import InvalidValue

ROWS_MAX = 1_000_000
FILE_BYTES_MAX = 64 * 1024 * 1024
RATE_MAX_PER_S = 1e7
SERVICE_MS_MAX = 3_600_000.0
# 31 days; a longer trace has a mistake in the unit.
DURATION_S_MAX = 31 * 86_400.0
_HEADERS = (["t_s", "rate"], ["t_s", "rate", "service_ms"])


class Trace(msgspec.Struct, frozen=True):
    """Rates over time. The sequences have the same length, and times increase from 0."""

    name: str
    times_s: Sequence[float]
    rates_per_s: Sequence[float]
    # Time in milliseconds for one message. `None` uses the plant's capacity.
    service_ms: Sequence[float] | None = None

    @property
    def duration_s(self) -> float:
        return self.times_s[-1] + (self.times_s[-1] - self.times_s[-2])

    @property
    def peak_per_s(self) -> float:
        return max(self.rates_per_s)

    @property
    def messages(self) -> float:
        """The number of messages of the whole trace."""
        ends = [*self.times_s[1:], self.duration_s]
        return sum(
            rate * (end - start)
            for start, end, rate in zip(self.times_s, ends, self.rates_per_s, strict=True)
        )


class Reader:
    """Reads a trace from start to end; intervals must be requested in temporal order."""

    def __init__(self, trace: Trace) -> None:
        self._times = [*trace.times_s, trace.duration_s]
        self._rates = trace.rates_per_s
        self._services = trace.service_ms
        self._row = 0
        self._rows = len(trace.rates_per_s)

    def messages(self, start_s: float, end_s: float) -> float:
        """Return the number of messages between two times, as an exact sum over the rows."""
        times, rates = self._times, self._rates
        row, came = self._row, 0.0
        while row < self._rows and start_s < end_s:
            until = min(times[row + 1], end_s)
            if until > start_s:
                came += rates[row] * (until - start_s)
                start_s = until
            if times[row + 1] <= end_s:
                row += 1
            else:
                break
        self._row = min(row, self._rows - 1)
        return came

    @property
    def service_ms(self) -> float | None:
        """The service time of the current row, or `None`."""
        return None if self._services is None else self._services[self._row]


def read_trace(file: Path) -> Trace:
    """Read a trace from a CSV file.

    Raises `InvalidValue` with the first invalid line.
    """
    try:
        if file.stat().st_size > FILE_BYTES_MAX:
            raise InvalidValue(
                f"{file}: larger than {FILE_BYTES_MAX >> 20} MiB; give coarser rows, one a second "
                "or one a minute"
            )
        written = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidValue(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidValue(f"{file}: is no text in UTF-8; a trace is a CSV file") from None
    return parse_trace(written, file.stem, str(file))


def parse_trace(written: str, name: str, where: str = "trace") -> Trace:
    """Parse a trace from the text of a CSV file; `where` names it in errors."""
    lines = written.splitlines()
    if not any(line.strip() for line in lines):
        raise InvalidValue(f"{where}: is empty; a trace begins with the line t_s,rate")
    header = [cell.strip() for cell in lines[0].split(",")]
    if header not in _HEADERS:
        raise InvalidValue(
            f"{where}, line 1: the header is {lines[0].strip()[:80]!r}; it has to be t_s,rate or "
            "t_s,rate,service_ms"
        )
    times: list[float] = []
    rates: list[float] = []
    services: list[float] = []
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        if len(times) >= ROWS_MAX:
            raise InvalidValue(f"{where}, line {number}: more than {ROWS_MAX:,} rows")
        cells = _numbers(line, header, f"{where}, line {number}")
        _check_time(cells[0], times, f"{where}, line {number}")
        _check_between(cells[1], 0.0, RATE_MAX_PER_S, "rate", f"{where}, line {number}")
        times.append(cells[0])
        rates.append(cells[1])
        if len(cells) == 3:
            _check_between(cells[2], 1e-3, SERVICE_MS_MAX, "service_ms", f"{where}, line {number}")
            services.append(cells[2])
    if len(times) < 2:
        raise InvalidValue(f"{where}: has {len(times)} rows; a trace needs two or more")
    return Trace(name, times, rates, services or None)


def _numbers(line: str, header: Sequence[str], where: str) -> list[float]:
    cells = line.split(",")
    if len(cells) != len(header):
        raise InvalidValue(
            f"{where}: {len(cells)} values, but the header has {len(header)} ({','.join(header)})"
        )
    numbers: list[float] = []
    for name, cell in zip(header, cells, strict=True):
        try:
            number = float(cell)
        except ValueError:
            raise InvalidValue(f"{where}: {name} is {cell.strip()[:40]!r}, not a number") from None
        if not math.isfinite(number):
            raise InvalidValue(f"{where}: {name} is {cell.strip()}; it has to be finite")
        numbers.append(number)
    return numbers


def _check_time(time_s: float, before: Sequence[float], where: str) -> None:
    if not before and time_s != 0:
        raise InvalidValue(f"{where}: t_s is {time_s:g}; a trace begins at 0")
    if before and time_s <= before[-1]:
        raise InvalidValue(
            f"{where}: t_s is {time_s:g} after {before[-1]:g}; times have to increase"
        )
    if time_s > DURATION_S_MAX:
        raise InvalidValue(
            f"{where}: t_s is {time_s:g}; more than 31 days. Is it in milliseconds, or since 1970?"
        )


def _check_between(value: float, low: float, high: float, name: str, where: str) -> None:
    if value < low:
        problem = "negative" if value < 0 else "too small"
        raise InvalidValue(f"{where}: {name} is {value:g}: {problem}; at least {low:g}")
    if value > high:
        raise InvalidValue(f"{where}: {name} is {value:g}: too large; at most {high:g}")
