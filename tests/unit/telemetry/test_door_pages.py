"""What a door shows of itself, scraped over HTTP and read back by Prometheus's own parser."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from http_get import families, get, value

from tidegate.core.services import DoorSample, InstanceSample
from tidegate.telemetry.http_pages import DoorPages
from tidegate.telemetry.meters import Histogram
from tidegate.telemetry.prometheus import (
    AGREEMENT_METRICS,
    DOOR_METRICS,
    INSTANCE_METRICS,
    AgreementStats,
)


@pytest.fixture
async def pages() -> AsyncIterator[DoorPages]:
    pages = DoorPages()
    await pages.start()
    yield pages
    await pages.stop()


def sample(ejected: str | None = None) -> DoorSample:
    durations = Histogram()
    durations.add(0.05, 90)
    durations.add(2.0, 10)
    return DoorSample(
        service='shop "1"',
        door="d1",
        at=1.0,
        address="here:80",
        accepted=105,
        answered=100,
        refused=5,
        by_class={"2xx": 97, "5xx": 8},
        waiting=2,
        in_flight=12,
        response=durations.sparse(),
        instances=[
            InstanceSample(instance_id=3, outstanding=10, sent=100, answered=100, ejected=ejected)
        ],
    )


async def test_a_door_is_scraped(pages: DoorPages) -> None:
    assert (await get(pages.address, "/readyz")).status == 503
    standing = AgreementStats(agreement="shop", verdict="warned", budget_left=0.75, burn_rate=2.5)
    # Out, in again, and out: twice.
    for ejected in ("it answered 500", None, "it is silent", "it is silent"):
        pages.update(sample(ejected), [standing])

    found = families((await get(pages.address, "/metrics")).body)

    for table in (DOOR_METRICS, INSTANCE_METRICS, AGREEMENT_METRICS):
        assert {shown.name for shown in table} <= set(found)
    of_door = {"service": 'shop "1"', "door": "d1"}
    assert value(found, "tidegate_http_requests_total", **of_door) == 105
    responses = {s.labels["class"]: s.value for s in found["tidegate_http_responses_total"].samples}
    assert responses == {"2xx": 97, "5xx": 8}
    buckets = {
        sample.labels["le"]: sample.value
        for sample in found["tidegate_http_response_seconds"].samples
        if sample.name.endswith("_bucket")
    }
    assert (buckets["0.032768"], buckets["1.048576"], buckets["+Inf"]) == (0, 90, 100)
    sums = found["tidegate_http_response_seconds"].samples[-1]
    assert sums.value == pytest.approx(90 * 0.05 + 10 * 2.0, rel=0.06)
    of_instance = {**of_door, "instance": "3"}
    assert value(found, "tidegate_http_instance_outstanding_requests", **of_instance) == 10
    assert value(found, "tidegate_http_instance_ejections_total", **of_instance) == 2
    assert value(found, "tidegate_agreement_budget_left", agreement="shop") == 0.75
    assert value(found, "tidegate_agreement_verdict", agreement="shop", verdict="warned") == 1
    assert value(found, "tidegate_agreement_verdict", agreement="shop", verdict="met") == 0
    # Its only instance is out.
    assert b"no instance" in (await get(pages.address, "/readyz")).body
    pages.update(sample())
    assert (await get(pages.address, "/readyz")).status == 200
