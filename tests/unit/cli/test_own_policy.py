"""A policy of the user's own by `module:Class`: chosen by, or told what is wrong with it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from tidegate.cli.door import make_door, parse_balancing_policy
from tidegate.cli.service_options import ServiceOptions, checked_request
from tidegate.core.errors import InvalidValue
from tidegate.core.services import Engine, Service, ServiceSpec

OWN = """
class Last:
    def choose(self, candidates, asker, family):
        return candidates[-1]


class Stranger(Last):
    def choose(self, candidates, asker, family):
        return None


class Fails(Last):
    def choose(self, candidates, asker, family):
        raise RuntimeError("no idea")


class Silent:
    pass


class Demanding(Last):
    def __init__(self, zone):
        pass


last = Last()
"""
SHOP = 'name = "shop"\nhttp = "shop"\n[metrics.response_p95]\nbreach = "1s"\n'


@dataclass
class Standin:
    """A server, as far as a policy cares."""

    name: str
    weight: float = 1.0
    outstanding: int = 0
    index: float = 25.0


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a user's policies are."""
    (tmp_path / "own_policies_of_a_test.py").write_text(OWN)
    (tmp_path / "broken_policies_of_a_test.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("own_policies_of_a_test", None)


def test_own_policy_chooses_the_server(here: Path) -> None:
    servers = [Standin("a"), Standin("b")]
    policy = parse_balancing_policy("own_policies_of_a_test:Last", Random(1))
    assert [policy.choose(servers, "", "").name for _ in range(20)] == ["b"] * 20


@pytest.mark.parametrize(
    ("name", "why"), [("Stranger", "it chose none of the candidates"), ("Fails", "it failed")]
)
def test_failing_policy_loses_no_request_and_is_logged_once(
    here: Path, caplog: pytest.LogCaptureFixture, name: str, why: str
) -> None:
    servers = [Standin("a"), Standin("b")]
    policy = parse_balancing_policy(f"own_policies_of_a_test:{name}", Random(1))
    with caplog.at_level(logging.ERROR):
        assert {policy.choose(servers, "", "").name for _ in range(50)} == {"a", "b"}
    (said,) = caplog.messages
    assert why in said


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nowhere_to_be_found:Last", "no module 'nowhere_to_be_found'"),
        ("broken_policies_of_a_test:Last", "fails when imported: ZeroDivisionError"),
        ("own_policies_of_a_test:First", "has no 'First'"),
        ("own_policies_of_a_test:Silent", "has no choose"),
        ("own_policies_of_a_test:Demanding", "cannot be made without arguments"),
        ("own_policies_of_a_test:last", "and no class"),
        ("own_policies_of_a_test:", "is no MODULE:CLASS"),
        ("fairest", "no policy is called 'fairest'"),
    ],
)
def test_invalid_balancing_policy_is_refused_before_the_start(
    here: Path, name: str, says: str
) -> None:
    (here / "shop.toml").write_text(SHOP)
    with pytest.raises(InvalidValue, match=says):
        checked_request("shop:app", here / "shop.toml", ServiceOptions(balancing=name))


def test_haproxy_takes_none(here: Path) -> None:
    (here / "shop.toml").write_text(SHOP)
    options = ServiceOptions(engine=Engine.HAPROXY, balancing="own_policies_of_a_test:Last")
    with pytest.raises(InvalidValue, match="or take the engine gateway"):
        checked_request("shop:app", here / "shop.toml", options)


def test_a_door_of_the_service_is_made_with_it(here: Path) -> None:
    spec = ServiceSpec(
        name="shop", target="shop:app", agreement=SHOP, balancing="own_policies_of_a_test:Last"
    )
    assert make_door(Service(spec=spec, version=1, secret="s" * 32), "127.0.0.1", 0, None)
    sys.modules.pop("own_policies_of_a_test")
    (here / "own_policies_of_a_test.py").unlink()
    with pytest.raises(InvalidValue, match="no module 'own_policies_of_a_test'"):
        make_door(Service(spec=spec, version=1, secret="s" * 32), "127.0.0.1", 0, None)
