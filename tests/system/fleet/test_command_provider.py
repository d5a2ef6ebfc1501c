"""Machines of the user's own commands: ones that work, fail, hang and print nonsense."""

from __future__ import annotations

import asyncio
import math
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from backing import PostgresBacking
from expiring import expire_when
from waiting import eventually_async

from tidegate.core.errors import InvalidValue, LimitReached, Unavailable
from tidegate.core.machines import Machine, MachineInfo, MachineState
from tidegate.core.topology import Provisioning
from tidegate.fleet.fleet import Fleet, FleetOptions
from tidegate.fleet.process import process_identity
from tidegate.fleet.providers import CommandProvider, CommandTemplate, parse_machines, run_command
from tidegate.storage.memory import MemoryStore
from tidegate.storage.postgres.store import PostgresStore

# A cloud in a folder: a file for each machine that it runs.
BOOT = "sh -c 'echo {id} running {host} > machine-{id}; echo {slots} {fleet} >> orders'"
HALT = "sh -c 'rm -f machine-{id}; echo halted {id} on {host} >> orders'"
LIST = "sh -c 'cat machine-* 2>/dev/null || true'"


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def provider(
    boot: str = BOOT, halt: str = HALT, listing: str = LIST, **options: Any
) -> CommandProvider:
    return CommandProvider(
        CommandTemplate(boot), CommandTemplate(halt), CommandTemplate(listing), **options
    )


# Commands


async def test_a_cloud_boots_lists_and_halts(cloud: Path) -> None:
    machines = provider(fleet="shop")

    booted = await machines.boot(7, 2, "blue")
    await machines.boot(7, 2, "blue")

    assert (booted.machine_id, booted.host, booted.state) == (7, "blue", "booting")
    assert (cloud / "orders").read_text() == "2 shop\n", "nothing is booted twice"
    (listed,) = await machines.list()
    assert (listed.machine_id, listed.host, listed.state) == (7, "blue", "running")
    # Another leader, which has not booted it, learns the host from the list.
    await provider().halt(7)
    assert await machines.list() == []
    assert (cloud / "orders").read_text().endswith("halted 7 on blue\n")


async def test_a_command_that_fails_says_what_it_said(cloud: Path) -> None:
    failing = provider(boot="sh -c 'echo quota is used up; echo no >&2; exit 3'")

    with pytest.raises(Unavailable) as failure:
        await failing.boot(1, 1, None)

    assert str(failure.value) == (
        "the boot command failed with exit code 3; it said: no | quota is used up"
    )


async def test_a_command_that_does_not_exist_says_so() -> None:
    with pytest.raises(Unavailable, match=r"the list command cannot be run: .*no-such-cloud"):
        await provider(listing="no-such-cloud list").list()


async def test_a_command_that_hangs_is_killed_with_everything_that_it_has_started(
    cloud: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadlines = expire_when((cloud / "child").exists, monkeypatch)
    hanging = provider(
        boot="sh -c 'echo waiting; sleep 600 & echo $! > partial; mv partial child; wait'",
        boot_deadline_s=2.0,
    )

    with pytest.raises(Unavailable) as failure:
        await hanging.boot(1, 1, None)

    assert deadlines[-1] == 2.0
    assert str(failure.value) == (
        "the boot command did not end within 2s and was killed; it said: waiting"
    )
    child = int((cloud / "child").read_text())
    await eventually_async(lambda: process_identity(child) is None)


async def test_run_command_does_not_wait_for_background_processes(
    cloud: Path,
) -> None:
    # Who waited for the child would see the deadline pass, and the command killed.
    await run_command("boot", ["sh", "-c", "sleep 600 & echo $! > child"], 60.0)

    child = int((cloud / "child").read_text())
    assert process_identity(child) is not None, "it lives on"
    os.kill(child, signal.SIGKILL)


async def test_output_without_end_is_refused_and_not_kept() -> None:
    with pytest.raises(Unavailable, match="printed more than 1048576 bytes"):
        await run_command("list", ["sh", "-c", "head -c 3000000 /dev/zero"], 30.0)


async def test_a_password_in_what_a_command_says_is_not_repeated() -> None:
    words = ["sh", "-c", "echo postgresql://me:hush@there/db; exit 1"]
    with pytest.raises(Unavailable) as failure:
        await run_command("boot", words, 30.0)
    assert "hush" not in str(failure.value)


async def test_the_url_of_the_store_comes_in_a_file_and_not_on_a_command_line(
    cloud: Path,
) -> None:
    machines = provider(
        boot="sh -c 'cp $0 url; stat -c %a $0 > mode' {store_url_file}",
        store_urls=["postgresql://me:hush@there/db"],
        folder=cloud / "fleet",
    )

    await machines.boot(1, 1, None)
    await machines.close()

    assert (cloud / "url").read_text() == "postgresql://me:hush@there/db\n"
    assert (cloud / "mode").read_text() == "600\n"
    assert list((cloud / "fleet").iterdir()) == [], "gone with its owner"


async def test_a_placeholder_without_a_value_says_where_it_comes_from(cloud: Path) -> None:
    with pytest.raises(Unavailable, match=r"\{host\}, which is not known .* fleet.hosts"):
        await provider().boot(1, 1, None)


# Templates


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("boot {machine}", "{machine} is no placeholder"),
        ("boot {hots}", "did you mean host?"),
        ("boot {id!r}", "{id} is no placeholder"),
        ("boot {id:>9}", "{id} is no placeholder"),
        ("boot {id.real}", "{id.real} is no placeholder"),
        ("boot {", "written twice"),
        ("boot 'x", "is no command"),
        ("  ", "an empty text is no command"),
    ],
)
def test_a_template_that_cannot_be_filled_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        CommandTemplate(text)
    assert complaint in str(refused.value)


def test_values_stay_within_their_words() -> None:
    template = CommandTemplate("ssh {host} 'echo {id}' --json {{}}")

    words = template.words({"host": "blue; rm -rf /", "id": "7"})

    assert words == ["ssh", "blue; rm -rf /", "echo 7", "--json", "{}"]


# Lists


def test_lists_are_read_as_json_and_as_words() -> None:
    lines = (
        '{"id": 1, "state": "RUNNING", "host": "a"}\n\n 2 Pending \n{"id": "3"}\n4 exited <none>'
    )
    as_lines = [(one.machine_id, one.state, one.host) for one in parse_machines(lines)]
    assert as_lines == [
        (1, "running", "a"),
        (2, "booting", None),
        (3, "running", None),
        (4, "halted", None),
    ]
    (as_list,) = parse_machines('[{"id": 5, "state": "active", "host": null}]')
    assert (as_list.machine_id, as_list.state) == (5, "running")
    assert parse_machines("") == parse_machines("[]") == []


@pytest.mark.parametrize(
    "line",
    [
        "Error: not logged in",
        "seven running",
        "7",
        '{"id": 7',
        '{"state": "running"}',
        '{"id": 7.5}',
        '{"id": null}',
        "7 confused",
        '[{"id": 7}, 8]',
        "[7",
        '{"id": 7, "host": ["a"]}',
        "\x00\xff",
    ],
)
def test_nonsense_is_no_machine(line: str) -> None:
    with pytest.raises(Unavailable, match="the list command printed"):
        parse_machines(f"1 running\n{line}" if not line.startswith("[") else line)


def test_a_machine_that_is_listed_twice_is_nonsense_unless_one_has_ended() -> None:
    with pytest.raises(Unavailable, match="names machine 7 twice"):
        parse_machines("7 running a\n7 running b")
    (left,) = parse_machines("7 terminated a\n7 running b")
    assert left.host == "b"


# The leader's orders


class Leader:
    """A fleet on a store in memory, led by a member that is nobody."""

    def __init__(self, machines: CommandProvider, **options: Any) -> None:
        self.store = MemoryStore()
        self.provider = machines
        chosen = {"tries": 3, "backoff_s": 0.01, "list_s": 0.0, "lost_s": 0.2, **options}
        self.fleet = Fleet(self.store, machines, FleetOptions(**chosen))
        self.epoch = 0

    async def start(self) -> Leader:
        await self.store.open()
        member = await self.store.join("leader", "tidegate://127.0.0.1:1", 600.0)
        self.epoch = await self.store.lead(member) or 0
        return self

    async def until_state(self, machine_id: int, state: MachineState | None) -> MachineInfo | None:
        row: MachineInfo | None = None

        async def is_so() -> bool:
            nonlocal row
            rows = await self.fleet.reconcile(self.epoch)
            row = next((one for one in rows if one.machine_id == machine_id), None)
            return (None if row is None else row.state) is state

        await eventually_async(is_so, f"machine {machine_id} is {state}")
        return row

    async def join(self, machine_id: int, lease_s: float = 600.0) -> int:
        """As the node of a machine does, when it has booted."""
        await eventually_async(lambda: Path(f"machine-{machine_id}").exists())
        member = await self.store.join(f"m{machine_id}", "tidegate://127.0.0.1:2", lease_s)
        assert await self.store.machine_joined(machine_id, member)
        return member


@pytest.fixture
async def leaders() -> AsyncIterator[list[Leader]]:
    started: list[Leader] = []
    yield started
    for leader in started:
        await leader.fleet.close()


async def test_a_boot_that_fails_is_tried_again_and_then_reported(
    cloud: Path, leaders: list[Leader]
) -> None:
    leader = await Leader(provider(boot="sh -c 'echo x >> tries; echo no room; exit 1'")).start()
    leaders.append(leader)

    row = await leader.fleet.boot(1, None, leader.epoch)
    failed = await leader.until_state(row.machine_id, MachineState.FAILED)

    assert failed is not None
    assert failed.detail == (
        "it could not be booted: the boot command failed with exit code 1; it said: no room"
    )
    assert (cloud / "tries").read_text() == "x\n" * 3
    assert [one.state for one in await leader.fleet.samples()] == [MachineState.FAILED]


async def test_a_boot_that_works_the_second_time_is_no_failure(
    cloud: Path, leaders: list[Leader]
) -> None:
    boot = "sh -c 'test -e tried && echo {id} running > machine-{id} || {{ touch tried; exit 1; }}'"
    leader = await Leader(provider(boot=boot, halt="rm -f machine-{id}")).start()
    leaders.append(leader)

    row = await leader.fleet.boot(1, None, leader.epoch)
    await leader.join(row.machine_id)

    assert await leader.until_state(row.machine_id, MachineState.WARM)


async def test_a_machine_that_never_joins_is_failed_and_switched_off(
    cloud: Path, leaders: list[Leader]
) -> None:
    leader = await Leader(provider(), boot_deadline_s=0.3).start()
    leaders.append(leader)

    row = await leader.fleet.boot(1, "blue", leader.epoch)
    failed = await leader.until_state(row.machine_id, MachineState.FAILED)

    assert failed is not None
    assert failed.detail.startswith("it did not join within 300ms")
    await eventually_async(lambda: not list(cloud.glob("machine-*")))


async def test_after_a_failed_boot_no_other_machine_is_ordered_for_a_while(
    cloud: Path, leaders: list[Leader]
) -> None:
    leader = await Leader(provider(), boot_deadline_s=0.3, backoff_s=30.0).start()
    leaders.append(leader)
    row = await leader.fleet.boot(1, "blue", leader.epoch)
    await leader.until_state(row.machine_id, MachineState.FAILED)

    with pytest.raises(Unavailable, match=r"1 machines could not be booted.*did not join within"):
        await leader.fleet.boot(1, "blue", leader.epoch)

    await leader.fleet.reset()
    # Whoever leads next tries it anew.
    assert await leader.fleet.boot(1, "blue", leader.epoch)


async def test_a_machine_that_vanishes_is_failed(cloud: Path, leaders: list[Leader]) -> None:
    leader = await Leader(provider()).start()
    leaders.append(leader)
    row = await leader.fleet.boot(1, "blue", leader.epoch)
    member = await leader.join(row.machine_id)
    await leader.until_state(row.machine_id, MachineState.WARM)

    (cloud / f"machine-{row.machine_id}").unlink()
    await leader.store.leave(member)
    failed = await leader.until_state(row.machine_id, MachineState.FAILED)

    assert failed is not None
    assert failed.detail == "it died"


async def test_a_provider_that_cannot_say_what_runs_changes_nothing(
    cloud: Path, leaders: list[Leader]
) -> None:
    leader = await Leader(provider()).start()
    leaders.append(leader)
    row = await leader.fleet.boot(1, "blue", leader.epoch)
    await leader.join(row.machine_id)
    await leader.until_state(row.machine_id, MachineState.WARM)

    (cloud / "machine-99").write_text("Error: not logged in\n")
    for _ in range(5):
        rows = await leader.fleet.reconcile(leader.epoch)

    assert [one.state for one in rows] == [MachineState.WARM]
    assert "Error: not logged in" in leader.fleet.trouble
    (cloud / "machine-99").unlink()
    await leader.fleet.reconcile(leader.epoch)
    assert leader.fleet.trouble == ""


async def test_a_machine_that_nobody_ordered_is_halted(cloud: Path, leaders: list[Leader]) -> None:
    leader = await Leader(provider()).start()
    leaders.append(leader)
    (cloud / "machine-99").write_text("99 running blue\n")

    await leader.fleet.reconcile(leader.epoch)

    await eventually_async(lambda: not (cloud / "machine-99").exists())


async def test_the_next_leader_goes_on_with_boots_and_halts_that_were_only_ordered(
    cloud: Path, leaders: list[Leader]
) -> None:
    leader = await Leader(provider()).start()
    leaders.append(leader)
    (cloud / "machine-2").write_text("2 running blue\n")
    # The rows are there; whoever wrote them died before the provider heard of it.
    booting = await leader.store.add_machine("command", 1, "blue", leader.epoch)
    halting = await leader.store.add_machine("command", 1, "blue", leader.epoch)
    await leader.store.set_machine_state(halting.machine_id, MachineState.HALTING, leader.epoch)

    await leader.until_state(halting.machine_id, None)

    await eventually_async(lambda: (cloud / f"machine-{booting.machine_id}").exists())
    assert not (cloud / f"machine-{halting.machine_id}").exists()


async def test_a_halt_that_fails_keeps_the_machine_in_sight_until_it_works(
    cloud: Path, leaders: list[Leader]
) -> None:
    halt = "sh -c 'test -e allowed && rm machine-{id} || {{ echo still busy; exit 1; }}'"
    leader = await Leader(provider(halt=halt)).start()
    leaders.append(leader)
    row = await leader.fleet.boot(1, "blue", leader.epoch)
    await leader.join(row.machine_id)
    await leader.until_state(row.machine_id, MachineState.WARM)

    await leader.fleet.halt(row.machine_id, leader.epoch)

    async def refused() -> MachineInfo | None:
        (row,) = await leader.store.machines()
        return row if "still busy" in row.detail else None

    kept = await eventually_async(refused, "the halt command refuses")
    assert kept.state is MachineState.HALTING
    (cloud / "allowed").touch()

    await leader.until_state(row.machine_id, None)


async def test_machines_come_to_few_hosts_or_to_the_least_loaded(leaders: list[Leader]) -> None:
    silent = provider(boot="true", halt="true", listing="true")
    hosts = {"hosts": ["blue", "green"], "machines_per_host": 2}
    for policy, expected in (
        (Provisioning.ENERGY, ["blue", "blue", "green", "green"]),
        (Provisioning.PERFORMANCE, ["blue", "green", "blue", "green"]),
    ):
        leader = await Leader(silent, provisioning=policy, **hosts).start()
        leaders.append(leader)
        # A law that knows only where machines are would have all of them there.
        wishes = [None, "blue", "blue", "blue"]
        rows = [await leader.fleet.boot(1, wish, leader.epoch) for wish in wishes]
        assert [row.host for row in rows] == expected
        with pytest.raises(LimitReached, match="machines_per_host"):
            await leader.fleet.boot(1, "blue", leader.epoch)


async def test_there_is_a_bound_to_machines_and_to_failures_that_are_shown(
    leaders: list[Leader],
) -> None:
    failing = provider(boot="false", halt="true", listing="true")
    leader = await Leader(failing, tries=1, machines_max=3, failed_max=1).start()
    leaders.append(leader)

    rows = [await leader.fleet.boot(1, None, leader.epoch) for _ in range(3)]
    with pytest.raises(LimitReached, match="machines_max"):
        await leader.fleet.boot(1, None, leader.epoch)
    for row in rows[:2]:
        await leader.until_state(row.machine_id, None)

    (left,) = await leader.store.machines()
    assert (left.machine_id, left.state) == (rows[2].machine_id, MachineState.FAILED)


async def test_machines_that_are_dead_leave_room_for_others(leaders: list[Leader]) -> None:
    failing = provider(boot="false", halt="true", listing="true")
    leader = await Leader(failing, tries=1, machines_max=2).start()
    leaders.append(leader)
    rows = [await leader.fleet.boot(1, None, leader.epoch) for _ in range(2)]
    for row in rows:
        await leader.until_state(row.machine_id, MachineState.FAILED)
    leader.fleet._no_boot_until = -math.inf  # as after a while

    another = await leader.fleet.boot(1, None, leader.epoch)

    assert another.state is MachineState.BOOTING


async def test_a_boot_that_prints_what_no_database_keeps_is_tried_as_often_as_any_and_reported(
    cloud: Path, embedded_url: str
) -> None:
    store = PostgresStore(PostgresBacking("embedded", embedded_url).url)
    await store.open()
    member = await store.join("leader", "tidegate://127.0.0.1:1", 600.0)
    epoch = await store.lead(member) or 0
    boot = "sh -c 'echo x >> tries; printf \"a\\\\000b\"; exit 7' {id}"
    machines = provider(boot=boot, halt="true", listing="true")
    fleet = Fleet(store, machines, FleetOptions(tries=2, backoff_s=0.01, list_s=0.0))
    await fleet.boot(1, None, epoch)

    async def failed() -> MachineInfo | None:
        (row,) = await fleet.reconcile(epoch)
        return row if row.state is MachineState.FAILED else None

    row = await eventually_async(failed, "the boot is given up")
    assert row.detail == (
        "it could not be booted: the boot command failed with exit code 7; it said: a\\x00b"
    )
    assert (cloud / "tries").read_text() == "x\n" * 2
    await fleet.close()
    await store.close()


async def test_work_that_fails_by_a_fault_of_ours_is_not_begun_again_at_once(
    cloud: Path, leaders: list[Leader], monkeypatch: pytest.MonkeyPatch
) -> None:
    machines = provider()
    calls: list[int] = []

    async def broken(machine_id: int, slots: int, host: str | None) -> Machine:
        calls.append(machine_id)
        raise ZeroDivisionError

    monkeypatch.setattr(machines, "boot", broken)
    leader = await Leader(machines).start()
    leaders.append(leader)

    await leader.fleet.boot(1, "blue", leader.epoch)
    for _ in range(20):
        await leader.fleet.reconcile(leader.epoch)
        await asyncio.sleep(0)

    assert len(calls) == 1
