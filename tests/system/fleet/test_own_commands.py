"""Real machines by commands of a user's own, and the commands of the docs as they stand."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest
from led_fleet import LEASE_S, FleetUnderTest, kill
from places import DOCS

from tidegate.cli.settings import as_document, load_settings
from tidegate.core.machines import MachineState
from tidegate.fleet.providers import CommandProvider, CommandTemplate

PAGE = DOCS / "fleet.md"

BOOT = (
    "sh -c 'setsid "
    f"{sys.executable} -m tidegate machine "
    "--id {id} --slots {slots} --join-file {store_url_file} > {id}.log 2>&1 & echo $! > {id}.pid'"
)
HALT = "sh -c 'kill $(cat {id}.pid) 2>/dev/null; rm -f {id}.pid'"
LIST = (
    "sh -c 'for file in *.pid; do test -e $file && kill -0 $(cat $file) 2>/dev/null && "
    "echo ${{file%.pid}} running here; done; true'"
)


async def test_a_machine_of_the_users_own_commands_boots_serves_dies_and_is_halted(
    fleet: FleetUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIDEGATE_NODE__LEASE", f"{LEASE_S:g}s")
    monkeypatch.setenv("TIDEGATE_STORE__DATA", str(tmp_path))
    monkeypatch.setenv("TIDEGATE_TELEMETRY__ENABLED", "false")
    templates = [CommandTemplate(text) for text in (BOOT, HALT, LIST)]
    fleet.fleet.provider = CommandProvider(*templates, store_urls=[fleet.url], folder=tmp_path)
    machine = await fleet.booted(slots=2)
    assert (machine.provider, machine.alive, machine.slots) == ("command", True, 2)

    # When it is killed, it is not listed any more
    pid = int((tmp_path / f"{machine.machine_id}.pid").read_text())
    kill(pid)
    failed = await fleet.until_state(machine.machine_id, MachineState.FAILED)
    assert failed is not None
    assert failed.detail == "it died"

    second = await fleet.booted()
    await fleet.fleet.halt(second.machine_id, fleet.epoch)
    await fleet.until_state(second.machine_id, None)
    assert await fleet.fleet.provider.list() == []


def test_the_settings_of_the_docs_can_be_used(tmp_path: Path) -> None:
    examples = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) == 5
    for number, example in enumerate(examples):
        assert "fleet" in tomllib.loads(example)
        file = tmp_path / f"{number}.toml"
        file.write_text(example)
        load_settings(file, {})


def test_the_docs_know_every_setting_of_the_fleet() -> None:
    table = PAGE.read_text().partition("| `[fleet]` |")[2]
    missing = [
        key for key in as_document(load_settings(None, {}))["fleet"] if f"`{key}`" not in table
    ]
    assert missing == []
