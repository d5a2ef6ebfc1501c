"""Models that history has accepted: whose each of them is, and which are of no use."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tidegate.control.learned import PrefetchModels
from tidegate.core.prefetch import PrefetchGoal, PrefetchModel
from tidegate.telemetry.models import ModelRegistry, StoredModel

NOW = datetime(2026, 3, 14, 12, 0, tzinfo=UTC)
GOAL = PrefetchGoal(rate_per_s=400.0)


def model(subject: str, *, accepted: bool = True, **parameters: float) -> StoredModel:
    return StoredModel(subject, accepted, "says why", parameters, {"r2_test": 0.9}, 99, 1.0, 2.0)


@pytest.fixture
def learned(tmp_path: Path) -> PrefetchModels:
    knowledge = ModelRegistry(tmp_path / "knowledge", pytest.fail)
    models = [
        model("orders/billing", a=0.2, b=60.0, offset_per_s=3.0, interval_s=10.0, prefetch_high=16),
        model("orders/runaway", a=1.2, b=60.0),
        model("orders/useless", a=0.2, b=-1.0),
        model("orders/poor", accepted=False, a=0.2, b=6.0),
        model("mails/billing", a=0.1, b=9.0),
    ]
    knowledge.add_models("prefetch", knowledge.begin_run(NOW), NOW, models)
    found = PrefetchModels(knowledge)
    found.refresh(0.0)
    return found


def test_a_consumer_has_the_model_of_its_group(learned: PrefetchModels) -> None:
    found = learned.of(GOAL, "orders", "billing#2@host")
    assert found is not None
    assert (found.a, found.b, found.sample_s, found.high) == (0.2, 60.0, 10.0, 16)
    mails = learned.of(GOAL, "mails", "billing")
    assert mails is not None
    assert mails.b == 9.0


def test_the_goals_own_model_counts_more(learned: PrefetchModels) -> None:
    own = PrefetchModel(a=0.0, b=7.0)
    assert learned.of(PrefetchGoal(model=own), "orders", "billing") is own


@pytest.mark.parametrize("client", ["runaway", "useless", "poor", "stranger"])
def test_invalid_or_refused_prefetch_model_is_not_used(
    learned: PrefetchModels, client: str
) -> None:
    assert learned.of(GOAL, "orders", client) is None


def test_prefetch_model_of_another_queue_is_not_used(learned: PrefetchModels) -> None:
    assert learned.of(GOAL, "invoices", "billing") is None
    assert learned.schedule(GOAL, "invoices", "billing") is None


def test_a_folder_that_is_not_there_knows_nothing(tmp_path: Path) -> None:
    nothing = PrefetchModels(ModelRegistry(tmp_path / "none", pytest.fail))
    nothing.refresh(0.0)
    assert nothing.of(GOAL, "orders", "billing") is None
