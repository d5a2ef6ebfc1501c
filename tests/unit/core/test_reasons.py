"""Reasons of decisions: laws and loops state the numbers that the sentences name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from string import Formatter

import pytest
from places import ROOT

from tidegate.core.reasons import Reason, otherwise_text, reason_text


def named_in(reason: Reason) -> set[str]:
    fields = [*Formatter().parse(reason.why), *Formatter().parse(reason.otherwise)]
    return {name for _, name, _, _ in fields if name}


@pytest.fixture(scope="module")
def sources() -> list[str]:
    texts = [file.read_text() for file in (ROOT / "src/tidegate").rglob("*.py")]
    return [text for text in texts if "from tidegate.core.reasons import" in text]


def stated(sources: list[str]) -> Iterator[tuple[Reason, set[str]]]:
    """Each `Reason.NAME(…)` in the sources, with the names of its numbers."""
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="Reason"), attr=name)):
                    yield Reason[name], {one.arg for one in node.keywords if one.arg}


def test_each_reason_is_stated_with_the_numbers_that_it_names(sources: list[str]) -> None:
    wrong = {
        reason.name: numbers ^ named_in(reason)
        for reason, numbers in stated(sources)
        if numbers != named_in(reason)
    }
    assert not wrong


def test_each_reason_is_used(sources: list[str]) -> None:
    used = set(re.findall(r"\bReason\.([A-Z_]+)", "".join(sources)))
    assert used == {one.name for one in Reason}


def test_the_last_reason_says_first_what_would_have_changed_it() -> None:
    why = (
        Reason.LOAD_BELOW(load=1.0, min_load=50.0),
        Reason.LAST_ADDED_GOES(min_load=50.0),
        Reason.AT_MIN(least=2),
    )
    assert reason_text(why) == (
        "The average load is 1 messages, below min_load 50. The last added replica is to go, a "
        "step of its share each period. 2 is the least that there may be."
    )
    assert otherwise_text(why) == (
        "A smaller `replicas.min` would allow fewer. At or above 50 messages all would stay."
    )
