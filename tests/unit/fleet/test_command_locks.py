"""The provider `command` runs one command for a machine at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tidegate.fleet import providers as command_module
from tidegate.fleet.providers import CommandProvider, CommandTemplate


class Commands:
    """Commands that end when the test says so; `list` ends at once."""

    def __init__(self) -> None:
        self.running: dict[str, asyncio.Event] = {}
        self.began: list[str] = []

    async def run(self, name: str, words: Sequence[str], deadline_s: float) -> str:
        if name == "list":
            return ""
        title = f"{name} {len(self.began) + 1}"
        self.began.append(title)
        self.running[title] = asyncio.Event()
        await self.running[title].wait()
        del self.running[title]
        return ""

    async def end(self, title: str) -> None:
        self.running[title].set()
        for _ in range(10):
            await asyncio.sleep(0)


async def test_halt_keeps_the_lock_of_its_machine_when_a_boot_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands = Commands()
    monkeypatch.setattr(command_module, "run_command", commands.run)
    provider = CommandProvider(
        *(CommandTemplate(f"{name} {{id}}") for name in ("boot", "halt")),
        CommandTemplate("list"),
    )

    async def third() -> None:
        await halting
        await provider.boot(7, 2, None)

    halting = asyncio.create_task(provider.halt(7))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    booting = asyncio.create_task(provider.boot(7, 2, None))
    await asyncio.sleep(0)
    later = asyncio.create_task(third())
    await commands.end("halt 1")

    assert list(commands.running) == ["boot 2"], "one command at a time"
    await commands.end("boot 2")
    await commands.end("boot 3")
    await asyncio.gather(halting, booting, later)
    assert not provider._locks, "no lock is kept for a machine without a command"
