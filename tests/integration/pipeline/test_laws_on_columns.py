"""The formulas are written once: what they say of numbers, they say of Spark's Columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidegate.agreements import Metric, Unit, Worse
from tidegate.agreements.evaluation import (
    bad_requests,
    budget_left,
    burn_rate,
    good_requests,
    is_breached,
    is_late,
    is_warned,
    metric_verdict,
    worsening_per_s,
)
from tidegate.laws.http.sizing import is_saturated
from tidegate.laws.prefetch.fit import (
    FIELDS,
    RegressionSums,
    fit_model,
    linear_model,
    r_squared,
    squared_error,
)
from tidegate.laws.scaling import (
    Stability,
    client_load,
    is_draining,
    is_flooded,
    stability,
    throughput_at,
)
from tidegate.telemetry.meters import BUCKETS, ends_at_s, upper_bound_s

THROUGHPUT = Metric("throughput", Worse.SMALLER, Unit.PER_SECOND, breach=100.0, warning=120.0)
WAIT = Metric("wait_p99", Worse.LARGER, Unit.SECONDS, breach=6.0, warning=4.8)


@pytest.fixture(scope="module")
def samples(spark: SparkSession) -> DataFrame:
    random = np.random.default_rng(1)
    rows = [(float(y), float(u)) for y, u in random.uniform(0.0, 200.0, (200, 2))]
    return spark.createDataFrame(rows, "y double, u double").coalesce(1)


def rows_of(frame: DataFrame, **columns: Any) -> list[Any]:
    return frame.select("y", "u", *(c.alias(name) for name, c in columns.items())).collect()


def test_stability_and_load(samples: DataFrame) -> None:
    y, u = F.col("y"), F.col("u")

    for row in rows_of(
        samples, flooded=is_flooded(y, u), draining=is_draining(y, u), load=client_load(y, u, 9)
    ):
        state = stability(row.y, row.u)
        assert row.flooded == (state is Stability.FLOODED)
        assert row.draining == (state is Stability.DRAINING)
        assert row.load == pytest.approx(client_load(row.y, row.u, 9))


def test_agreements(samples: DataFrame) -> None:
    y, u = F.col("y"), F.col("u")

    for row in rows_of(
        samples,
        breached=is_breached(THROUGHPUT, y, u),
        warned=is_warned(THROUGHPUT, y, u),
        late=is_breached(WAIT, y / 20.0),
        too_few=is_late(y, u, 0.99),
        left=budget_left(y, F.lit(1000), 0.99),
        burn=burn_rate(y, u, 0.99),
    ):
        said = metric_verdict(THROUGHPUT, row.y, row.u).value
        assert said == ("breached" if row.breached else "warned" if row.warned else "met")
        assert row.late == (metric_verdict(WAIT, row.y / 20.0).value == "breached")
        assert row.too_few == is_late(row.y, row.u, 0.99)
        assert row.left == pytest.approx(budget_left(row.y, 1000, 0.99))
        assert row.burn == pytest.approx(burn_rate(row.y, row.u, 0.99))


def test_http_services(samples: DataFrame) -> None:
    y, u = F.col("y"), F.col("u")

    for row in rows_of(
        samples,
        kept=good_requests(y, u),
        missed=bad_requests(y, u),
        rises=worsening_per_s(Worse.LARGER, y, u, F.lit(5.0)),
        falls=worsening_per_s(Worse.SMALLER, y, u, F.lit(5.0)),
        full=is_saturated(y, u),
        ends=ends_at_s(y),
    ):
        assert (row.kept, row.missed) == (good_requests(row.y, row.u), bad_requests(row.y, row.u))
        assert row.rises == pytest.approx(worsening_per_s(Worse.LARGER, row.y, row.u, 5.0))
        assert row.falls == -row.rises
        assert row.full == is_saturated(row.y, row.u)
        assert row.ends == pytest.approx(ends_at_s(row.y))
    ends_s = ends_at_s(np.arange(BUCKETS))
    assert ends_s.tolist() == pytest.approx([upper_bound_s(bucket) for bucket in range(BUCKETS)])


def test_null_value_is_neither_breached_nor_warned(spark: SparkSession) -> None:
    nothing = spark.createDataFrame([(None,)], "value double")
    value = F.col("value")

    assert nothing.select(is_breached(WAIT, value), is_warned(WAIT, value)).first() == (None, None)


def test_identification_with_its_quality(samples: DataFrame) -> None:
    y, u = F.col("y"), F.col("u")
    each = RegressionSums.of(y, u, y * 0.5 + u * 7.0 + F.sin(y * 9.0))

    added = samples.agg(*(F.sum(getattr(each, name)).alias(name) for name in FIELDS))
    columns = RegressionSums(*(F.col(name) for name in FIELDS))
    fitted = linear_model(columns)
    row = added.select(
        *FIELDS,
        fitted.a.alias("a"),
        fitted.b.alias("b"),
        r_squared(fitted, columns).alias("r2"),
        squared_error(fitted, columns).alias("squares"),
        throughput_at(F.col("n"), 1.0, 0.1, 0.01).alias("scaled"),
    ).first()

    assert row is not None
    sums = RegressionSums(*(row[name] for name in FIELDS))
    assert row.n == 200
    assert row.a == pytest.approx(fit_model(sums).a)
    assert row.b == pytest.approx(fit_model(sums).b)
    assert row.r2 == pytest.approx(r_squared(fit_model(sums), sums))
    assert row.squares == pytest.approx(squared_error(fit_model(sums), sums), rel=1e-6)
    assert row.scaled == pytest.approx(throughput_at(200.0, 1.0, 0.1, 0.01))
