"""Windows of time: which one a row belongs to."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F


def window_start(width_s: float, at: str = "at") -> Column:
    """The beginning of the window, aligned to 1970, in which a row's time lies."""
    # Plain arithmetic on microseconds: Spark's own window() makes a struct of it for every row.
    width_us = round(width_s * 1e6)
    at_us = F.unix_micros(at)
    return F.timestamp_micros(at_us - F.pmod(at_us, F.lit(width_us)))
