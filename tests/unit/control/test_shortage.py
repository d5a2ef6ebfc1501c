"""What is lacking is told when it has lasted, and that it is over when that has lasted too."""

from __future__ import annotations

from tidegate.control.alerts import BEGINS_S, OVER_S, CapacityShortage


def test_a_moment_is_no_news_and_what_lasts_is_told_once() -> None:
    shortage = CapacityShortage()
    assert shortage.update("no slot", 0.0) is None
    assert shortage.update("", 1.0) is None
    assert shortage.update("no slot", 2.0) is None
    assert shortage.update("no slot", 2.0 + BEGINS_S) == "no slot"
    assert shortage.update("no slot for two", 20.0) is None
    assert shortage.told == "no slot"


def test_shortage_ends_when_nothing_lacked_for_a_while() -> None:
    shortage = CapacityShortage("no slot")
    assert shortage.update("no slot", 0.0) is None
    assert shortage.update("", 1.0) is None
    assert shortage.update("no slot", 2.0) is None
    assert shortage.update("", 3.0) is None
    assert shortage.update("", 3.0 + OVER_S) == ""
    assert shortage.update("", 99.0) is None
