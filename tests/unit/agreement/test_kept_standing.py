"""What is kept of an agreement comes back as it went, and the next leader goes on with it."""

from __future__ import annotations

from tidegate.agreements.document import parse_agreement
from tidegate.agreements.evaluation import AgreementSample, Verdict
from tidegate.agreements.ledger import AgreementLedger, StoredAgreementStatus

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


def sample(at_s: float, response_s: float) -> AgreementSample:
    return AgreementSample(
        at_s=at_s, accepted=10, served=10, times={"response": [(response_s, 10)]}
    )


def test_the_next_leader_goes_on_with_the_budget_of_the_last() -> None:
    first = AgreementLedger(SHOP)
    first.add_sample(sample(1.0, 2.0))
    (breached,) = first.advance(5.0)
    document = StoredAgreementStatus.of(
        SHOP, breached, first.history, "one instance more"
    ).to_json()

    kept = StoredAgreementStatus.from_json(document)

    assert kept is not None
    assert kept.verdict is Verdict.BREACHED
    assert kept.standing == breached.standing
    assert "response_p95 was 2s" in kept.promises[0].evidence
    second = AgreementLedger(SHOP, kept.history)
    second.add_sample(sample(6.0, 0.1))
    (met,) = second.advance(10.0)
    assert met.standing.last_hour.breached == 1
    assert met.standing.budget_left == breached.standing.budget_left


def test_an_agreement_that_nobody_judges_any_more_is_silent() -> None:
    ledger = AgreementLedger(SHOP)
    ledger.add_sample(sample(1.0, 0.1))
    (met,) = ledger.advance(5.0)
    kept = StoredAgreementStatus.of(SHOP, met, ledger.history)

    assert not kept.is_silent(now=10.0)
    assert kept.is_silent(now=30.0)


def test_status_of_another_version_is_ignored() -> None:
    assert StoredAgreementStatus.from_json(b'{"budget": 1}') is None
