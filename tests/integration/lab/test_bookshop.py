"""The bookshop of the TAPAS experiments and its clients, in processes of their own."""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Iterator

import pytest

from tidegate_lab.papers.tapas.clients import SESSION, ClientPopulation, run_population_process
from tidegate_lab.papers.tapas.shops import ShopInstance, ShopSetting, shops_running


@pytest.fixture(scope="module")
def shop() -> Iterator[ShopInstance]:
    with shops_running(ShopSetting(concurrency=2, service_s=0.01, spread=0.0), 1) as running:
        yield running[0]


def test_clients_go_through_their_sessions_and_a_cart_lives_as_long_as_one(
    shop: ShopInstance,
) -> None:
    crowd = ClientPopulation(ports=[shop.port], clients=3, sessions=2)
    visit = run_population_process(crowd)
    assert len(visit.requests) == 3 * 2 * len(SESSION)
    assert set(visit.requests.status) == {200}
    assert len(visit.present) == 3
    # What was chosen last is what is bought; a stranger's cart is empty.
    stranger = http.client.HTTPConnection("127.0.0.1", shop.port, timeout=10)
    with contextlib.closing(stranger):

        def posted(path: str, cart: str) -> bytes:
            stranger.request("POST", path, headers={"Cookie": f"cart={cart}"})
            return stranger.getresponse().read()

        assert b"added" in posted("/add?book=5", "mine")
        assert b"1 book(s)" in posted("/buy", "mine")
        assert b"0 book(s)" in posted("/buy", "yours")


def test_an_instance_does_what_is_stated_and_what_exceeds_it_waits(shop: ShopInstance) -> None:
    visit = run_population_process(ClientPopulation(ports=[shop.port], clients=8, sessions=1))
    # 80 operations, two at a time, 10 ms each: however fast the machine is.
    assert visit.ended_at - visit.began_at >= 80 / 2 * 0.01 * 0.95
