"""What was recorded of queues and of doors, in the words of agreements (agreement.windows.Sample).

    column               of a queue               of an HTTP service
    accepted             put                      answered − server errors
    served               acked                    answered
    refused              refused                  refused + server errors
    came                 –                        all that came
    unanswered           –                        refused
    waiting              waiting                  waiting in the door
    oldest_age_s         of the oldest            –
    free_memory_bytes    –                        of an instance
    wait                 histogram                –
    service              histogram                histogram, of instances
    response             of sampled messages      histogram, of doors

So that one set of transforms judges both. Rows of doors and of instances lie side by side: each
says 0 of what is the other's, so sums over all of them are right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidegate.agreement.document import Agreement
from tidegate.agreement.http_sample import kept, missed


@dataclass(frozen=True)
class Subjects:
    """What agreements are about: queues, or HTTP services."""

    # In their own words to those of agreements.
    worded: Callable[[DataFrame], DataFrame]
    # Times that are recorded of all, and not of a sample of them.
    histograms: tuple[str, ...]
    governs: Callable[[Agreement, str], bool]
    # As the agreement says it, wild cards and all; None: it is about others.
    said: Callable[[Agreement], str | None]


def queues_worded(samples: DataFrame) -> DataFrame:
    """`queue_samples` in the words of agreements."""
    return samples.select(
        "at",
        "interval_s",
        F.col("queue").alias("subject"),
        F.col("put").alias("accepted"),
        F.col("acked").alias("served"),
        *("refused", "waiting", "oldest_age_s"),
        _unknown("free_memory_bytes"),
        *(_unknown("unanswered"), _unknown("came")),
        *("wait", "service"),
    )


def doors_worded(samples: DataFrame) -> DataFrame:
    """`http_samples` in the words of agreements."""
    server_errors = F.col("server_errors")
    return samples.select(
        "at",
        "interval_s",
        F.col("service").alias("subject"),
        kept(F.col("answered"), server_errors).alias("accepted"),
        kept(F.col("answered"), server_errors).alias("served"),
        missed(F.col("refused"), server_errors).alias("refused"),
        F.col("refused").alias("unanswered"),
        F.col("accepted").alias("came"),
        "waiting",
        _unknown("oldest_age_s"),
        "free_memory_bytes",
        F.col("service_time").alias("service"),
        "response",
    )


def _unknown(name: str) -> Column:
    return F.lit(None).cast("double").alias(name)


QUEUES = Subjects(
    queues_worded, ("wait", "service"), Agreement.governs_queue, lambda one: one.queue
)
SERVICES = Subjects(
    doors_worded,
    ("service", "response"),
    lambda one, service: one.http == service,
    lambda one: one.http,
)
