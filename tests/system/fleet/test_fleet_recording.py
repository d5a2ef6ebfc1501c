"""Boots and halts are recorded, with what the pipeline learns boot times from."""

from __future__ import annotations

from typing import Any

import pytest
from led_fleet import FleetUnderTest
from waiting import eventually_async

from tidegate.core.errors import RetryLater
from tidegate.core.machines import Machine, MachineInfo, MachineState
from tidegate.fleet.fleet import Fleet, FleetOptions
from tidegate.telemetry.lake import Lake
from tidegate.telemetry.recorder import Recorder, RecorderOptions


class Heard(Recorder):
    """Remembers what it was told: a row may be gone a moment before its event is recorded."""

    def __init__(self, lake: str) -> None:
        super().__init__(RecorderOptions(lake=lake))
        self.events: list[str] = []

    def event(self, event: str, *arguments: Any, **details: Any) -> None:
        super().event(event, *arguments, **details)
        self.events.append(event)


def recording(fleet: FleetUnderTest) -> Heard:
    recorder = Heard(str(fleet.folder / "lake"))
    recorder.start("leader")
    fleet.fleet = Fleet(fleet.store, fleet.provider, FleetOptions(list_s=0.1), recorder)
    return recorder


async def test_a_boot_and_a_halt_are_events_with_the_time_that_they_took(
    fleet: FleetUnderTest,
) -> None:
    recorder = recording(fleet)

    machine = await fleet.booted(slots=3)
    await fleet.fleet.halt(machine.machine_id, fleet.epoch)
    await fleet.until_state(machine.machine_id, None)
    await eventually_async(lambda: "halt" in recorder.events)
    recorder.stop()

    reader = Lake(str(fleet.folder / "lake"))
    rows = [row for file in reader.files("events") for row in reader.read(file).to_pylist()]
    # Each may be in a file of its own, and those have no order.
    rows.sort(key=lambda row: row["at"])
    assert [(row["event"], row["subject"]) for row in rows] == [
        ("boot", f"machine {machine.machine_id}"),
        ("halt", f"machine {machine.machine_id}"),
    ]
    assert machine.joined_at is not None
    boot_s = rows[0]["duration_s"]
    assert boot_s == pytest.approx(machine.joined_at - machine.ordered_at)
    assert boot_s > 0.1, "a process does not start in no time"
    assert rows[0]["value"] == 3.0
    assert rows[1]["duration_s"] > 0.0


async def test_a_look_that_began_before_a_machine_was_gone_records_no_second_halt(
    fleet: FleetUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = recording(fleet)
    machine = await fleet.booted()
    await fleet.store.set_machine_state(machine.machine_id, MachineState.HALTING, fleet.epoch, "")
    stale = await fleet.row(machine.machine_id)
    assert stale is not None
    await fleet.until_state(machine.machine_id, None)
    await eventually_async(lambda: recorder.events == ["boot", "halt"])

    halted: list[int] = []
    halt = fleet.provider.halt

    async def halt_again(machine_id: int) -> None:
        await halt(machine_id)
        halted.append(machine_id)

    async def as_before() -> list[MachineInfo]:
        return [stale]

    async def unknown() -> list[Machine]:
        raise RetryLater("nobody knows what runs")

    monkeypatch.setattr(fleet.provider, "halt", halt_again)
    monkeypatch.setattr(fleet.provider, "list", unknown)
    monkeypatch.setattr(fleet.store, "machines", as_before)

    async def is_halted_again() -> bool:
        # The provider is not asked each time.
        await fleet.fleet.reconcile(fleet.epoch)
        return bool(halted)

    await eventually_async(is_halted_again, "the machine is halted once more")
    monkeypatch.undo()
    await fleet.until_state(machine.machine_id, None)
    recorder.stop()

    assert recorder.events == ["boot", "halt"]
