"""Before a service is deployed: all of it, less of it, or a refusal that says what is missing."""

from __future__ import annotations

import pytest

from tidegate.agreement.document import Agreement, parse_agreement
from tidegate.control.hosting_offer import offered
from tidegate.core.errors import LimitReached


def shop(more: str = "") -> Agreement:
    return parse_agreement(
        f"""
name = "shop"
http = "shop"
capacity = 36
replicas = {{ min = 1, max = 8 }}
{more}
[metrics.throughput]
breach = 100
""",
        "shop.toml",
    )


def test_what_can_be_kept_is_offered_without_a_word() -> None:
    assert offered(shop(), spares=1, slots=5) == ""
    assert offered(shop(), spares=1, slots=None) == ""


def test_what_cannot_be_kept_is_refused_with_what_is_missing() -> None:
    with pytest.raises(LimitReached, match=r"4 replicas are needed.*insufficient = \"reduce\""):
        offered(shop(), spares=0, slots=2)


def test_spares_need_a_slot_too() -> None:
    with pytest.raises(LimitReached, match=r"4 instance.s. and 2 spare.s. need more than 5"):
        offered(shop(), spares=2, slots=5)


def test_less_is_offered_plainly_if_that_was_agreed() -> None:
    said = offered(shop('insufficient = "reduce"'), spares=0, slots=2)
    assert said.startswith("reduced: 4 replicas are needed")
    assert "kept up to 61.2/s" in said


def test_below_the_least_there_is_nothing_to_offer() -> None:
    agreement = shop('insufficient = "reduce"')
    with pytest.raises(LimitReached):
        offered(agreement, spares=0, slots=0)
