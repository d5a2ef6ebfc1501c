"""What is worth keeping of what loops decide; and where they get what nobody has said."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from tidegate.cli.wiring import declare_queues
from tidegate.control.journal import Journal
from tidegate.control.learned import AcceptedModels
from tidegate.control.queues.loop import WorkerErrors
from tidegate.core.decisions import Action, AddReplica, Decision, Exchange, ReplicaSample, SetShares
from tidegate.core.machines import MachineInfo, MachineState
from tidegate.core.store import Store
from tidegate.core.topology import Range, Scaling, ScalingPolicy
from tidegate.storage.memory import MemoryStore
from tidegate.telemetry.models import ModelRegistry, StoredModel


class Kept:
    """A journal over a store that leads, with a clock that is turned."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.now = 1000.0
        self.journal = Journal(self.store, None, lambda: self.now)
        self._member_id = 0

    async def write(self, rule: str, *actions: Action, good: str = "", **changes: object) -> None:
        if not self._member_id:
            self._member_id = await self.store.join("node", "tidegate://127.0.0.1:1", 60.0)
        epoch = await self.store.lead(self._member_id)
        assert epoch is not None
        values = {"at": 5.0, "loop": "queue", "service": "orders", "law": "load", "rule": rule}
        decision = Decision(actions=list(actions), **(values | changes))  # type: ignore[arg-type]
        await self.journal.write(decision, epoch, good)

    async def decisions(self) -> list[Decision]:
        documents = await self.store.decisions("orders", 100)
        return [msgspec.json.decode(one, type=Decision) for one in reversed(documents)]


async def test_changes_are_always_kept_and_the_turning_of_shares_never() -> None:
    kept = Kept()
    for _ in range(3):
        await kept.write("avg_load > max_load", AddReplica(1), SetShares({1: 1.0}))
        await kept.write("between", SetShares({1: 1.0}))
        await kept.write("between")
    found = await kept.decisions()
    assert [one.rule for one in found] == ["avg_load > max_load"] * 3
    assert {one.at for one in found} == {1000.0}


async def test_repeated_decision_is_stored_at_its_begin_and_once_a_minute() -> None:
    kept = Kept()
    for _ in range(4):
        await kept.write("held: stale", inputs={"age_s": math.inf, "replicas": 2.0})
        await kept.write("between", Exchange(1, 2, 50))
        kept.now += 20.0
    found = await kept.decisions()
    assert [one.rule for one in found] == ["held: stale", "between"] * 2
    assert found[0].inputs == {"replicas": 2.0}


async def test_the_newest_entry_says_that_things_are_well_again() -> None:
    kept = Kept()
    waits = "replica 1 waits for its workers (shop.jobs:app)"
    await kept.write("held: stale")
    for _ in range(3):
        await kept.write("between")
    await kept.write("between", outcome=waits)
    for _ in range(3):
        await kept.write("between")
    await kept.write("between", outcome=waits)
    await kept.write("between", good="replica 1 serves now")
    await kept.write("between")
    assert [one.outcome for one in await kept.decisions()] == [
        "",
        "it is measured again",
        waits,
        f"no longer so: {waits}",
        "replica 1 serves now",
    ]


def test_worker_error_is_reported_once() -> None:
    words = WorkerErrors()
    waiting = [ReplicaSample(number=2, machine_id=7)]

    def told(detail: str, now: float) -> list[str]:
        here = MachineInfo(
            machine_id=7, provider="process", slots=2, state=MachineState.UP, detail=detail
        )
        return words.errors_of("orders", waiting, [here], now)

    said = "orders#2: worker shop.jobs:app ended with code 1: No module named 'shop'"
    assert told("", 0.0) == []
    assert told(f"orders#21: fine; {said} at 12:01; orders#3: worker ended", 1.0) == [
        f"{said} at 12:01"
    ]
    assert told(f"{said} at 12:02", 2.0) == [f"{said} at 12:01"]
    assert told(f"{said} at 12:03", 62.0) == [f"{said} at 12:03"]


def _learn(folder: Path, kind: str, subject: str, **parameters: float) -> None:
    model = StoredModel(subject, True, "well seen", parameters, {}, 100, 0.0, 60.0)
    ModelRegistry(folder).add_models(kind, "run", datetime.now(UTC), [model])


def test_learned_models_replace_unset_values(tmp_path: Path) -> None:
    learned = AcceptedModels(ModelRegistry(tmp_path))
    learned.refresh(0.0)
    by_clients = Scaling(policy=ScalingPolicy.CLIENTS)
    assert "a capacity of 3 clients" in learned.says("orders", by_clients, has_fleet=False)
    assert "no warm machine" in learned.says("orders", Scaling(), has_fleet=True)
    assert learned.says("orders", Scaling(), has_fleet=False) == ""
    assert learned.complete("orders", Scaling()).capacity_clients == 3.0

    _learn(tmp_path, "capacity", "orders", clients=7.0)
    _learn(
        tmp_path, "provisioning", "fleet", boot_s=96.9, sla_delta=4.0, machine_capacity_per_s=200.0
    )
    learned.refresh(1.0)
    assert learned.complete("orders", Scaling()).capacity_clients == 3.0
    learned.refresh(60.0)
    found = learned.complete("orders", Scaling(boot_s=5.0))
    assert (found.capacity_clients, found.boot_s, found.sla_delta) == (7.0, 5.0, 4.0)
    assert learned.machine_capacity_per_s == 200.0
    assert learned.says("orders", by_clients, has_fleet=True) == ""


async def test_the_settings_make_a_queue_and_what_a_running_system_was_told_wins(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store: Store = MemoryStore()
    declared = {"orders": Scaling(replicas=Range(1, 8))}
    await declare_queues(store, declared)
    queue = await store.find_queue(None, "orders")
    assert queue is not None
    assert queue.elastic

    await store.set_scaling(queue.queue_id, Scaling(replicas=Range(1, 16)))
    await declare_queues(store, declared)
    topology = await store.topology(queue.queue_id)
    assert topology is not None
    assert topology.scaling.replicas.max == 16
    assert "queue orders was changed while it ran, and stays so" in caplog.text
    assert "--from-settings" in caplog.text
