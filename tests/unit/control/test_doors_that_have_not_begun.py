"""A door that never had an instance owes the probe no answer: nobody is alarmed while it starts."""

from __future__ import annotations

from tidegate.control.services.measurement import DIFFERS_SAMPLES, Disagreements, ProbeSample
from tidegate.control.services.performance import DoorReader
from tidegate.core.services import DoorSample

ADDRESS = "http://127.0.0.1:8080"


def test_a_service_that_starts_slowly_raises_no_alarm_and_one_that_has_begun_does() -> None:
    reader, disagreements = DoorReader(), Disagreements()

    def said_in(seconds: range, *, has_begun: bool) -> list[str]:
        told = []
        for at in seconds:
            sample = DoorSample(
                service="shop", door="d", at=at, address=ADDRESS, has_begun=has_begun
            )
            reader.read([sample], at)
            reading = reader.reading(at)
            if reading is not None:
                disagreements.follow(reading)
            refused = ProbeSample(at, ADDRESS, 0.01, 503, "it answered 503")
            said = disagreements.update(refused, at, is_silent=False, is_bounded=False)
            told += [said] if said else []
        return told

    assert said_in(range(20), has_begun=False) == []
    assert said_in(range(20, 21 + DIFFERS_SAMPLES), has_begun=True) == [
        f"doors report no trouble, and the probe fails: it answered 503 (asked at {ADDRESS})"
    ]
