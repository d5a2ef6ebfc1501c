"""Windows of time: how wide they are, and which one a row belongs to."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

# Widths that people count in, in seconds.
WIDTHS_S = (2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0)
_WINDOWS_MAX = 180


def width_for(span_s: float) -> float:
    """The width that cuts a span of time into windows enough to see something, and not too many."""
    fitting = (width_s for width_s in WIDTHS_S if span_s <= _WINDOWS_MAX * width_s)
    return next(fitting, WIDTHS_S[-1])


def window_start(width_s: float, at: str = "at") -> Column:
    """The beginning of the window, aligned to 1970, in which a row's time lies."""
    # Plain arithmetic on microseconds: Spark's own window() makes a struct of it for every row.
    width_us = round(width_s * 1e6)
    at_us = F.unix_micros(at)
    return F.timestamp_micros(at_us - F.pmod(at_us, F.lit(width_us)))
