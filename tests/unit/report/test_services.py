"""What a report says of HTTP services."""

from __future__ import annotations

from datetime import timedelta

from knowledge_of import NOON, KnowledgeOf
from shop_day import shop_agreement, with_shop

from tidegate.report.agreements import violation_records
from tidegate.report.charts import ReportSection
from tidegate.report.page import document_of, html_of
from tidegate.report.services import response_limits
from tidegate.telemetry.learned import LearnedModels


def sections_of(folder_of: KnowledgeOf, *, promised: bool = True) -> dict[str, ReportSection]:
    learned = LearnedModels(folder_of.write())
    agreements = [shop_agreement()] if promised else []
    return {one.title: one for one in document_of(learned, agreements=agreements).sections}


def test_a_service_is_shown_against_what_was_promised(knowledge_of: KnowledgeOf) -> None:
    found = sections_of(with_shop(knowledge_of))

    shop = found["shop"]
    response, requests, instances = shop.charts
    assert "had a p99 of 1.80 s" in response.sentence
    assert "48 (" in requests.sentence
    assert "1 to 4 served" in instances.sentence
    assert "warned of 1 time and broken 2 times" in instances.sentence
    assert "One instance does 63 req/s" in shop.sentence
    assert "Of the 100 ms" in shop.notes[0]
    assert "30 % waiting in the door, 5 % on the way to an instance, 65 % in" in shop.notes[0]
    [table] = shop.tables
    assert [row[1] for row in table.rows] == ["5 min", "5 min so far"]
    assert table.rows[0][4] == "1.90 s"
    # Of others the violations stand apart; queues are not missed where there are none.
    assert [row[2] for row in found["Violations"].tables[0].rows] == ["orders"]
    assert "Queues" not in found


def test_the_strictest_promise_is_drawn_where_it_warns_and_where_it_breaks() -> None:
    shop = shop_agreement()

    breach, warning = response_limits([shop], {("shop agreement", "response_p99"): 0.75})
    assert (breach.at_s, warning.at_s) == (1.0, 0.75)
    assert "learned" in warning.words
    assert response_limits([shop], {})[1].at_s == 0.8
    assert response_limits([], {}) == []


def test_without_the_agreement_or_a_request_the_page_is_whole(knowledge_of: KnowledgeOf) -> None:
    learned = LearnedModels(with_shop(knowledge_of).write())
    document = document_of(learned)
    found = {one.title: one for one in document.sections}

    assert "--agreement" in found["shop"].notes[-1]
    assert [chart.title for chart in found["idle <b>"].charts] == ["Instances"]
    # Nobody knows which service they are of.
    assert len(found["Violations"].tables[0].rows) == 3
    page = html_of(document)
    assert page.count("<figure") == 4
    assert "idle &lt;b&gt;" in page


def test_where_no_http_is_hosted_nothing_is_said_of_it(knowledge_of: KnowledgeOf) -> None:
    found = sections_of(knowledge_of)

    assert "Violations" not in found
    assert "Queues" in found


def test_an_episode_ends_when_the_promise_is_eased_or_another_begins(
    knowledge_of: KnowledgeOf,
) -> None:
    def turn(minute: int, what: str) -> dict[str, object]:
        at = NOON + timedelta(minutes=minute)
        says = {"agreement": "a", "metric": "availability", "worst": 0.5, "evidence": ""}
        return {**says, "at": at, "turn": what}

    rows = [turn(1, "kept"), turn(2, "breached"), turn(4, "breached"), turn(5, "eased")]
    knowledge_of.add("violations", [*rows, turn(6, "kept"), turn(7, "warned")])

    found = violation_records(LearnedModels(knowledge_of.write()))["a"]

    lasted = [(one.lasted_s(NOON) / 60, one.ends is None) for one in found.episodes]
    assert lasted == [(2.0, False), (1.0, False)]
    assert len(found.warned) == 1
