"""A machine whose disk is full: a clear error, and the others go on."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from led_fleet import FleetUnderTest

from tidegate.core.machines import MachineState


@pytest.fixture
def small_disk(folder: Path) -> Iterator[Path]:
    """A folder with room for next to nothing, where this computer lets us have one."""
    disk = folder / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("no right to mount a small disk on this machine")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(disk: Path) -> None:
    with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass


async def test_a_full_disk_fails_the_boot_in_words_and_nothing_is_left_running(
    fleet: FleetUnderTest, small_disk: Path
) -> None:
    healthy = await fleet.booted()
    fleet.fleet.provider = fleet.provider = fleet.new_provider(folder=small_disk)
    fill(small_disk)

    row = await fleet.fleet.boot(1, None, fleet.epoch)
    failed = await fleet.until_state(row.machine_id, MachineState.FAILED)

    assert failed is not None
    assert "it could not be booted" in failed.detail
    assert "No space left on device" in failed.detail
    assert fleet.tree(row.machine_id).members() == []
    assert fleet.pids(healthy.machine_id, "node"), "the others run on"


async def test_a_machine_whose_lake_is_full_works_on(
    fleet: FleetUnderTest, small_disk: Path
) -> None:
    fill(small_disk)
    fleet.fleet.provider = fleet.provider = fleet.new_provider(
        environment={
            "TIDEGATE_TELEMETRY__ENABLED": "true",
            "TIDEGATE_TELEMETRY__LAKE": str(small_disk / "lake"),
            "TIDEGATE_TELEMETRY__FLUSH": "200ms",
        }
    )
    machine = await fleet.booted()
    await fleet.elastic("orders", machine.machine_id, worker="jobs:app")

    await fleet.put_and_see_done("orders#1", "a", "b", "c")

    row = await fleet.row(machine.machine_id)
    assert row is not None
    assert row.alive
