"""Single requests of the embedded door on their way to the lake."""

from __future__ import annotations

from http_client import ask
from stall import stalls

from tidegate.doors import DoorSettings
from tidegate.doors.gateway import GatewayDoor
from tidegate.telemetry.meters import AdaptiveSampler
from tidegate.telemetry.recorder import HttpRequestSamples


async def test_recorded_request_has_phases_and_no_path() -> None:
    samples = HttpRequestSamples(AdaptiveSampler(1000.0))
    door = GatewayDoor(DoorSettings("shop", health_path="/well"))
    await door.start()
    try:
        door.record_requests(samples)
        port = int(door.address.rpartition(":")[2])
        async with stalls(1) as (one,):
            assert (await ask(port, "/nobody?is=here")).status == 503
            await door.set_backends([one.backend()])
            assert (await ask(port, "/slow/20")).status == 200
            assert (await ask(port, "/error")).status == 500
            assert (await ask(port, "/buy?card=4711")).status == 200
    finally:
        await door.stop(timeout_s=0.0)

    rows = samples.tick("door-1", "shop", "d1", 0.0, 0)

    # Who answered, how, and the phases, which add up.
    assert [row[4:7] for row in rows] == [
        (None, "GET", 503),
        *((1, "GET", status) for status in (200, 500, 200)),
    ]
    for row in rows:
        assert min(row[8:]) >= 0.0
        assert abs(sum(row[8:11]) - row[11]) < 1.0
    refused, slow, *_ = rows
    assert refused[10] == 0.0
    # Timers of uvloop may be early by a millisecond.
    assert slow[10] >= 19e3
    assert not any(isinstance(value, str) and "4711" in value for row in rows for value in row)
