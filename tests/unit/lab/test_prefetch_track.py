"""What the prefetch experiments make of a consumer's notes, and how they blur a sensor."""

from __future__ import annotations

from statistics import fmean

import pytest

from tidegate.core.prefetch import ConsumerSample
from tidegate_lab.papers.prefetch.consumer_process import MeasurementNoise, MeterNote, NoisySensor
from tidegate_lab.papers.prefetch.plan import MeterTrack, back_after_s


def _track(rates: list[float], every_s: float = 0.1) -> MeterTrack:
    delivered, notes = 0.0, [MeterNote(0.0, 0, 0, 0, 5)]
    for number, rate in enumerate(rates, start=1):
        delivered += rate * every_s
        notes.append(MeterNote(number * every_s, round(delivered), round(delivered), 2, 5))
    return MeterTrack(notes)


def test_notes_are_cut_into_whole_samples() -> None:
    track = _track([100.0] * 10 + [200.0] * 10 + [300.0] * 5)
    assert track.rates(1.0) == pytest.approx([100.0, 200.0])
    assert [point.held for point in track.samples(0.5)] == [2.0] * 5
    assert track.since(0.95).rates(1.0) == pytest.approx([200.0])


def test_back_means_that_the_mean_of_five_is_within_and_stays_for_a_while() -> None:
    assert back_after_s([400.0] * 20, 400.0, 1.0, 0.05) == 0.0
    # Means of five that end at samples 5, 6, 7 and 8 still have too much of the dip in them.
    assert back_after_s([200.0] * 4 + [400.0] * 16, 400.0, 1.0, 0.05) == 9.0
    # Never, and not just in passing.
    assert back_after_s([300.0] * 20, 400.0, 1.0, 0.05) == 21.0
    assert back_after_s([100.0 + 30.0 * k for k in range(20)], 400.0, 1.0, 0.05) == 21.0
    # What happens long after is another matter.
    assert back_after_s([400.0] * 15 + [100.0] * 5, 400.0, 1.0, 0.05) == 0.0


def test_a_blurred_sensor_loses_delays_and_blurs() -> None:
    def sample(at: float) -> ConsumerSample:
        return ConsumerSample(at=at, interval_s=1.0, arrived_per_s=100.0 * at, prefetch=5.0)

    late = NoisySensor(MeasurementNoise(late_samples=2))
    seen = [late.seen(sample(float(at))) for at in range(1, 6)]
    assert [one.arrived_per_s for one in seen if one] == [100.0, 100.0, 100.0, 200.0, 300.0]
    assert [one.at for one in seen if one] == [1.0, 2.0, 3.0, 4.0, 5.0]

    lossy = NoisySensor(MeasurementNoise(lost=0.2))
    lost = sum(lossy.seen(sample(1.0)) is None for _ in range(1000))
    assert 150 < lost < 250

    noisy = NoisySensor(MeasurementNoise(noise=0.1))
    rates = [one.arrived_per_s for _ in range(1000) if (one := noisy.seen(sample(1.0)))]
    assert fmean(rates) == pytest.approx(100.0, abs=2.0)
    assert max(rates) > 115.0
