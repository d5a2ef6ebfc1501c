"""What failed is looked at again only where that cannot hide anything."""

from __future__ import annotations

from pathlib import Path

import pytest

import second_look

WELL = "tests/testing/test_second_look.py::test_whatever"
IMPATIENT = "E   AssertionError: not within 60 s: 2 replicas serve"


def test_a_handful_that_lost_its_patience_is_looked_at_again() -> None:
    assert second_look.verdict({WELL: IMPATIENT}) == ""


@pytest.mark.parametrize(
    "said",
    [
        "E   AssertionError: Verdict(lost=1)",
        "E   assert report.verdict.outcome == 'pass'",
        "E   AssertionError: 3 messages are lost",
        "E   AssertionError: delivered twice",
    ],
)
def test_who_has_judged_messages_has_no_second_look(said: str) -> None:
    other = f"{WELL}[1]"
    assert other in second_look.verdict({WELL: IMPATIENT, other: said})


def test_what_cannot_be_read_and_more_than_a_handful_have_failed() -> None:
    assert second_look.verdict({})
    assert second_look.verdict({"tests/node": IMPATIENT})
    assert second_look.verdict({"tests/nowhere/test_gone.py::test_x": IMPATIENT})
    many = range(second_look.FLAKY_MAX + 1)
    assert second_look.verdict({f"{WELL}[{n}]": IMPATIENT for n in many})


def test_what_a_test_said_is_kept_over_all_stages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(second_look, "KEPT", tmp_path / "cache" / "failures.json")
    for nodeid in (WELL, f"{WELL}[1]"):
        failures = second_look.Failures()
        for outcome in ("passed", "failed"):
            said = f"    assert x\n{IMPATIENT}"
            report = pytest.TestReport(nodeid, ("", 0, ""), {}, outcome, said, "call")
            failures.pytest_runtest_logreport(report)
        failures.pytest_sessionfinish()

    assert second_look.kept() == {WELL: IMPATIENT, f"{WELL}[1]": IMPATIENT}
