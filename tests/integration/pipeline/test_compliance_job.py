"""Agreements against rows whose verdict is known."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest
from lake_of import NOON, frame_of
from pyspark.sql import DataFrame, SparkSession

from tidegate.agreements.document import Agreement, format_agreement, parse_agreement
from tidegate.agreements.evaluation import (
    AgreementSample,
    Verdict,
    agreement_sample,
    judge_window,
    windows_of,
)
from tidegate.core.services import DoorSample, Instance, InstanceSample, InstanceState
from tidegate.pipeline.jobs import JobInputs, first_bucket_from
from tidegate.pipeline.jobs.agreements import COMPLIANCE_JOB
from tidegate.pipeline.lake import checked
from tidegate.telemetry.meters import Histogram, bucket_of, upper_bound_s
from tidegate.telemetry.recorder import door_rows
from tidegate.telemetry.schemas import HTTP_SAMPLES, LIFECYCLES, QUEUE_SAMPLES

ORDERS = """
name = "orders"
queue = "orders.*"
window = "10s"
objective = 0.5
period = "100s"

[metrics.wait_p90]
breach = "1s"
warning = "500ms"

[metrics.throughput]
breach = 10
warning = 12
"""

MAIL = """
name = "mail"
queue = "mail"
window = "60s"

[metrics.service_p50]
breach = "100ms"

[metrics.response_p50]
breach = "2s"

[metrics.oldest_age]
breach = "30s"

[metrics.availability]
breach = 0.9

[metrics.free_memory]
breach = "512MiB"
"""

SHOP = """
name = "shop"
http = "shop"
window = "10s"
[metrics.response_p95]
breach = "1s"
[metrics.service_p50]
breach = "80ms"
[metrics.throughput]
breach = 18
[metrics.availability]
breach = 0.97
[metrics.free_memory]
breach = "64MiB"
"""

NOBODY = """
name = "nobody"
queue = "no.such.queue"
[metrics.oldest_age]
breach = "1s"
"""


def tables(
    spark: SparkSession,
    agreements: list[Agreement],
    samples: list[dict[str, object]],
    lifecycles: list[dict[str, object]] | None = None,
    doors: list[dict[str, object]] | None = None,
) -> dict[str, DataFrame]:
    frames = {
        "queue_samples": frame_of(spark, QUEUE_SAMPLES, samples),
        "lifecycles": frame_of(spark, LIFECYCLES, lifecycles or []),
        "http_samples": frame_of(spark, HTTP_SAMPLES, doors or []),
    }
    until = NOON + timedelta(hours=1)
    outcome = COMPLIANCE_JOB.run(JobInputs(frames, agreements, NOON, until))
    return {
        name: checked(outcome.tables[name], schema, name)
        for name, schema in COMPLIANCE_JOB.writes.items()
    }


def waits(**counts: int) -> list[dict[str, int]]:
    """A histogram: `ms100=3` are three that took 100 ms."""
    return [
        {"bucket": bucket_of(int(name[2:]) / 1e3), "count": count}
        for name, count in sorted(counts.items(), key=lambda one: int(one[0][2:]))
    ]


def test_windows_are_met_warned_and_breached_by_the_worst_promise(spark: SparkSession) -> None:
    def second(at_s: float, queue: str, **figures: object) -> dict[str, object]:
        return {"at": NOON + timedelta(seconds=at_s), "queue": queue, **figures}

    samples = [
        # Met: 19 of 20 below half a second, 20 messages in 1 s.
        second(1, "orders.eu", acked=20, put=20, wait=waits(ms100=19, ms2000=1)),
        # Warned: of both queues together 16 of 18 are below 500 ms, which is less than 90 %,
        # and 17 below a second, which is more.
        second(11, "orders.eu", acked=9, put=9, wait=waits(ms100=8, ms700=1)),
        second(11, "orders.us", acked=9, put=9, wait=waits(ms100=8, ms2000=1)),
        # Breached: half of them waited for two seconds.
        second(21, "orders.eu", acked=20, put=20, wait=waits(ms100=10, ms2000=10)),
        # Breached: five a second, though more had come.
        second(31, "orders.us", acked=5, put=40, wait=waits(ms100=5)),
        # Met: five a second, and no more had come.
        second(41, "orders.us", acked=5, put=5, wait=waits(ms100=5)),
        # Nobody recorded the next window; and this queue is none of theirs.
        second(61, "orders.us", acked=20, put=20, wait=waits(ms100=20)),
        second(61, "others", acked=20, put=20, wait=waits(ms9000=20)),
    ]

    found = tables(spark, [parse_agreement(ORDERS, "test")], samples)

    verdicts = found["compliance"].orderBy("window").collect()
    assert [(int((row.window - verdicts[0].window).seconds), row.verdict) for row in verdicts] == [
        (0, "met"),
        (10, "warned"),
        (20, "breached"),
        (30, "breached"),
        (40, "met"),
        (60, "met"),
    ]
    (level,) = found["service_levels"].collect()
    assert (level.met, level.warned, level.breached, level.no_data) == (3, 1, 2, 1)
    # Half of the ten windows of its period may be breached; two are.
    assert level.budget_left == pytest.approx(1 - 2 / 5)
    assert level.burn_rate == pytest.approx((2 / 6) / 0.5)
    promises = {
        (row.metric, int((row.window - verdicts[0].window).seconds)): row
        for row in found["promises"].collect()
    }
    assert promises["wait_p90", 10].within == pytest.approx(17 / 18)
    assert promises["throughput", 10].value == pytest.approx(18.0)
    assert promises["throughput", 30].verdict == "breached"
    assert promises["throughput", 40].verdict == "met"


def test_every_metric_is_judged_by_what_is_recorded_of_it(spark: SparkSession) -> None:
    at = NOON + timedelta(seconds=5)
    samples: list[dict[str, object]] = [
        {
            "at": at,
            "queue": "mail",
            "put": 8,
            "refused": 2,
            "acked": 8,
            "oldest_age_s": 25.0,
            "service": waits(ms10=6, ms200=4),
        },
    ]
    lifecycles: list[dict[str, object]] = [
        {"at": at, "queue": "mail", "weight": 30.0, "response_us": 2.5e6},
        {"at": at, "queue": "mail", "weight": 10.0, "response_us": 1.0e6},
    ]

    found = tables(spark, [parse_agreement(MAIL, "test")], samples, lifecycles)

    verdicts = {row.metric: row.verdict for row in found["promises"].collect()}
    assert verdicts == {
        "service_p50": "met",
        "response_p50": "breached",
        "oldest_age": "warned",
        "availability": "breached",
        "free_memory": "no_data",
    }
    assert [row.verdict for row in found["compliance"].collect()] == ["breached"]


def test_an_agreement_whose_queues_were_not_seen_has_no_data_and_its_whole_budget(
    spark: SparkSession,
) -> None:
    agreements = [parse_agreement(text, "test") for text in (ORDERS, NOBODY)]

    found = tables(spark, agreements, [{"queue": "orders.eu", "wait": waits(ms100=1)}])

    levels = {row.agreement: row for row in found["service_levels"].collect()}
    assert set(levels) == {"orders", "nobody"}
    assert levels["nobody"].budget_left == 1.0
    assert levels["nobody"].burn_rate is None
    assert found["compliance"].count() == 1


def test_a_budget_is_spent_by_the_windows_of_its_period_however_far_back_one_looks(
    spark: SparkSession,
) -> None:
    breached, met = waits(ms2000=1), waits(ms100=1)
    # A period of ten windows; the eleventh from the end is out of it.
    samples: list[dict[str, object]] = [
        {"at": NOON + timedelta(seconds=at_s), "queue": "orders.eu", "wait": wait}
        for at_s, wait in ((-900, breached), (1, breached), (11, breached), (21, met), (101, met))
    ]

    found = tables(spark, [parse_agreement(ORDERS, "test")], samples)

    (level,) = found["service_levels"].collect()
    assert (level.met, level.breached, level.no_data) == (2, 1, 7)
    assert level.budget_left == pytest.approx(1 - 1 / 5)
    assert level.burn_rate == pytest.approx((1 / 3) / 0.5)
    assert (level.to - level["from"]).total_seconds() == 100
    assert found["compliance"].count() == 5


def test_the_job_and_a_live_loop_come_to_the_same_verdicts(spark: SparkSession) -> None:
    agreement = parse_agreement(
        ORDERS + '[metrics.oldest_age]\nbreach = "30s"\n[metrics.availability]\nbreach = 0.9',
        "test",
    )
    chance = random.Random(7)
    rows: list[dict[str, object]] = []
    samples: list[AgreementSample] = []
    for at_s in range(600):
        figures = {name: chance.randrange(12) for name in ("acked", "put", "waiting")}
        refused, age_s = chance.randrange(2), chance.uniform(0.0, 33.0) if at_s % 10 else None
        counts = {bucket_of(chance.uniform(0.01, 1.1)): chance.randrange(1, 9) for _ in range(3)}
        # Windows without a duration, and with no load at all.
        counts = {} if at_s // 10 % 7 == 0 else counts
        if at_s // 10 % 5 == 0 and at_s % 10 < at_s // 50:
            # Load that begins within a window, later and later in it.
            figures, refused = dict.fromkeys(figures, 0), 0
        at = NOON + timedelta(seconds=at_s)
        rows.append(
            {
                "at": at,
                "queue": f"orders.{at_s % 2}",
                "refused": refused,
                "oldest_age_s": age_s,
                "wait": [{"bucket": b, "count": n} for b, n in sorted(counts.items())],
                **figures,
            }
        )
        samples.append(
            AgreementSample(
                at.timestamp(),
                accepted=figures["put"],
                served=figures["acked"],
                refused=refused,
                waiting=figures["waiting"],
                oldest_age_s=age_s,
                times={"wait": [(upper_bound_s(b), n) for b, n in counts.items()]},
            )
        )

    # The same, and kept up to a load that every other window is above.
    bounded = parse_agreement(
        f"load_max = 6\n{format_agreement(replace(agreement, name='bounded'))}", "test"
    )
    both = [agreement, bounded]

    learned = {
        (row.agreement, row.window.timestamp(), row.metric): (row.verdict, row.value)
        for row in tables(spark, both, rows)["promises"].collect()
    }

    live = {
        (said.name, begins_s, one.metric.name): one
        for said in both
        for begins_s, found in windows_of(said, samples)
        for one in judge_window(said, begins_s, found).findings
    }
    excused = [one for one in live.values() if one.kept_up_to_per_s is not None]
    assert {one.metric.stem for one in excused} == {"wait", "oldest_age", "availability"}
    assert any(
        one.verdict is Verdict.BREACHED and one.metric.stem == "wait"
        for (name, _, _), one in live.items()
        if name == "bounded"
    )
    assert {key: verdict for key, (verdict, _) in learned.items()} == {
        key: one.verdict.value for key, one in live.items()
    }
    assert {one.verdict.value for one in live.values()} == {"met", "warned", "breached", "no_data"}
    for key, (_, value) in learned.items():
        assert value is None or value == pytest.approx(live[key].value)


def test_a_load_that_begins_at_the_end_of_a_window_breaches_no_throughput(
    spark: SparkSession,
) -> None:
    """A stock of 80 comes 0.4 s before the end, and 3 of it can be done until then."""
    agreement = parse_agreement(
        'name = "archive"\nqueue = "archive"\nwindow = "5s"\n[metrics.throughput]\nbreach = 15',
        "test",
    )

    def half(number: int) -> dict[str, object]:
        figures = {"put": 0, "acked": 0, "waiting": 0}
        if number >= 9:
            figures = {"put": 80, "acked": 3 if number == 9 else 20, "waiting": 77}
        at = NOON + timedelta(seconds=0.5 * number + 0.4)
        return {"at": at, "interval_s": 0.5, "queue": "archive", **figures}

    found = tables(spark, [agreement], [half(number) for number in range(20)])

    (level,) = found["service_levels"].collect()
    assert (level.met, level.warned, level.breached) == (2, 0, 0)


def test_just_enough_is_enough(spark: SparkSession) -> None:
    # Of a thousand messages exactly so many are short; 0.55 · 1000 is a little more than 550.
    short = {"55": 550, "56": 560, "90": 900, "99": 990, "999": 999}
    agreements = [
        parse_agreement(
            f'name = "p{p}"\nqueue = "p{p}"\n[metrics.wait_p{p}]\nbreach = "1s"', "test"
        )
        for p in short
    ]
    samples: list[dict[str, object]] = [
        {"queue": f"p{p}", "wait": waits(ms100=below, ms9000=1000 - below)}
        for p, below in short.items()
    ]

    found = tables(spark, agreements, samples)

    assert [row.verdict for row in found["compliance"].collect()] == ["met"] * len(short)


def test_the_job_and_a_live_loop_say_the_same_of_an_http_service(
    spark: SparkSession,
) -> None:
    # Given two doors before three instances, recorded as doors record
    agreement = parse_agreement(SHOP, "test")
    chance = random.Random(11)
    rows: list[dict[str, object]] = []
    samples: list[AgreementSample] = []
    for second in range(300):
        for door in ("d1", "d2"):
            between = _some_second(chance, NOON.timestamp() + second, door, second // 10 % 5)
            if second >= 290:
                # At the end nobody answers anybody.
                between = _outage(between)
            elif second >= 280:
                # Before, instances take what comes and hang.
                between = _hang(between)
            memory = {1: chance.uniform(5e7, 4e8), 2: None}
            stored = [
                Instance(
                    instance_id=number,
                    service="shop",
                    version=1,
                    state=InstanceState.READY,
                    free_memory_bytes=left,
                )
                for number, left in memory.items()
            ]
            recorded = door_rows(between, 1.0, "door", stored, 30)
            rows += [_as_row(one) for one in recorded]
            samples.append(agreement_sample(between, 1.0, memory.values()))

    # When both judge it, among agreements about others
    others = [parse_agreement(text, "test") for text in (ORDERS, SHOP.replace('"shop"', '"mall"'))]
    found = tables(spark, [*others, agreement], [], doors=rows)

    # Then they say the same, and of everything there was something to say
    learned = {
        (row.window.timestamp(), row.metric): (row.verdict, row.value)
        for row in found["promises"].collect()
    }
    live = {
        (begins_s, one.metric.name): one
        for begins_s, of_window in windows_of(agreement, samples)
        for one in judge_window(agreement, begins_s, of_window).findings
    }
    assert {key: verdict for key, (verdict, _) in learned.items()} == {
        key: one.verdict.value for key, one in live.items()
    }
    verdicts = {(one.metric.stem, one.verdict.value) for one in live.values()}
    stems = ("response", "service", "throughput", "availability", "free_memory")
    assert {(stem, v) for stem in stems for v in ("met", "breached")} <= verdicts
    last = NOON.timestamp() + 290.0
    assert live[last - 10.0, "throughput"].verdict is Verdict.BREACHED
    assert live[last, "response_p95"].verdict is Verdict.BREACHED
    assert live[last, "service_p50"].verdict is Verdict.NO_DATA
    for key, (_, value) in learned.items():
        assert value is None or value == pytest.approx(live[key].value)
    levels = {row.agreement: row for row in found["service_levels"].collect()}
    assert (levels["mall"].met, levels["mall"].budget_left) == (0, 1.0)


def _some_second(chance: random.Random, at_s: float, door: str, mood: int) -> DoorSample:
    """What a door may see in a second: nothing, all well, or more and more trouble."""
    answered = chance.randrange(4, 14) if mood else 0
    service, response = Histogram(), Histogram()
    for _ in range(answered):
        took_s = chance.expovariate(1 / (0.0, 0.05, 0.07, 0.12, 0.4)[mood])
        service.add(took_s)
        response.add(3.0 * took_s)
    errors = min(answered, chance.randrange(2) if mood > 2 else 0)
    return DoorSample(
        service="shop",
        door=door,
        at=at_s,
        address="here:80",
        accepted=answered,
        answered=answered,
        refused=chance.randrange(3) if mood > 3 else 0,
        waiting=chance.randrange(30) if mood else 0,
        response=response.sparse(),
        instances=[
            InstanceSample(
                instance_id=1, answered=answered, server_errors=errors, response=service.sparse()
            ),
            InstanceSample(instance_id=2),
        ],
    )


def _outage(between: DoorSample) -> DoorSample:
    return msgspec.structs.replace(
        between, answered=0, refused=7, response=[], instances=[InstanceSample(instance_id=1)]
    )


def _hang(between: DoorSample) -> DoorSample:
    hung = [InstanceSample(instance_id=1)]
    return msgspec.structs.replace(
        between, accepted=12, answered=0, refused=0, waiting=0, response=[], instances=hung
    )


def _as_row(recorded: tuple[object, ...]) -> dict[str, object]:
    row: dict[str, object] = dict(zip(HTTP_SAMPLES.columns.names, recorded, strict=True))
    at_us = row["at"]
    assert isinstance(at_us, int)
    row["at"] = NOON + timedelta(microseconds=at_us - round(NOON.timestamp() * 1e6))
    for stem in ("response", "service_time"):
        pairs = row[stem]
        assert isinstance(pairs, list)
        row[stem] = [{"bucket": bucket, "count": count} for bucket, count in pairs]
    return row


def test_agreements_about_http_are_there_without_data(spark: SparkSession) -> None:
    shop = NOBODY.replace("queue =", "http =").replace("oldest_age", "response_p99")

    for others in ([], [ORDERS.replace("100s", "28d")]):
        agreements = [parse_agreement(text, "test") for text in (shop, *others)]
        found = tables(spark, agreements, [{"queue": "orders.eu", "wait": waits(ms100=1)}])

        levels = {row.agreement: row for row in found["service_levels"].collect()}
        assert set(levels) == {agreement.name for agreement in agreements}
        assert levels["nobody"].met + levels["nobody"].breached + levels["nobody"].no_data == 0


def test_without_agreements_there_are_tables_without_rows(spark: SparkSession) -> None:
    found = tables(spark, [], [{"queue": "orders.eu"}])

    assert [table.count() for table in found.values()] == [0, 0, 0]


def test_a_bucket_that_ends_at_a_point_is_not_before_it() -> None:
    for bucket in range(1, 200):
        assert first_bucket_from(upper_bound_s(bucket)) == bucket
