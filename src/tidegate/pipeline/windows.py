"""Windows of time: their width, and the window that a row belongs to."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

# Widths in seconds that people use: 2 s to one day.
WIDTHS_S = (2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0)
_WINDOWS_MAX = 180


def width_for(span_s: float) -> float:
    """Return the smallest width that divides a time span into at most 180 windows.

    Spans longer than 180 days get windows of one day.
    """
    fitting = (width_s for width_s in WIDTHS_S if span_s <= _WINDOWS_MAX * width_s)
    return next(fitting, WIDTHS_S[-1])


def window_start(width_s: float, at: str = "at") -> Column:
    """Return the start of the window that holds the row's time; windows are aligned to 1970."""
    # Arithmetic on microseconds: Spark's own window() would build a struct for every row.
    width_us = round(width_s * 1e6)
    at_us = F.unix_micros(at)
    return F.timestamp_micros(at_us - F.pmod(at_us, F.lit(width_us)))
