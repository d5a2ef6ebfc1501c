"""The headline of a card: what the newest window and the error budget make of an agreement."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from knowledge_of import NOON, KnowledgeOf

from tidegate.agreements.document import parse_agreement
from tidegate.report.agreements import summary_section
from tidegate.report.charts import Card
from tidegate.telemetry.learned import LearnedModels


def card(knowledge: KnowledgeOf, verdicts: list[str], budget_left: float, burn_rate: float) -> Card:
    level: dict[str, Any] = {
        "agreement": "orders",
        "from": NOON,
        "to": NOON + timedelta(minutes=len(verdicts)),
        "window_s": 60.0,
        "objective": 0.99,
        **{name: verdicts.count(name) for name in ("met", "warned", "breached", "no_data")},
        "budget_left": budget_left,
        "burn_rate": burn_rate,
    }
    windows = [
        {
            "agreement": "orders",
            "window": NOON + timedelta(minutes=minute),
            "window_s": 60.0,
            "verdict": verdict,
        }
        for minute, verdict in enumerate(verdicts)
    ]
    knowledge.agreements = ["orders"]
    knowledge.add("service_levels", [level]).add("compliance", windows).write()
    (found,) = summary_section(LearnedModels(knowledge.folder), []).cards
    return found


@pytest.mark.parametrize(
    ("verdicts", "budget_left", "burn_rate", "standing"),
    [
        # Twenty minutes, all of them broken, hardly count in four weeks.
        (["breached"] * 20, 0.953, 100.0, "breached"),
        (["breached", "breached", "no_data"], 0.99, 100.0, "breached"),
        (["met", "met", "warned"], 1.0, 0.0, "warned"),
        (["breached", "met", "met"], 0.99, 33.0, "warned"),
        (["breached", "met", "met"], 0.99, 0.9, "met"),
        (["breached", "met", "met"], -0.1, 0.9, "breached"),
        (["no_data", "no_data"], 1.0, 0.0, "no_data"),
    ],
)
def test_the_newest_window_with_data_or_an_overdrawn_budget_make_the_headline(
    knowledge_of: KnowledgeOf,
    verdicts: list[str],
    budget_left: float,
    burn_rate: float,
    standing: str,
) -> None:
    assert card(knowledge_of, verdicts, budget_left, burn_rate).standing == standing


def test_budget_and_burn_rate_stay_as_figures_below_the_headline(
    knowledge_of: KnowledgeOf,
) -> None:
    facts = dict(card(knowledge_of, ["breached"] * 20, 0.953, 100.0).facts)
    assert facts["Error budget left"] == "95.3 %"
    assert facts["Burn rate"] == "100"


@pytest.mark.parametrize(
    ("metric", "breach", "within", "value", "told"),
    [
        ("wait_p99", '"500ms"', 0.0, None, "0 % of waits below 500 ms"),
        ("response_p50", '"2s"', 0.25, None, "25 % of response times below 2 s"),
        ("throughput", "100", None, 12.0, "throughput 12 msg/s"),
    ],
)
def test_the_worst_window_is_told_in_the_words_of_the_promise(
    knowledge_of: KnowledgeOf,
    metric: str,
    breach: str,
    within: float | None,
    value: float | None,
    told: str,
) -> None:
    promise = {
        "agreement": "orders",
        "window": NOON,
        "metric": metric,
        "value": value,
        "within": within,
        "verdict": "breached",
    }
    knowledge_of.add("promises", [promise])
    card(knowledge_of, ["breached"], 0.9, 100.0)
    agreement = parse_agreement(
        f'name = "orders"\nqueue = "orders"\n[metrics.{metric}]\nbreach = {breach}', "orders.toml"
    )
    (found,) = summary_section(LearnedModels(knowledge_of.folder), [agreement]).cards
    assert ("Worst window", told) in found.facts
    assert ("which began", "14 Mar 12:00:00 UTC") in found.facts
