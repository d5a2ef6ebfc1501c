"""Warnings that are to be learned lie where history puts them, by the agreement as it is now."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tidegate.agreements.document import parse_agreement
from tidegate.control.alerts import Alerts
from tidegate.control.journal import Journal
from tidegate.control.learned import AcceptedModels, with_learned
from tidegate.control.services.loop import HostingLoop
from tidegate.core.services import ServiceSpec
from tidegate.core.store import Clock
from tidegate.storage.memory import MemoryStore
from tidegate.telemetry.models import ModelRegistry, StoredModel

SHOP = """
name = "shop"
http = "shop"
warning = "learned"
[metrics.response_p99]
breach = "{breach}s"
[metrics.free_memory]
breach = "64MiB"
"""
MODEL = StoredModel(
    "shop",
    True,
    "as seen",
    {"slope_response_p99": 0.1, "reconfiguration_s": 5.0},
    {},
    *(1, 0.0, 1.0),
)


def test_a_warning_follows_what_was_learned_and_the_agreement_of_now() -> None:
    agreement = parse_agreement(SHOP.format(breach=6), "shop.toml")
    same, [sentence] = with_learned(agreement, None)
    assert same == agreement
    assert "Nothing was learned" in sentence

    for breach_s in (6.0, 2.0):
        asked = parse_agreement(SHOP.format(breach=breach_s), "shop.toml")
        changed, sentences = with_learned(asked, MODEL)
        response, memory = changed.metrics
        assert response.warning == pytest.approx(breach_s - 1.25 * 0.1 * 5.0)
        # Of which nothing was learned.
        assert memory == asked.metrics[1]
        assert len(sentences) == 1


async def test_the_loop_of_a_service_warns_where_history_puts_it(tmp_path: Path) -> None:
    # Given a service whose warnings are to be learned, and nothing learned
    store, clock = MemoryStore(), Clock()
    spec = ServiceSpec(name="shop", target="shop:app", agreement=SHOP.format(breach=6))
    await store.deploy(spec)
    member = await store.join("node", "tidegate://127.0.0.1:1", 1e9)
    epoch = await store.lead(member)
    assert epoch is not None
    knowledge = ModelRegistry(tmp_path, pytest.fail)
    learned = AcceptedModels(knowledge)
    loop = HostingLoop(
        store, Journal(store, None, clock.wall), Alerts(), clock=clock, learned=learned
    )

    async def warned_at(now: float) -> float:
        learned.refresh(now)
        await loop.run_once(now, epoch)
        configuration = loop.services["shop"].configuration
        assert configuration is not None
        return configuration.agreement.metrics[0].warning

    assert await warned_at(0.0) == pytest.approx(4.8)
    # When `learn` has run, then it moves, though the service goes on
    knowledge.add_models("warnings", "run", datetime.now(UTC), [MODEL])
    assert await warned_at(1000.0) == pytest.approx(6.0 - 1.25 * 0.1 * 5.0)
    loop.reset()
