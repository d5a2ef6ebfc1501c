"""JSON that commands print for programs, and documents that the store keeps.

Commands run in this process, against a node with a store in memory. What takes Spark, RabbitMQ or
minutes is read off the types that are printed.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from command_line import CommandLine
from golden_files import Golden
from golden_shapes import document_shape, example, printed_shapes, shape

import tidegate
from tidegate.agreements.document import parse_agreement
from tidegate.agreements.evaluation import AgreementSample
from tidegate.agreements.ledger import AgreementLedger, StoredAgreementStatus
from tidegate.broker.node import Node
from tidegate.cli import wiring
from tidegate.client.blocking import LoopThread
from tidegate.client.client import Client
from tidegate.core.decisions import FLEET, AnyAction, Decision
from tidegate.core.services import DoorSample, ServiceOverride, ServiceSpec, decision_subject
from tidegate.core.store import Clock
from tidegate.core.topology import Scaling
from tidegate.demo.evidence import DemoModels, DemoSummary
from tidegate.simulation.run import SimulationResult
from tidegate.storage.memory import MemoryStore
from tidegate.telemetry.models import LearningRun, StoredModel
from tidegate.tuning.experiment import OpenLoopPoint

AGREEMENT = """
name = "shop"
http = "shop"
window = "5s"
replicas = { min = 1, max = 3 }
[metrics.throughput]
breach = 1
[metrics.response_p95]
breach = "1s"
"""
_PASSWORD = b"correct horse battery\n"
# In this order: each finds what those before it have left.
_RUNS = (
    "config",
    "agreement check shop.toml",
    "agreement check wrong.toml",
    "agreement plan shop.toml --load 10/s --capacity 5/s --boot 90s",
    "simulate",
    "simulate load.csv --policy agreement",
    "create jobs",
    "put jobs x",
    "put jobs y --priority 7",
    "get jobs",
    "peek jobs",
    "policy jobs",
    "policy jobs --set lease=5s",
    "pause jobs",
    "resume jobs",
    "dead orders",
    "redrive orders",
    "prefetch orders 5",
    "queue set jobs lease=6s",
    "queues",
    "status",
    "ping",
    "nodes",
    "fleet",
    "explain orders",
    "explain shop",
    "explain",
    "topic create news",
    "subscribe news jobs",
    "topics",
    "publish news x",
    "unsubscribe news jobs",
    "topic delete news",
    "purge jobs",
    "scale jobs --min 1 --max 4",
    "scale jobs",
    "delete jobs",
    "services",
    "sla",
    "override shop --instances 2",
    "override shop",
    "top --once",
    "user add ann --read *",
    "user list",
    "user grant ann --write *",
    "user passwd ann",
    "user remove ann",
)


class _NodeInThread:
    """A node with everything that commands ask for, on an event loop beside the test."""

    def __init__(self) -> None:
        # Its time stands still, so that nothing in it gets old on a slow machine.
        self.store = MemoryStore(Clock(lambda: 1e9, lambda: 0.0))
        self._thread = LoopThread()
        self._node = Node(self.store, name="node-1")
        self._thread.wait(self._begin())

    @property
    def url(self) -> str:
        return self._node.address

    async def _begin(self) -> None:
        # Before the node joins: who is first leads, and only a leader may write these.
        await self._host()
        await self._node.start()
        self._client = await Client(self.url, name="worker", mode="admin").open()
        await self._client.create_queue("orders")
        await self._client.put("orders", b"refused", headers={"kind": "order"})
        self._subscription = self._client.subscribe("orders", prefetch=10)
        await self._subscription.__aenter__()
        async for message in self._subscription:
            await message.reject(error="no such customer")
            break

    async def _host(self) -> None:
        """A service with an instance and a door, an agreement, and decisions about all."""
        store = self.store
        epoch = await store.lead(await store.join("leader", "tidegate://here:1", 1e9))
        assert epoch is not None
        await store.deploy(ServiceSpec(name="shop", target="shop:app", agreement=AGREEMENT))
        machine = await store.add_machine("here", 2, None, epoch)
        instance = await store.add_instance("shop", 1.0, epoch)
        await store.assign_instance(instance.instance_id, machine.machine_id, epoch)
        await store.report_door(msgspec.structs.replace(example(DoorSample), service="shop"))
        await store.keep_standing("shop", _standing().to_json(), epoch)
        actions = [example(one) for one in typing.get_args(AnyAction)]
        for about in ("orders", decision_subject("shop"), FLEET):
            decision = msgspec.structs.replace(example(Decision), service=about, actions=actions)
            await store.note_decision(about, msgspec.json.encode(decision), epoch)

    def end(self) -> None:
        async def end() -> None:
            await self._subscription.__aexit__(None, None, None)
            await self._client.close()
            await self._node.stop()

        self._thread.wait(end())
        self._thread.stop()


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[_NodeInThread]:
    running = _NodeInThread()
    monkeypatch.setattr(wiring, "build_store", lambda *_, **__: running.store)
    yield running
    running.end()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.toml").write_text(AGREEMENT)
    (tmp_path / "wrong.toml").write_text('name = "shop"\n')
    (tmp_path / "load.csv").write_text("t_s,rate\n0,50\n60,400\n120,50\n")
    return tmp_path


def test_json_output_of_commands_is_unchanged(
    golden: Golden, node: _NodeInThread, folder: Path
) -> None:
    command_line = CommandLine(folder)
    variables = {"TIDEGATE_URL": node.url, "TIDEGATE_STORE__URL": "postgresql://memory/store"}
    lines = []
    for run in _RUNS:
        finished = command_line(*run.split(), "--json", stdin=_PASSWORD, environment=variables)
        lines += ["", f"tidegate {run} --json", f"    code {finished.returncode}"]
        lines += [f"    {line}" for line in _shape_of(finished.stdout, finished.stderr)]

    golden("json/commands.txt", lines[1:])


def test_documents_that_are_kept_are_as_they_were(golden: Golden) -> None:
    kinds = {
        "a decision": Decision,
        "a service": ServiceSpec,
        "what a person holds of a service": ServiceOverride,
        "the scaling of a queue": Scaling,
        "the policy of a queue": tidegate.QueuePolicy,
        "the standing of an agreement": StoredAgreementStatus,
        "a sample of a door": DoorSample,
        "a run of the pipeline": LearningRun,
        "a learned model": StoredModel,
        "a model of a consumer": tidegate.PrefetchModel,
        "a simulation": SimulationResult,
    }
    lines = []
    for name, kind in kinds.items():
        lines += [f"== {name}", *shape(kind), ""]

    golden("json/documents.txt", lines)


def test_json_of_the_demo_and_of_tuning_is_as_it_was(golden: Golden) -> None:
    kinds = {"demo": DemoSummary, "demo: learned": DemoModels, "tune: open_loop": OpenLoopPoint}

    golden("json/demo_and_tune.txt", printed_shapes(kinds))


def _standing() -> StoredAgreementStatus:
    agreement = parse_agreement(AGREEMENT, "shop.toml")
    ledger = AgreementLedger(agreement)
    ledger.add_sample(AgreementSample(1.0, accepted=10, served=10, times={"response": [(2.0, 10)]}))
    (entry,) = ledger.advance(5.0)
    return StoredAgreementStatus.of(agreement, entry, ledger.history, "1 instance more")


def _shape_of(said: bytes, complaint: bytes) -> list[str]:
    """The shape of one document, or of all that stand in lines of their own."""
    if not said:
        return ["nothing", complaint.decode()]
    try:
        shapes = document_shape(json.loads(said))
    except ValueError:
        shapes = document_shape([json.loads(line) for line in said.splitlines()])
    # Which of the histograms of a running node are empty, chance decides.
    return [line for line in shapes if ".buckets[]" not in line]
