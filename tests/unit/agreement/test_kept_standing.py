"""What is kept of an agreement comes back as it went, and the next leader goes on with it."""

from __future__ import annotations

from tidegate.agreement.document import parse_agreement
from tidegate.agreement.evaluation import Verdict
from tidegate.agreement.kept_standing import KeptStanding
from tidegate.agreement.ledger import Ledger
from tidegate.agreement.windows import Sample

SHOP = parse_agreement(
    """
name = "shop"
http = "shop"
window = "5s"
[metrics.response_p95]
breach = "1s"
""",
    "shop.toml",
)


def sample(at_s: float, response_s: float) -> Sample:
    return Sample(at_s=at_s, accepted=10, served=10, times={"response": [(response_s, 10)]})


def test_the_next_leader_goes_on_with_the_budget_of_the_last() -> None:
    first = Ledger(SHOP)
    first.take(sample(1.0, 2.0))
    (breached,) = first.advance(5.0)
    document = KeptStanding.of(SHOP, breached, first.history, "one instance more").to_json()

    kept = KeptStanding.from_json(document)

    assert kept is not None
    assert kept.verdict is Verdict.BREACHED
    assert kept.standing == breached.standing
    assert "response_p95 was 2s" in kept.promises[0].evidence
    second = Ledger(SHOP, kept.history)
    second.take(sample(6.0, 0.1))
    (met,) = second.advance(10.0)
    assert met.standing.last_hour.breached == 1
    assert met.standing.budget_left == breached.standing.budget_left


def test_an_agreement_that_nobody_judges_any_more_is_silent() -> None:
    ledger = Ledger(SHOP)
    ledger.take(sample(1.0, 0.1))
    (met,) = ledger.advance(5.0)
    kept = KeptStanding.of(SHOP, met, ledger.history)

    assert not kept.is_silent(now=10.0)
    assert kept.is_silent(now=30.0)


def test_what_another_version_has_written_is_not_guessed_at() -> None:
    assert KeptStanding.from_json(b'{"budget": 1}') is None
