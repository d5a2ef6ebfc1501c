"""Before a service is deployed: all of it, less of it, or a refusal that says what is missing."""

from __future__ import annotations

import pytest

from tidegate.agreement.document import Agreement, parse_agreement
from tidegate.control.hosting_offer import offered
from tidegate.control.room import Room
from tidegate.core.errors import LimitReached
from tidegate.core.hosting import ServiceSpec


def shop(more: str = "", most: int = 8) -> Agreement:
    return parse_agreement(
        f"""
name = "shop"
http = "shop"
capacity = 30
replicas = {{ min = 1, max = {most} }}
{more}
[metrics.throughput]
breach = 100
""",
        "shop.toml",
    )


def with_spares(spares: int = 0) -> ServiceSpec:
    return ServiceSpec(name="shop", target="shop:app", agreement="", spares=spares)


def room(slots: int) -> Room:
    return Room(slots, f"{slots} slot(s) are there for it")


def test_what_can_be_kept_is_offered_without_a_word() -> None:
    assert offered(shop(), with_spares(1), room(5)) == ""
    assert offered(shop(), with_spares(1), None) == ""


def test_what_cannot_be_kept_is_refused_with_what_is_missing_and_what_helps() -> None:
    with pytest.raises(LimitReached) as refused:
        offered(shop(), with_spares(), room(2))

    assert "4 replicas are needed, and 2 slot(s) are there for it" in str(refused.value)
    assert 'promise less, add machines or say insufficient = "reduce"' in str(refused.value)


def test_where_the_agreement_itself_allows_too_few_no_machine_would_help() -> None:
    with pytest.raises(LimitReached) as refused:
        offered(shop(most=2), with_spares(), None)

    assert "4 replicas are needed, and replicas.max is 2" in str(refused.value)
    assert "allow more replicas" in str(refused.value)
    assert "machines" not in str(refused.value)


def test_spares_need_a_slot_too() -> None:
    with pytest.raises(LimitReached, match=r"4 replicas and 2 spare.s. are needed, and 5 slot"):
        offered(shop(), with_spares(2), room(5))


def test_less_is_offered_plainly_if_that_was_agreed() -> None:
    said = offered(shop('insufficient = "reduce"'), with_spares(), room(2))
    assert said.startswith("reduced: 4 replicas are needed")
    assert "kept up to 60/s" in said


def test_below_the_least_there_is_nothing_to_offer() -> None:
    with pytest.raises(LimitReached, match="even reduced it needs 1"):
        offered(shop('insufficient = "reduce"'), with_spares(), room(0))
