"""`tidegate sla`: what is kept of an agreement, as people and programs read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import msgspec
import pytest

from tidegate.agreements.document import parse_agreement
from tidegate.agreements.evaluation import AgreementSample
from tidegate.agreements.ledger import AgreementLedger, StoredAgreementStatus
from tidegate.cli.agreements import (
    agreement_statuses,
    chosen,
    sla_cells,
    sla_json,
    sla_row,
    unjudged,
)
from tidegate.cli.command_line import NotFound
from tidegate.core.decisions import AddInstance, Decision
from tidegate.core.services import ServiceSpec, decision_subject
from tidegate.storage.memory import MemoryStore

if TYPE_CHECKING:
    from tidegate.storage.postgres.store import PostgresStore

DOCUMENT = """
name = "bookshop"
http = "shop"
window = "5s"
[metrics.throughput]
breach = 1
[metrics.response_p95]
breach = "1s"
"""


def kept(response_s: float, doing: str = "") -> StoredAgreementStatus:
    agreement = parse_agreement(DOCUMENT, "shop.toml")
    ledger = AgreementLedger(agreement)
    ledger.add_sample(
        AgreementSample(1.0, accepted=10, served=10, times={"response": [(response_s, 10)]})
    )
    (entry,) = ledger.advance(5.0)
    return StoredAgreementStatus.of(agreement, entry, ledger.history, doing)


def test_a_breach_is_shown_with_budget_burn_rate_evidence_and_what_is_done() -> None:
    row = sla_row(kept(2.0, "1 instance more"), now=6.0)

    assert (row.agreement, row.governs, row.state) == ("bookshop", "http shop", "breached")
    assert row.budget_left is not None
    assert row.budget_left < 1.0
    assert row.burn_rate == pytest.approx(100.0)
    assert row.evidence[0].startswith("response_p95 was 2s"), "the worst promise first"
    assert sla_cells(row)[-2:] == ["0/0/1", "1 instance more"]
    assert sla_json(row)["last_hour"] == {"met": 0, "warned": 0, "breached": 1}


def test_an_offer_of_less_is_shown_with_what_was_asked_for() -> None:
    row = sla_row(msgspec.structs.replace(kept(0.1, "nothing"), reduced="2 of 4"), now=6.0)

    assert sla_cells(row)[-1] == "reduced: 2 of 4; nothing"
    assert sla_json(row)["reduced"] == "2 of 4"


def test_without_a_word_of_its_own_the_last_decision_is_told() -> None:
    assert sla_row(kept(0.1), now=6.0, decided="2 instances more").doing == "2 instances more"


async def test_when_that_was_is_said_as_people_do() -> None:
    store = MemoryStore()
    epoch = await store.lead(await store.join("leader", "tidegate://here:1", 60.0))
    assert epoch is not None
    await store.deploy(ServiceSpec(name="shop", target="shop:app", agreement=DOCUMENT))
    await store.keep_standing("bookshop", kept(0.1).to_json(), epoch)
    decision = Decision(at=6.0, loop="http", service="", law="agreement", rule="too slow")
    more = msgspec.structs.replace(decision, actions=[AddInstance(1)])
    await store.note_decision(decision_subject("shop"), msgspec.json.encode(more), epoch)

    # Windows are 5 s long: nobody is late yet.
    (row,) = await agreement_statuses(cast("PostgresStore", store), now=11.0)
    assert row.doing == "1 instance more (5 s ago)"
    older = msgspec.structs.replace(more, at=-66.0)
    await store.note_decision(decision_subject("shop"), msgspec.json.encode(older), epoch)
    (row,) = await agreement_statuses(cast("PostgresStore", store), now=11.0)
    assert row.doing == "1 instance more (1 min 17 s ago)"
    # How a promise turned since then is nothing that is being done about it.
    turn = msgspec.structs.replace(decision, loop="agreement", rule="response_p95 is warned of")
    await store.note_decision(decision_subject("shop"), msgspec.json.encode(turn), epoch)
    (row,) = await agreement_statuses(cast("PostgresStore", store), now=11.0)
    assert row.doing == "1 instance more (1 min 17 s ago)"


def test_an_agreement_that_nobody_judges_is_not_called_met() -> None:
    row = sla_row(kept(0.1), now=600.0)

    assert row.state == "not judged"
    assert row.doing == "nobody has judged it for 9 min 55 s"


def test_an_agreement_is_found_by_its_name_and_by_what_it_governs() -> None:
    rows = [sla_row(kept(0.1), now=6.0)]

    assert chosen(rows, "bookshop") == chosen(rows, "shop") == rows
    with pytest.raises(NotFound, match="there is bookshop"):
        chosen(rows, "orders")


@pytest.mark.parametrize(
    ("hosted", "queues", "governs", "why"),
    [
        ([], [], 'http = "shop"', "nothing is hosted here as shop"),
        (["shop"], [], 'http = "shop"', "shop is hosted under another agreement"),
        ([], ["orders"], 'queue = "ordres.*"', "no queue is called ordres.*"),
        ([], ["orders"], 'queue = "order?"', "no node that leads knows of it"),
    ],
)
def test_an_agreement_that_governs_nothing_is_told_with_the_reason(
    hosted: list[str], queues: list[str], governs: str, why: str
) -> None:
    text = f'name = "typo"\n{governs}\n[metrics.throughput]\nbreach = 1\n'

    row = unjudged(parse_agreement(text, "typo.toml"), hosted, queues)

    assert (row.agreement, row.state) == ("typo", "not judged")
    assert row.doing.startswith(why)
