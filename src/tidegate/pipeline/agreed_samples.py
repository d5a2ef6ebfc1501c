"""Samples of queues and doors, converted to the columns of `agreement.windows.AgreementSample`.

    column               of a queue               of an HTTP service
    accepted             put                      answered − server errors
    served               acked                    answered − server errors
    refused              refused                  refused + server errors
    came                 –                        all that came
    unanswered           –                        refused
    waiting              waiting                  waiting in the door
    oldest_age_s         of the oldest            –
    free_memory_bytes    –                        of an instance
    wait                 histogram                –
    service              histogram                histogram, of instances
    response             of sampled messages      histogram, of doors

One set of transforms (`pipeline.promises`) can therefore judge both. The rows of `http_samples`
belong either to a door or to an instance. Each has 0 in the columns of the other, so sums over all
rows are correct.
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
    """A kind of agreement subject, queues or HTTP services, and how its samples are read."""

    # Converts samples to the columns above.
    worded: Callable[[DataFrame], DataFrame]
    # Histograms of all requests or messages, as opposed to times of a sample of them.
    histograms: tuple[str, ...]
    governs: Callable[[Agreement, str], bool]
    # The agreement's subject as written, with wild cards; `None` if the agreement is about the
    # other kind.
    said: Callable[[Agreement], str | None]


def queues_worded(samples: DataFrame) -> DataFrame:
    """Convert `queue_samples` to agreement columns."""
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
    """Convert `http_samples` to agreement columns."""
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
