"""The replicated queues experiments run through at their smallest, and their page is whole."""

from __future__ import annotations

from pathlib import Path

import msgspec
from whole_page import assert_whole

from tidegate_lab.papers.elastic.queues_per_machine import (
    PAPER,
    QueuesPlan,
    queues_per_machine_section,
)
from tidegate_lab.papers.replicated.run import ReplicatedOptions, run_replicated


def test_experiments_on_one_queue_run_through_and_leave_a_whole_page(tmp_path: Path) -> None:
    options = ReplicatedOptions(
        only=["fig4", "fig5", "fig7"], quick=True, results=tmp_path, name="quick"
    )

    report = run_replicated(options)

    assert not report.failed
    assert [section.name for section in report.sections] == list(options.only)
    found = {
        name: msgspec.json.decode((report.folder / f"{name}.json").read_bytes())
        for name in options.only
    }
    for name, one in found.items():
        assert one["paper"]
        assert one["ours"]
        assert (report.folder / f"{name}.png").stat().st_size > 5000
    (pairs,) = found["fig4"]["data"]["pairs"].values()
    assert all(pair["full"]["read_per_s"] > 0 for pair in pairs)
    mixes = found["fig5"]["data"]["mixes"]
    assert [(mix["producers"], mix["consumers"]) for mix in mixes] == [(1, 1), (1, 2)]
    operations = found["fig7"]["data"]["operations"]
    assert len(operations) == 4
    assert all(one["produced_per_s"] > 0 for one in operations)
    # A second at each mix is too short for a capacity, and it says so rather than guess.
    assert not found["fig7"]["data"]["capacity"]["accepted"]
    assert_whole(report.page.read_text(), images=3)


def test_queues_share_a_machine_in_every_setup(tmp_path: Path) -> None:
    section = queues_per_machine_section(QueuesPlan.quick(), tmp_path, lambda line: None)

    found = section.data["messages_per_s"]
    assert set(found) == {", ".join(setup) for setup in PAPER}
    assert all(rate > 0 for rates in found.values() for rate in rates.values())
    assert (tmp_path / "queues.png").stat().st_size > 5000


def test_the_worst_scenario_delivers_nothing_until_it_is_repaired(tmp_path: Path) -> None:
    report = run_replicated(
        ReplicatedOptions(only=["scenarios"], quick=True, results=tmp_path, name="quick")
    )

    assert not report.failed
    found = msgspec.json.decode((report.folder / "scenarios.json").read_bytes())
    consumed = {
        (one["scenario"], one["repair"]): one["rates"]["consumed_per_s"]
        for one in found["data"]["outcomes"]
    }
    # Producers on one replica, consumers on the other.
    assert consumed["worst", "held still"] == 0.0
    # The simulated experiments say by how much more migration brings than exchange.
    assert consumed["worst", "exchange"] > 0.0
    assert consumed["worst", "migration"] > 0.0
    assert_whole(report.page.read_text(), images=1)


def test_clients_that_come_one_by_one_bring_a_second_replica(tmp_path: Path) -> None:
    report = run_replicated(
        ReplicatedOptions(only=["fig10"], quick=True, results=tmp_path, name="quick")
    )

    assert not report.failed
    found = msgspec.json.decode((report.folder / "fig10.json").read_bytes())["data"]
    assert max(found["static"]["replicas"]) == 1
    assert found["dynamic"]["replicas"][-1] == 2
    assert "L_c" in found["dynamic"]["why"]
    assert_whole(report.page.read_text(), images=1)
