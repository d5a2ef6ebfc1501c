"""Before a service is deployed: all of it, less of it, or a refusal that says what is missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidegate.agreements.document import Agreement, parse_agreement
from tidegate.control.planning import AvailableSlots, make_offer
from tidegate.core.errors import LimitReached
from tidegate.core.services import ServiceSpec


def shop(more: str = "", most: int = 8) -> Agreement:
    return parse_agreement(
        f"""
name = "shop"
http = "shop"
capacity = 36
replicas = {{ min = 1, max = {most} }}
{more}
[metrics.throughput]
breach = 100
""",
        "shop.toml",
    )


def with_spares(spares: int = 0) -> ServiceSpec:
    return ServiceSpec(name="shop", target="shop:app", agreement="", spares=spares)


def room(slots: int) -> AvailableSlots:
    return AvailableSlots(slots, f"{slots} slot(s) are there for it")


def test_offer_is_unchanged_when_slots_suffice() -> None:
    for there in (room(5), None):
        assert make_offer(shop(), with_spares(1), there) == (shop(), with_spares(1))


def test_offer_refusal_names_missing_slots_and_remedies() -> None:
    with pytest.raises(LimitReached) as refused:
        make_offer(shop(), with_spares(), room(2))

    assert "4 replicas are needed, and 2 slot(s) are there for it" in str(refused.value)
    assert 'promise less, add machines or say insufficient = "reduce"' in str(refused.value)


def test_where_the_agreement_itself_allows_too_few_no_machine_would_help() -> None:
    with pytest.raises(LimitReached) as refused:
        make_offer(shop(most=2), with_spares(), None)

    assert "4 replicas are needed, and replicas.max is 2" in str(refused.value)
    assert "allow more replicas" in str(refused.value)
    assert "machines" not in str(refused.value)


def test_spares_need_a_slot_too() -> None:
    with pytest.raises(LimitReached, match=r"4 replicas and 2 spare.s. are needed, and 5 slot"):
        make_offer(shop(), with_spares(2), room(5))


def test_reduced_offer_is_the_deployed_agreement() -> None:
    less, spec = make_offer(shop('insufficient = "reduce"'), with_spares(1), room(2))

    assert parse_agreement(spec.agreement, "shop.toml") == less
    assert spec.spares == 0
    (throughput,) = less.metrics
    # 120 and 100, as far apart as before.
    assert (throughput.warning, throughput.breach) == pytest.approx((61.2, 51.0))
    assert less.resources.load_max_per_s == pytest.approx(61.2)
    assert less.resources.reduced == (
        "4 replicas and 1 spare(s) are needed, and 2 slot(s) are there for it; offered are "
        "2 instance(s), a throughput of 51/s, kept up to 61.2/s"
    )
    # Asked again with the same room, it is offered as it is.
    assert make_offer(less, spec, room(2)) == (less, spec)


def test_spares_that_there_is_no_room_for_are_all_that_is_taken() -> None:
    less, spec = make_offer(shop('insufficient = "reduce"'), with_spares(3), room(5))

    assert spec.spares == 1
    assert less.metrics == shop().metrics
    assert less.resources.load_max_per_s is None


def test_reduced_offer_that_contradicts_itself_is_refused() -> None:
    # 20 below the warning in the second that it takes; of what is offered only 10 are left.
    agreement = shop('insufficient = "reduce"\nreconfiguration = "1s"')
    steep = replace(agreement, metrics=(replace(agreement.metrics[0], slope_per_s=15.0),))

    with pytest.raises(LimitReached, match="leaves too little time"):
        make_offer(steep, with_spares(), room(2))


def test_below_the_least_there_is_nothing_to_offer() -> None:
    with pytest.raises(LimitReached, match="even reduced it needs 1"):
        make_offer(shop('insufficient = "reduce"'), with_spares(), room(0))
