"""`tidegate override`: overrides of an HTTP service, written to the store."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from tidegate.cli.command_line import NotFound
from tidegate.cli.services import override_service
from tidegate.core.decisions import OVERRIDE_LAW, Decision
from tidegate.core.errors import InvalidValue
from tidegate.core.services import NO_OVERRIDE, ServiceOverride, ServiceSpec, decision_subject
from tidegate.storage.memory import MemoryStore

AGREEMENT = """
name = "shop"
http = "shop"
replicas = { min = 1, max = 3 }
[metrics.response_p95]
breach = "1s"
"""


@pytest.fixture
async def store() -> MemoryStore:
    made = MemoryStore()
    await made.lead(await made.join("leader", "tidegate://here:1", 60.0))
    await made.deploy(ServiceSpec(name="shop", target="shop:app", agreement=AGREEMENT))
    return made


async def test_overrides_of_a_service_are_set_removed_and_recorded(store: MemoryStore) -> None:
    assert await override_service(store, "shop", {}) == NO_OVERRIDE
    assert await override_service(store, "shop", {"instances": 2}) == ServiceOverride(instances=2)
    # A second change keeps the overrides that it does not name.
    both = await override_service(store, "shop", {"concurrency": 9})
    assert both == ServiceOverride(instances=2, concurrency=9)
    assert await override_service(store, "shop", {"most": 2}, auto=True) == ServiceOverride(most=2)
    assert await override_service(store, "shop", {}, auto=True) == NO_OVERRIDE

    notes = [
        msgspec.json.decode(one, type=Decision)
        for one in await store.decisions(decision_subject("shop"), 10)
    ]
    assert [one.law for one in notes] == [OVERRIDE_LAW] * 4
    assert notes[-1].reason == "Instances automatic → 2."
    assert all(one.by for one in notes)


async def test_concurrent_overrides_are_all_kept(store: MemoryStore) -> None:
    said = [{"most": 2}, {"concurrency": 9}, {"in_flight_max": 50}, {"instances": 1}]
    await asyncio.gather(*(override_service(store, "shop", one) for one in said))
    (service,) = await store.services()
    assert service.by_hand == ServiceOverride(most=2, concurrency=9, in_flight_max=50, instances=1)


async def test_override_beyond_the_agreement_needs_other_bounds(store: MemoryStore) -> None:
    with pytest.raises(InvalidValue, match="instances 4: must be 1 to 3"):
        await override_service(store, "shop", {"instances": 4})
    assert (await override_service(store, "shop", {"instances": 4, "most": 5})).instances == 4
    with pytest.raises(NotFound, match="no service is called 'nonesuch'"):
        await override_service(store, "nonesuch", {})
